"""The recipe of a run, as it is saved with it, and as it is run again: with other arms or other settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.document import dump_document
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.from_options import DRAFT_TYPE, LOOKUP_TYPE, absolute, arm_of_type
from benchctl.recipes.load import EXPANDED, WrittenArm, recipe_of_options
from benchctl.recipes.matrix import expand
from benchctl.recipes.schema import MAX_ARM_NAME, Arm, Recipe
from benchctl.recipes.speculation import takes_draft
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
    for key in settings if recipe.setups else ():
        if key.partition(".")[0] in ("engine", "models"):
            raise UsageError(
                f"The recipe of this run has {len(recipe.setups)} setups, so {key} has several values.",
                where=f"--set {key}",
                fix="Change it in the recipe file.",
            )
    return recipe_of_options(_written_out(recipe), settings)


def _written_out(recipe: Recipe) -> dict[str, Any]:
    return {EXPANDED: True, **recipe.model_dump(mode="json")}


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
    chosen = list(types) or [LOOKUP_TYPE if recipe.models.draft is None else DRAFT_TYPE]
    expanded, wrong = expand([arm_of_type(kind, sweeps) for kind in chosen])
    if wrong:
        raise UsageError(wrong[0][1], where="--type, --depth, -L")
    compared, data = recipe.compared, _written_out(recipe)
    data["arms"] = []
    for baseline in recipe.arms:
        if compared[baseline.name].is_baseline:
            data["arms"] += [baseline.model_dump(mode="json")]
            data["arms"] += [arm for new in expanded for arm in _arms(recipe, baseline, new.data)]
    used = {arm["setup"] for arm in data["arms"]}
    data["setups"] = [setup for setup in data["setups"] if setup["name"] in used]
    for key in ("engine", "models") if data["setups"] else ():
        data[key] = data["setups"][0][key]
    return recipe_of_options(data)


def _arms(recipe: Recipe, baseline: Arm, new: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a new arm beside a baseline; where it takes a draft model, an arm for every setup of the group."""
    types = (new["speculation"]["type"],)
    places: list[str | None] = [baseline.setup]
    if takes_draft(types) and recipe.setups:
        places = [setup.name for setup in recipe.setups if setup.group == baseline.group]
    like = next((arm for arm in recipe.arms if arm.speculation and arm.speculation.types == types), baseline)
    kept = like.speculation.model_dump(mode="json", exclude_none=True) if like.speculation else {}
    kept |= new["speculation"]
    least, most = kept.get("min"), kept.get("max")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        del kept["min"]
    suffix = baseline.name.removeprefix(baseline.of or baseline.name)
    for place in places:
        here = suffix
        if place is not None and place != baseline.setup:
            group = f"-{baseline.group}"
            here = suffix.replace(group, f"-{place}", 1) if group in suffix else f"{suffix}-{place}"
        yield baseline.model_dump(mode="json") | {
            "name": f"{new['name']}{here}"[:MAX_ARM_NAME],
            "of": None if baseline.of is None else new["name"],
            "setup": place,
            "speculation": kept,
            "args": like.args,
        }
