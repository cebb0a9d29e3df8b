"""A recipe file, found, read, expanded and checked: one `Recipe`, or one error that lists everything wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder
from benchctl.recipes.adapters import adapter_of, kinds
from benchctl.recipes.axes import axes_of, lists_as_axes, merged, needs_draft, too_many_arms
from benchctl.recipes.document import Document, read_document
from benchctl.recipes.matrix import MAX_ARMS, Combination, ExpandedArm, Found, expand, replaced
from benchctl.recipes.problems import KeyPath, Plain, Problem, RecipeError, did_you_mean, quoted
from benchctl.recipes.relations import relation_problems
from benchctl.recipes.schema import (
    ABOUT_MODELS,
    Arm,
    AutoBlocks,
    CacheTypes,
    ModelPair,
    ModelSpec,
    Recipe,
    RecipeBase,
)
from benchctl.recipes.translate import translate, value_at
from benchctl.recipes.written import WrittenRecipe
from benchctl.text import one_line

EXPANDED = "expanded"
"""The key of a file whose arms are written out: each with its setup and condition, as a run has them."""
_WRITTEN_FOR_EVERY_ENGINE: Mapping[str, object] = {
    "binary": None,
    "url": None,
    "api_key_env": None,
    "device": "auto",
    "dtype": "auto",
    "threads": None,
    "args": [],
    "env": {},
    "health_timeout_s": 300.0,
}
"""Keys of `engine` and their defaults, from when all engines had the same ones: they mean nothing there."""


def load_recipe(path: Path, *, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Load a recipe file with its matrices expanded, and every arm under every condition.

    `overrides` replaces values by dotted key before anything is checked: `{"blocks": 5, "engine.binary": "/opt/x"}`.
    Where the file has axes, every arm is there under every combination of them. Raises RecipeError that lists every
    problem of the file.
    """
    return _recipe_of(read_document(path), overrides or {})


