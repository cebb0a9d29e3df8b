"""Arms of synthetic acceptance: the engine accepts draft tokens at random with a given probability."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.load import stored_recipe
from benchctl.recipes.schema import MAX_NAME, Arm, Recipe
from benchctl.recipes.speculation import drafts_by_model

SUFFIX = "-breakeven"


def drafted_arms(recipe: Recipe) -> dict[int, Arm]:
    """Return by depth the first arm that a model drafts for to a depth that the recipe names."""
    arms: dict[int, Arm] = {}
    for arm in recipe.arms:
        types, depth = (arm.speculation.types, arm.speculation.max) if arm.speculation else ([], None)
        if depth is not None and len(types) == 1 and drafts_by_model(types[0]):
            arms.setdefault(depth, arm)
    return dict(sorted(arms.items()))


def must_be_one_condition(recipe: Recipe) -> None:
    """Raise UsageError where a recipe has several."""
    if len(set(map(recipe.group_of, recipe.arms))) > 1 or any(arm.setup for arm in recipe.arms):
        raise UsageError(
            "One engine, one pair of models and one condition are measured at a time.",
            where="matrix, concurrency, rate, temperature, context_length, max_tokens",
            fix="Leave them out of the recipe; run each on its own.",
        )


def no_synthetic(engine: str, where: str) -> UsageError:
    """Return that an engine, or this build of it, cannot accept at random."""
    return UsageError(
        f"This {engine} has no synthetic acceptance, so the curve cannot be measured.",
        where=where,
        fix="Use a newer llama.cpp, or vllm; or predict it: benchctl predict --alpha 0.8 --cost 0.1",
    )


def with_synthetic_arms(recipe: Recipe, depths: Sequence[int], levels: Sequence[float]) -> Recipe:
    """Return the recipe with an arm more for every depth and level. Raises UsageError.

    `depths`: instead of those that the recipe's arms draft to; the recipe's own arms stay in either case. `levels`:
    probabilities that a draft token is accepted, given those before it.
    """
    rule = adapter_of(recipe.engine.kind).synthetic
    if rule is None:
        raise no_synthetic(recipe.engine.kind, "engine.kind")
    if not levels or not all(0 <= level <= 1 for level in levels):
        raise UsageError("An acceptance is a share from 0 to 1.", where="--acceptance", fix="Write 0,0.5,0.8,1.")
    must_be_one_condition(recipe)
    drafted = drafted_arms(recipe)
    if not drafted:
        raise UsageError(
            "No arm of this recipe is drafted for by a model to a depth of its own.",
            where="arms",
            fix="Such as: speculation: {type: draft-simple, max: 4}",
        )
    first = next(iter(drafted.values()))
    synthetic = []
    for depth, level in product(sorted(set(depths)) or drafted, sorted(set(levels))):
        base = drafted.get(depth, first)
        assert base.speculation is not None
        args, options = rule([level ** (position + 1) for position in range(depth)])
        all_options = {**(base.speculation.options or {}), **options} or None
        changed = {"max": depth, "min": None, "p_min": None, "options": all_options}
        arm_keys = {"name": f"synth_d{depth}_a{round(100 * level)}", "args": [*base.args, *args]}
        speculation = base.speculation.model_copy(update=changed)
        synthetic.append(base.model_copy(update={**arm_keys, "speculation": speculation}))
    document = recipe.model_dump(mode="json")
    document["name"] = f"{recipe.name[: MAX_NAME - len(SUFFIX)]}{SUFFIX}"
    document["arms"] = [arm.model_dump(mode="json") for arm in [*recipe.arms, *synthetic]]
    try:
        return stored_recipe(document)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"Synthetic arms do not fit into this recipe: {reason}.", where="arms") from None
