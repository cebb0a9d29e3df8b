"""Checks of a recipe before a run: prompts and tasks, model files, their vocabularies, types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from benchctl.errors import EngineError, UsageError
from benchctl.measurement.prepare import probed_engine, unfit_types
from benchctl.models.file_kind import check_kind
from benchctl.models.gguf_header import read_header
from benchctl.models.sources import ModelSearch
from benchctl.prompts.load import Suite, load_suite
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.document import Document, read_document
from benchctl.recipes.problems import KeyPath, Problem, did_you_mean, quoted
from benchctl.recipes.schema import ModelSpec, Recipe
from benchctl.recipes.source import BundledSource, PathSource, parse_source
from benchctl.recipes.speculation import SPECULATION_TYPES
from benchctl.text import one_line


def file_problems(recipe: Recipe, path: Path) -> list[Problem]:
    """Return what is wrong with the files that the good recipe in `path` names, by the line that names them.

    Nothing is fetched: what only the hub has is not checked.
    """
    document = read_document(path)
    messages = [*_prompts(document, recipe, path.parent), *_models(recipe, path.parent), *_types(recipe, path.parent)]
    problems = {Problem(document.line(key), key, message): None for key, message in messages}
    return sorted(problems, key=lambda problem: problem.line)


def _prompts(document: Document, recipe: Recipe, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    key: KeyPath = ("prompts", "suite")
    try:
        suite = load_suite(recipe.prompts.suite, recipe_folder=folder, skip_bad=recipe.prompts.skip_bad)
    except UsageError as error:
        yield key, _message(error)
        return
    for index, task in enumerate(recipe.prompts.tasks or ()):
        if problem := _unknown(suite, task):
            task_key: KeyPath = ("prompts", "tasks", index)
            yield (task_key if task_key in document.lines else ("prompts", "tasks")), problem


def _unknown(suite: Suite, task: str) -> str | None:
    try:
        suite.select([task], 1)
    except UsageError as error:
        return _message(error)
    return None


def _types(recipe: Recipe, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    """Yield types that are none of benchctl's names and that the engine's program, where it may be run, does not list.

    Only an engine that lists its types at once is asked; the others' methods are checked before anything starts.
    """
    for part in recipe.parts.values():
        strange = {
            name: arm.name
            for arm in part.arms
            for name in (arm.speculation.types if arm.speculation else ())
            if name not in SPECULATION_TYPES
        }
        if not strange or not adapter_of(part.engine.kind).lists_types:
            continue
        listed, reason = _listed_types(part, folder)
        for name, arm in strange.items():
            if name not in listed:
                near = did_you_mean(name, listed or SPECULATION_TYPES)
                yield ("arms",), f"arm {arm}: benchctl knows no type {quoted(name)}, {reason}.{near}"


def _listed_types(recipe: Recipe, folder: Path) -> tuple[Sequence[str], str]:
    """Return the types of the engine's program, and what is said of a type that is not among them."""
    try:
        _, capabilities = probed_engine(recipe, folder, None, trusted=False)
    except EngineError:
        return (), "and there is no engine here that could be asked for its own"
    except UsageError:
        return (), "and the engine that the recipe names is not run for a check"
    return capabilities.speculation_types, f"and {quoted(str(capabilities.binary))} has none of that name"


def _models(recipe: Recipe, folder: Path) -> Iterator[tuple[KeyPath, str]]:
    for part in recipe.parts.values():
        form = adapter_of(part.engine.kind).model_format
        if form == "served":
            continue
        files = {}
        specs: dict[str, ModelSpec | None] = {"target": part.models.target, "draft": part.models.draft}
        for role, spec in specs.items():
            if spec is None:
                continue
            try:
                files[role] = _local(spec.source, folder, gguf=form == "gguf")
            except UsageError as error:
                yield ("models", role, "source"), _message(error, _nearest_file(spec.source, folder))
        if target := files.get("target"):
            yield from ((("models", "draft"), problem) for problem in unfit_types(part, target, files.get("draft")))


def _local(source: str, folder: Path, *, gguf: bool) -> Path | None:
    """Return the GGUF file of a source of this machine; `None` for others, a folder, or a model not yet converted."""
    try:
        parsed = parse_source(source)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not isinstance(parsed, PathSource | BundledSource):
        return None
    if not gguf or (isinstance(parsed, PathSource) and (Path(parsed.path).suffix.lower() != ".gguf")):
        ModelSearch(folder).first(source, safetensors=True)
        return None
    files = ModelSearch(folder).files(source)
    check_kind([read_header(file) for file in files])
    return files[0]


def _nearest_file(source: str, folder: Path) -> str:
    """Return the nearest name beside a file that is not there, as a sentence; or nothing."""
    path = folder / Path(source).expanduser()
    if path.exists() or not path.parent.is_dir():
        return ""
    return did_you_mean(path.name, [file.name for file in path.parent.iterdir()]).strip()


def _message(error: UsageError, instead: str = "") -> str:
    message = error.what if error.what.endswith(".") else f"{error.what}."
    fix = instead or " ".join((error.fix or "").split("\n"))
    where = f"{quoted(error.where)}: " if error.where and "/" in error.where else ""
    return one_line(f"{where}{message} {fix}".strip(), 400)
