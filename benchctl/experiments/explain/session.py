"""What `benchctl breakeven` measures: arms of synthetic acceptance, or what the target alone takes to verify.

With synthetic acceptance the engine accepts draft tokens at random, with a given probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.measurement.plan import with_blocks
from benchctl.measurement.prepare import RecipeContext, probed_engine
from benchctl.measurement.progress import RunProgress, shown_steps
from benchctl.measurement.run import signals_interrupt, start_run
from benchctl.measurement.widths import DEEPEST, Widths, measure_widths, with_free_drafts
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


def measure_synthetic(
    context: RecipeContext,
    depths: Sequence[int],
    levels: Sequence[float],
    blocks: str | None,
    out: Path,
    progress: RunProgress,
    command: Sequence[str],
    *,
    binary: str | None,
    models_dir: Path | None,
) -> Path:
    """Measure the recipe with its synthetic arms, with the named depths if the recipe is a file; return the folder.

    `depths`, `levels`: as of `with_synthetic_arms`. `command`: the command line, for the manifest.
    """
    extended = with_synthetic_arms(context.recipe, depths, levels)
    if blocks:
        extended = with_blocks(extended, blocks)
    with signals_interrupt():
        _, capabilities = probed_engine(
            context.recipe, context.folder, binary, trusted=context.trusted, typed=context.typed
        )
        if capabilities.details.get("has_synthetic") is False:
            raise no_synthetic(capabilities.kind, str(capabilities.binary))
        # The recipe was permitted. benchctl itself adds the synthetic arms, so they need no permission.
        permitted = replace(context, typed=context.typed | {"arms"})
        prepared = permitted.prepare(binary, models_dir, progress.note, extended)
    return start_run(prepared, out, progress, list(command))


def measure_target_alone(
    context: RecipeContext, depths: Sequence[int], *, binary: str | None, models_dir: Path | None, quiet: bool
) -> Widths:
    """Measure what verifying 1 and every depth + 1 tokens costs the target; `depths`: none for 1 to `DEEPEST`."""
    must_be_one_condition(context.recipe)
    depths = depths or range(1, DEEPEST + 1)
    recipe = with_free_drafts(context.recipe, max(depths))
    with shown_steps(quiet=quiet) as show, signals_interrupt():
        prepared = context.prepare(binary, models_dir, lambda text: show(text, 0, 0), recipe)
        return measure_widths(prepared, depths, show)
