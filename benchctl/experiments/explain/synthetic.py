"""A recipe's arms beside arms whose draft tokens are accepted at random, at requested rates.

The speed of an engine at an acceptance does not depend on whose draft it was: an engine that accepts at random shows
the speed-up at every acceptance, whatever the draft is worth. The text is not a model's output.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.load import stored_recipe
from benchctl.recipes.schema import MAX_NAME, Arm, Recipe
from benchctl.recipes.speculation import MAX_DEPTH

LEVELS = (0.0, 0.5, 0.8, 1.0)
"""Probabilities that a draft token is accepted, given those before it."""
SUFFIX = "-breakeven"


def drafted_arms(recipe: Recipe) -> list[Arm]:
    """Return the arms that a model drafts for to a depth that the recipe names, each depth once."""
    found: dict[int, Arm] = {}
    for arm in recipe.arms:
        speculation = arm.speculation
        if (
            speculation
            and speculation.max is not None
            and len(speculation.types) == 1
            and speculation.types[0].startswith("draft-")
        ):
            found.setdefault(speculation.max, arm)
    return [found[depth] for depth in sorted(found)]


def with_synthetic_arms(recipe: Recipe, depths: Sequence[int] = (), levels: Sequence[float] = LEVELS) -> Recipe:
    """Return the recipe with an arm more for every depth and level. Raises UsageError.

    `depths`: instead of those that the recipe's arms draft to; the recipe's own arms stay in either case.
    """
    rule = adapter_of(recipe.engine.kind).synthetic
    if rule is None:
        raise UsageError(
            f"The engine {recipe.engine.kind} has no synthetic acceptance, so the curve cannot be measured with it.",
            where="engine.kind",
            fix="Use llama.cpp or vllm; or work it out from numbers: benchctl predict --alpha 0.8 --cost 0.1",
        )
    if not levels or not all(0 <= level <= 1 for level in levels):
        raise UsageError("An acceptance is a share from 0 to 1.", where="--acceptance", fix="Write 0,0.5,0.8,1.")
    if not all(1 <= depth <= MAX_DEPTH for depth in depths):
        raise UsageError(f"A draft depth is a number from 1 to {MAX_DEPTH}.", where="--depth", fix="Write 2,4,8.")
    if len(set(map(recipe.group_of, recipe.arms))) > 1 or any(arm.setup for arm in recipe.arms):
        raise UsageError(
            "Break-even is measured for one engine, one pair of models and one condition.",
            where="matrix, concurrency, rate, temperature, context_length",
            fix="Leave them out of the recipe; run each on its own.",
        )
    drafted = drafted_arms(recipe)
    if not drafted:
        raise UsageError(
            "No arm of this recipe is drafted for by a model to a depth of its own.",
            where="arms",
            fix="Name one: speculation: {type: draft-simple, max: 4}",
        )
    by_depth = {arm.speculation.max: arm for arm in drafted if arm.speculation}
    synthetic = []
    for depth in sorted(set(depths)) or sorted(depth for depth in by_depth if depth):
        base = by_depth.get(depth, drafted[0])
        for level in sorted(set(levels)):
            args, options = rule([level ** (place + 1) for place in range(depth)])
            assert base.speculation is not None
            speculation = base.speculation.model_copy(
                update={"max": depth, "min": None, "p_min": None,
                        "options": {**(base.speculation.options or {}), **options} or None}
            )  # fmt: skip
            changed = {"name": f"synth_d{depth}_a{round(100 * level)}", "speculation": speculation}
            synthetic.append(base.model_copy(update={**changed, "args": [*base.args, *args]}))
    document = recipe.model_dump(mode="json")
    document["name"] = f"{recipe.name[: MAX_NAME - len(SUFFIX)]}{SUFFIX}"
    document["arms"] = [arm.model_dump(mode="json") for arm in [*recipe.arms, *synthetic]]
    try:
        return stored_recipe(document)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"Synthetic arms do not fit into this recipe: {first['msg']}.", where="arms") from None
