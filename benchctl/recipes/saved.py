"""The recipe of a run, as it is saved with it, and as it is run again: with other arms or other settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.document import dump_document
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.from_options import DRAFT_TYPE, LOOKUP_TYPE, absolute, arm_of_type
from benchctl.recipes.load import EXPANDED, WrittenArm, stored_recipe
from benchctl.recipes.matrix import expand, replaced
from benchctl.recipes.problems import path_text
from benchctl.recipes.relations import relation_problems
from benchctl.recipes.schema import MAX_ARM_NAME, Arm, Recipe
from benchctl.recipes.speculation import Speculation, takes_draft
from benchctl.text import one_line

RECIPE = "recipe.yaml"
"""The file of it in a run's folder."""


def recipe_text(recipe: Recipe, folder: Path) -> str:
    """Return the recipe that is run as a file that means the same anywhere.

    `folder`: what its relative paths start from. A recipe of several conditions or setups has every arm written out.
    """
    data: dict[str, Any] = recipe.model_dump(mode="json", exclude_defaults=True)
    data["engine"] = _portable(recipe.engine, data.get("engine", {}))
    for setup, own in zip(recipe.setups, data.get("setups", []), strict=True):
        own["engine"] = _portable(setup.engine, own.get("engine", {}))
    for key, places in (("suite", (folder, Path.cwd())), ("context", (folder,))):
        if data["prompts"].get(key) is not None:
            data["prompts"][key] = absolute(data["prompts"][key], *places)
    for pair in (data["models"], *(own["models"] for own in data.get("setups", []))):
        for model in filter(None, pair.values()):
            model["source"] = absolute(model["source"], folder)
    data["arms"] = [arm for arm in data["arms"] if not arm.get("again")]
    if recipe.setups or any(arm.keys() - WrittenArm.model_fields for arm in data["arms"]):
        data[EXPANDED] = True
    data = {key: data[key] for key in (EXPANDED, *Recipe.model_fields) if key in data}
    head = f"# {one_line(recipe.description or recipe.name)}\n# As it was run; again with: benchctl run THIS-FILE\n"
    return head + dump_document(data)


def _portable(engine: EngineSpec, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return an engine's data with its kind, and a program in the working directory by its whole path."""
    found = {"kind": engine.kind, **data}
    if "/" in (found.get("binary") or ""):
        found["binary"] = absolute(found["binary"], Path.cwd())
    return found


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """Return a run's recipe with other values by dotted key, as `--set` gives them. Raises UsageError."""
    document: dict[str, Any] = recipe.model_dump(mode="json")
    for key, value in settings.items():
        if recipe.setups and key.partition(".")[0] in ("engine", "models"):
            raise UsageError(
                f"The recipe of this run has {len(recipe.setups)} setups, so {key} has several values.",
                where=f"--set {key}",
                fix="Change it in the recipe file.",
            )
        document = replaced(document, key.split("."), value)
    try:
        changed = stored_recipe(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = f"--set {path_text(tuple(first['loc']))}"
        raise UsageError(f"This does not fit into the run's recipe: {first['msg']}.", where=where) from None
    return _checked(changed)


def with_types(recipe: Recipe, types: Sequence[str], sweeps: Mapping[str, Sequence[int | float | str]]) -> Recipe:
    """Return a run's recipe with its baselines and arms of these types, under each of its conditions.

    A new arm keeps what an arm of its type has beside what is swept. Raises UsageError for what cannot be run.
    """
    if not adapter_of(recipe.engine.kind).launched:
        raise UsageError(
            "The endpoints of this run speculate as they were started, so no other type can be measured there.",
            where="--type",
            fix="Leave it out; or name endpoints in a recipe.",
        )
    compared = recipe.compared
    baselines = [arm for arm in recipe.arms if compared[arm.name].is_baseline]
    chosen = list(types) or [LOOKUP_TYPE if recipe.models.draft is None else DRAFT_TYPE]
    expanded, wrong = expand([arm_of_type(kind, sweeps) for kind in chosen])
    if wrong:
        raise UsageError(wrong[0][1], where="--type, --depth, -L")
    arms = [
        arm for first in baselines for arm in (first, *(a for new in expanded for a in _arms(recipe, first, new.data)))
    ]
    setups = [setup for setup in recipe.setups if any(arm.setup == setup.name for arm in arms)]
    first = {"engine": setups[0].engine, "models": setups[0].models} if setups else {}
    return _checked(recipe.model_copy(update={"arms": arms, "setups": setups, **first}))


def _arms(recipe: Recipe, baseline: Arm, new: Mapping[str, Any]) -> Iterator[Arm]:
    """Yield a new arm beside a baseline; where it takes a draft model, an arm for every setup of the group."""
    try:
        given = Speculation.model_validate(new["speculation"])
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = "--type, --depth, -L"
        raise UsageError(f"{path_text(tuple(first['loc']))}: {first['msg']}.", where=where) from None
    places: list[str | None] = [baseline.setup]
    if takes_draft(given.types) and recipe.setups:
        places = [setup.name for setup in recipe.setups if setup.group == baseline.group]
    alike = [arm for arm in recipe.arms if arm.speculation is not None and arm.speculation.types == given.types]
    like = alike[0] if alike else None
    kept = like.speculation.model_dump(exclude_none=True) if like is not None and like.speculation is not None else {}
    kept |= given.model_dump(exclude_none=True)
    if kept.get("min", 0) > kept.get("max", kept.get("min", 0)):
        del kept["min"]
    suffix = baseline.name.removeprefix(baseline.of or baseline.name)
    for place in places:
        here = suffix
        if place is not None and place != baseline.setup:
            group = f"-{baseline.group}"
            here = suffix.replace(group, f"-{place}", 1) if group in suffix else f"{suffix}-{place}"
        yield baseline.model_copy(
            update={
                "name": f"{new['name']}{here}"[:MAX_ARM_NAME],
                "of": None if baseline.of is None else new["name"],
                "setup": place,
                "speculation": Speculation.model_validate(kept),
                "args": baseline.args if like is None else like.args,
            }
        )


def _checked(recipe: Recipe) -> Recipe:
    """Return a recipe whose parts fit together. Raises UsageError."""
    for part in recipe.parts.values():
        if wrong := relation_problems(part):
            raise UsageError("\n".join(f"{path_text(path)}: {message}" for path, message in wrong[:5]))
    return recipe
