"""What `benchctl breakeven` measures: a recipe with synthetic arms, or what the target alone takes to verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchctl.experiments.explain.synthetic import must_be_one_condition, no_synthetic, with_synthetic_arms
from benchctl.measurement.plan import with_blocks
from benchctl.measurement.prepare import RecipeContext, probed_engine
from benchctl.measurement.progress import RunProgress, shown_steps
from benchctl.measurement.run import signals_interrupt, start_run
from benchctl.measurement.widths import DEEPEST, Widths, measure_widths, with_free_drafts


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
