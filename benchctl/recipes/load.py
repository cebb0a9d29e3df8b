"""A recipe file, found, read, expanded and checked: one `Recipe`, or one error that lists everything wrong with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.paths import shipped_folder
from benchctl.recipes.conditions import take_conditions, under_conditions
from benchctl.recipes.document import Document, read_document
from benchctl.recipes.matrix import MAX_ARMS, ExpandedArm, expand
from benchctl.recipes.problems import KeyPath, Plain, Problem, RecipeError, did_you_mean, quoted
from benchctl.recipes.relations import relation_problems
from benchctl.recipes.schema import Recipe
from benchctl.recipes.translate import translate
from benchctl.text import one_line


def load_recipe(path: Path, *, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Load a recipe file with its matrices expanded, and every arm under every condition.

    `overrides` replaces values by dotted key before anything is checked: `{"blocks": 5, "engine.binary": "/opt/x"}`.
    Raises RecipeError that lists every problem of the file.
    """
    document = read_document(path)
    data = dict(document.data)
    for key, value in (overrides or {}).items():
        data = _replaced(data, key.split("."), value)
    data, conditions, wrong = take_conditions(data, document.written.get)
    arms, wrong_arms = _expanded_arms(data)
    wrong += wrong_arms
    if wrong_arms and not arms:
        raise _recipe_error(document, wrong)
    if arms is not None:
        data["arms"] = [arm.data for arm in arms]
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        wrong += _in_file(translate(errors, data, Recipe, lambda at: document.written.get(_origin(at, arms))), arms)
        raise _recipe_error(document, wrong) from None
    wrong += _in_file(relation_problems(recipe), arms)
    if not wrong:
        recipe, problems = under_conditions(recipe, conditions)
        wrong += _in_file(problems, arms)
    if wrong:
        raise _recipe_error(document, wrong)
    return recipe


def find_recipe(name_or_path: str) -> Path:
    """Return the file of a recipe: a path, or the name of one that benchctl ships. Raises UsageError."""
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


def _expanded_arms(data: dict[str, Plain]) -> tuple[list[ExpandedArm] | None, list[tuple[KeyPath, str]]]:
    if not isinstance(data.get("arms"), list):
        return None, []
    arms, wrong = expand(data["arms"])
    if len(arms) > MAX_ARMS:
        wrong.append((("arms",), f"expected at most {MAX_ARMS} arms, got {len(arms)}."))
        arms = arms[:MAX_ARMS]
    return arms, wrong


def _replaced(data: dict[str, Plain], keys: list[str], value: object) -> dict[str, Plain]:
    inner = data.get(keys[0])
    if len(keys) == 1:
        return {**data, keys[0]: value}
    return {**data, keys[0]: _replaced(inner if isinstance(inner, dict) else {}, keys[1:], value)}


def _origin(path: KeyPath, arms: list[ExpandedArm] | None) -> KeyPath:
    """Return where in the file the value at an expanded path stands."""
    if arms is not None and len(path) > 1 and path[0] == "arms" and isinstance(path[1], int):
        return ("arms", arms[path[1]].index, *path[2:])
    return path


def _in_file(found: list[tuple[KeyPath, str]], arms: list[ExpandedArm] | None) -> list[tuple[KeyPath, str]]:
    """Bring paths back to the file; a problem of only some values of a matrix says of which."""
    times = Counter((_origin(path, arms), message) for path, message in found)
    placed = []
    for path, message in found:
        here, values = _origin(path, arms), ""
        if arms is not None and len(path) > 1 and path[0] == "arms" and isinstance(path[1], int):
            arm = arms[path[1]]
            if times[here, message] < sum(other.index == arm.index for other in arms):
                values = f" (matrix: {', '.join(f'{key}={quoted(value)}' for key, value in arm.values.items())})"
        placed.append((here, message + values))
    return placed


def _recipe_error(document: Document, wrong: list[tuple[KeyPath, str]]) -> RecipeError:
    problems = {Problem(document.line(path), path, message): None for path, message in wrong}
    return RecipeError(document.file, sorted(problems, key=lambda problem: problem.line))
