"""Another's run and the same work here: found or measured, verified, and held against each other's claims."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HUB_CACHE
from rich.console import Console

from benchctl.analysis.comparison.compare import compare_runs
from benchctl.analysis.comparison.replication import Replication, replication_of, replication_of_imported
from benchctl.analysis.comparison.workload import OtherModelsError, require_same_workload
from benchctl.data.manifest import ModelIdentity
from benchctl.data.store import RunData, open_run, resolve_run
from benchctl.errors import UsageError
from benchctl.lossless.analysed import analyse_run, judge
from benchctl.lossless.session import explain
from benchctl.measure.plan import keep_only, with_second_baseline
from benchctl.measure.prepare import Prepared, new_manifest
from benchctl.measure.progress import progress_for
from benchctl.measure.requested import Standing, recipe_must_be_unchanged, requested_recipe, standing_of
from benchctl.measure.run import signals_interrupt, start_run
from benchctl.models.files import file_sha256
from benchctl.paths import cache_folder
from benchctl.permissions import settle
from benchctl.recipes.load import shipped_recipes
from benchctl.recipes.saved import with_settings


@dataclass(frozen=True)
class Models:
    """Where the models of another's run lie here, as far as it was named."""

    target: str | None
    draft: str | None
    folder: Path | None


def replication(
    theirs: str,
    measured_by: str | None,
    results: Path,
    arms: Sequence[str],
    models: Models,
    binary: str | None,
    *,
    trusted: bool,
    quiet: bool,
) -> Replication:
    """Compare a run with the same work here.

    `measured_by`: a run that was made here already, or a recipe; `None`: the recipe of their run is measured. Raises
    UsageError where it is other work than theirs, EngineError, StorageError.
    """
    run = open_run(resolve_run(theirs, results))
    if measured_by is not None and not (
        Path(measured_by).suffix in (".yaml", ".yml") or measured_by in shipped_recipes()
    ):
        own = open_run(resolve_run(measured_by, results))
    else:
        standing = (
            _their_recipe(run, models, trusted=trusted)
            if measured_by is None
            else _own_recipe(measured_by, results, models, trusted=trusted)
        )
        own = _measured(run, standing, results, arms, models.folder, binary, quiet=quiet)
    if run.manifest is None:
        return replication_of_imported(run.records, analyse_run(own), str(run.folder), str(own.folder))
    return replication_of(compare_runs(run, own, judge=judge, arms=arms or None))


def _own_recipe(name: str, results: Path, models: Models, *, trusted: bool) -> Standing:
    named = {"target": models.target, "draft": models.draft}
    settings = [f"models.{role}.source={source}" for role, source in named.items() if source is not None]
    return requested_recipe(name, results, settings=settings, trust=trusted)


def _their_recipe(run: RunData, models: Models, *, trusted: bool) -> Standing:
    """Return the recipe of a run with the models as they lie here. Raises UsageError where it was changed."""
    manifest = run.manifest
    if manifest is None:
        raise UsageError(
            "These records have no recipe, so what they measured is not known.",
            where=str(run.folder),
            fix=f"Write a recipe of the same work and name it: benchctl compare --replicate {run.folder} RECIPE",
        )
    recipe_must_be_unchanged(manifest, run.folder)
    standing = standing_of(run, trusted=trusted)
    settings: dict[str, Any] = {}
    if not manifest.setups:
        for role, given, model in (("target", models.target, manifest.target), ("draft", models.draft, manifest.draft)):
            source = given or (None if model is None else _by_hash(model, models.folder))
            if model is not None and source is not None:
                settings[f"models.{role}"] = {"source": str(Path(source).absolute()), "quantize": None}
    binary = standing.recipe.binary
    if binary is not None and "/" in binary and not Path(binary).expanduser().is_file():
        settings["engine.binary"] = None  # theirs lies elsewhere here
    recipe = with_settings(standing.recipe, settings)
    if settings:
        settle(recipe, standing.folder, typed=[key for key in settings if key != "engine.binary"])
    return replace(standing, recipe=recipe)


def _by_hash(model: ModelIdentity, models_dir: Path | None) -> Path | None:
    """Return the local GGUF file of a model, by size and SHA-256; `None` where there is none, or of several files."""
    if len(model.files) != 1:
        return None
    (wanted,) = model.files
    for path in _model_files(models_dir):
        with suppress(OSError):
            if path.stat().st_size == wanted.size and file_sha256(path) == wanted.sha256:
                return path
    return None


def _model_files(models_dir: Path | None) -> Iterator[Path]:
    """Yield the GGUF files of the folders that models usually lie in."""
    for folder in (models_dir, Path(HF_HUB_CACHE), cache_folder()):
        if folder is not None:
            yield from sorted(folder.expanduser().rglob("*.gguf"))
    for folder in (Path.cwd(), Path.cwd() / "models", Path.home() / "models"):
        yield from sorted(folder.glob("*.gguf"))


def _measured(
    run: RunData,
    standing: Standing,
    results: Path,
    arms: Sequence[str],
    models_dir: Path | None,
    binary: str | None,
    *,
    quiet: bool,
) -> RunData:
    """Measure a recipe, verify its output, and return the run. Raises UsageError where it is other work than theirs."""
    progress = progress_for(Console(stderr=True), quiet=quiet)
    recipe = with_second_baseline(keep_only(standing.recipe, arms) if arms else standing.recipe)
    with signals_interrupt():
        try:
            progress.waiting("checking the engine, the models and the prompts")
            prepared = standing.prepare(binary, models_dir, progress.note, recipe)
        except UsageError as error:
            if (error.where or "").startswith("models."):
                error.fix = f"{error.fix or ''} Or name the files: --target FILE --draft FILE".strip()
            raise
        finally:
            progress.end()
    _require_same(run, prepared)
    own = open_run(start_run(prepared, results, progress, ["benchctl", *sys.argv[1:]]))
    explain(
        own,
        baseline=None,
        arms=None,
        depth="full",
        binary=binary,
        models_dir=models_dir,
        trusted=standing.trusted,
        quiet=quiet,
    )
    return open_run(own.folder)


def _require_same(run: RunData, prepared: Prepared) -> None:
    """Raise UsageError where what is about to be measured is not what they measured."""
    if run.manifest is None:
        return
    try:
        require_same_workload(run, replace(run, manifest=new_manifest(prepared, []), folder=Path("here")))
    except OtherModelsError as error:
        raise UsageError(error.what, where=error.where, fix="Name their files: --target FILE --draft FILE") from None