def recipe_of_options(data: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a command line's options make, from its plain data; errors as `load_recipe`."""
    return _recipe_of(Document(Path("the command line"), dict(data)), {})


def _recipe_of(document: Document, overrides: Mapping[str, object]) -> Recipe:
    data = dict(document.data)
    for key, value in overrides.items():
        data = replaced(data, key.split("."), value)
    if data.get(EXPANDED) is True:
        recipe, wrong = _saved({key: value for key, value in data.items() if key != EXPANDED})
    else:
        data, elsewhere = lists_as_axes(data)
        if data.get("matrix") is None:
            recipe, wrong = _loaded(data, Combination())
        else:
            recipe, wrong = _with_axes(data, elsewhere)
    if wrong or recipe is None:
        raise _recipe_error(document, wrong)
    return recipe


def _saved(data: dict[str, Plain]) -> tuple[Recipe | None, Found]:
    """Return the recipe of a file that benchctl saved with a run, whose arms are written out with their conditions."""
    try:
        recipe = stored_recipe(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        return None, translate(errors, data, Recipe)
    return recipe, [problem for part in recipe.parts.values() for problem in relation_problems(part)]


def _with_axes(data: dict[str, Plain], elsewhere: Mapping[str, KeyPath]) -> tuple[Recipe | None, Found]:
    """Return the recipe of a file with axes, each combination loaded as a recipe of its own."""
    combinations, wrong = axes_of(data["matrix"], elsewhere)
    wrong += too_many_arms(combinations, len(_expanded_arms(data)[0]))
    if wrong:
        return None, wrong
    drafts = [value_at(combination.filled(data), ("models", "draft")) for combination in combinations]
    only_with_draft = any(drafts) and not all(drafts)
    parts: list[tuple[Combination, Recipe]] = []
    for combination in combinations:
        recipe, problems = _loaded(data, combination, only_with_draft=only_with_draft)
        wrong += problems
        if recipe is not None:
            parts.append((combination, recipe))
    if wrong:
        return None, wrong
    return merged(parts)


def _loaded(
    whole: dict[str, Plain], combination: Combination, *, only_with_draft: bool = False
) -> tuple[Recipe | None, Found]:
    """Return the recipe of a file's data under a combination of its axes, or what is wrong with it in the file.

    `only_with_draft`: an arm that needs a draft model is left out where there is none, instead of being refused.
    """
    wrong: Found = []
    written = None
    data = combination.filled(whole)
    try:
        written = WrittenRecipe.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        wrong += translate(errors, data, WrittenRecipe)
    if data.get("models") is None and not _serves(data.get("engine")):
        wrong.append((("models",), f"this key is missing; expected {ABOUT_MODELS[0].lower()}{ABOUT_MODELS[1:]}"))
    expanded, wrong_matrices = _expanded_arms(data)
    arms, wrong_arms = _concrete(expanded)
    reported = {path for path, _ in wrong}
    wrong += wrong_matrices + [found for found in _in_file(wrong_arms, expanded) if found[0] not in reported]
    if written is not None and not wrong:
        if only_with_draft and written.models is not None and written.models.draft is None:
            expanded = [origin for origin, arm in zip(expanded, arms, strict=True) if not needs_draft(arm)]
            arms = [arm for arm in arms if not needs_draft(arm)]
        recipe = _filled_in(written, arms)
        wrong = _in_file(relation_problems(recipe), expanded)
        if not wrong:
            return recipe, []
    return None, [(combination.in_file(path), message) for path, message in wrong]


def _serves(engine: Plain) -> bool:
    """Whether a file's `engine` is an endpoint that runs already, with models of its own."""
    kind = engine.get("kind") if isinstance(engine, dict) else None
    return kind in kinds() and adapter_of(kind).model_format == "served"


def _filled_in(written: WrittenRecipe, arms: list[Arm]) -> Recipe:
    """Return the recipe of a file with these arms, each with what the file sets once for all of them."""
    cache = written.cache_type
    every = {
        "concurrency": written.concurrency,
        "rate": written.rate,
        "context_length": written.context_length,
        "cache_type": CacheTypes(target=cache, draft=cache) if isinstance(cache, str) else cache,
    }
    own = {
        "models": written.models or ModelPair(target=ModelSpec(source="served:")),
        "blocks": AutoBlocks() if written.blocks == "auto" else written.blocks,
        "arms": [arm.model_copy(update=every) for arm in arms],
    }
    return Recipe(**{key: getattr(written, key) for key in RecipeBase.model_fields} | own)


def _concrete(expanded: list[ExpandedArm]) -> tuple[list[Arm], Found]:
    """Return the arms whose placeholders are filled in, and what is wrong with their values."""
    arms, wrong = [], []
    for index, arm in enumerate(expanded):
        try:
            arms.append(Arm.model_validate(arm.data))
        except ValidationError as error:
            errors = error.errors(include_url=False, include_input=False)
            wrong += [(("arms", index, *path), message) for path, message in translate(errors, arm.data, Arm)]
    return arms, wrong


def find_recipe(name_or_path: str) -> Path:
    """Return the file of a recipe: a path, or the name of a shipped recipe. Raises UsageError."""
    path = Path(name_or_path).expanduser()
    if path.exists():
        return path
    shipped = shipped_recipes()
    if name_or_path in shipped:
        return shipped[name_or_path]
    near = did_you_mean(path.stem if path.suffix in {".yaml", ".yml"} else name_or_path, shipped).strip()
    raise UsageError(
        f"there is no recipe file '{one_line(name_or_path, 200)}', and benchctl ships none of that name.",
        fix=near or "List the shipped recipes: benchctl recipes list",
    )


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that benchctl ships, by name."""
    return {path.stem: path for path in sorted(shipped_folder("recipes").glob("*.yaml"), key=lambda path: path.stem)}


def _expanded_arms(data: dict[str, Plain]) -> tuple[list[ExpandedArm], Found]:
    if not isinstance(data.get("arms"), list):
        return [], []
    arms, wrong = expand(data["arms"])
    if len(arms) > MAX_ARMS:
        wrong.append((("arms",), f"expected at most {MAX_ARMS} arms, got {len(arms)}."))
        arms = arms[:MAX_ARMS]
    return arms, wrong


def _origin(path: KeyPath, arms: list[ExpandedArm]) -> KeyPath:
    """Return where in the file the value at an expanded path stands."""
    if len(path) > 1 and path[0] == "arms" and isinstance(path[1], int):
        return ("arms", arms[path[1]].index, *path[2:])
    return path


def _in_file(found: Found, arms: list[ExpandedArm]) -> Found:
    """Bring paths back to the file; a problem of only some values of a matrix names them."""
    times = Counter((_origin(path, arms), message) for path, message in found)
    placed = []
    for path, message in found:
        here, values = _origin(path, arms), ""
        if len(path) > 1 and path[0] == "arms" and isinstance(path[1], int):
            arm = arms[path[1]]
            if times[here, message] < sum(other.index == arm.index for other in arms):
                values = f" (matrix: {', '.join(f'{key}={quoted(value)}' for key, value in arm.values.items())})"
        placed.append((here, message + values))
    return placed


def _recipe_error(document: Document, wrong: Found) -> RecipeError:
    problems = {Problem(document.line(path), path, message): None for path, message in wrong}
    return RecipeError(document.file, sorted(problems, key=lambda problem: problem.line))


def stored_recipe(document: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a manifest holds. Raises ValidationError, UsageError (no such engine here)."""
    engine = document.get("engine")
    if isinstance(engine, Mapping) and isinstance(engine.get("kind"), str):
        own = adapter_of(engine["kind"]).spec.model_fields
        former = {key for key, value in _WRITTEN_FOR_EVERY_ENGINE.items() if key in engine and engine[key] == value}
        document = {**document, "engine": {key: engine[key] for key in engine if key in own or key not in former}}
    return Recipe.model_validate(document)
