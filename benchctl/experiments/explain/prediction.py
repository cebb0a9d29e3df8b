"""What the best depth and its speed-up depend on: from acceptance, draft depth and costs given by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.cost import Prediction, RoundCosts, predict
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALPHA_STEP = 0.05
"""How far the sensitivity varies α."""
COST_FACTOR = 1.25
"""By what it varies the cost of a draft step."""
OVERHEAD_STEP = 0.1
"""What it adds to the overhead of a round, in target steps."""


@dataclass(frozen=True)
class Variation:
    """What the best depth and its speed-up become when a number is another."""

    changed: str
    depth: int
    speedup: float


FurtherCost = Callable[[int], float]
"""What the target's pass over a draft of so many tokens costs beyond a decode step, in target steps."""


def nothing_further(depth: int) -> float:
    """Return 0: a pass reads all weights, however many tokens it verifies."""
    del depth
    return 0.0


def best_of(rows: Sequence[Prediction]) -> Prediction:
    """Return the depth with the highest speed-up, the smallest where several have it."""
    return max(rows, key=lambda row: (row.speedup, -row.depth))


def predicted(alpha: float, depths: Sequence[int], costs: RoundCosts, further: FurtherCost) -> list[Prediction]:
    """Return the prediction for every draft depth, with what a verify costs beyond `costs`. Raises ValueError."""
    return [
        predict(alpha, [depth], replace(costs, verify_token=costs.verify_token + further(depth) / depth))[0]
        for depth in depths
    ]


def speedup_grid(
    alphas: Sequence[float], depths: Sequence[int], costs: RoundCosts, further: FurtherCost = nothing_further
) -> np.ndarray:
    """Return the speed-up for every α (rows) and depth (columns)."""
    return np.array([[row.speedup for row in predicted(alpha, depths, costs, further)] for alpha in alphas])


def sensitivity(
    alpha: float, depths: Sequence[int], costs: RoundCosts, further: FurtherCost = nothing_further
) -> list[Variation]:
    """Return what the best depth becomes when α, c or o turns out different from what was given."""
    dearer, cheaper = costs.draft_step * COST_FACTOR, costs.draft_step / COST_FACTOR
    cases = [
        (f"α {max(0.0, alpha - ALPHA_STEP):.2f} instead of {alpha:.2f}", max(0.0, alpha - ALPHA_STEP), costs),
        (f"α {min(1.0, alpha + ALPHA_STEP):.2f} instead of {alpha:.2f}", min(1.0, alpha + ALPHA_STEP), costs),
        (
            f"a draft step costs {dearer:.3g} instead of {costs.draft_step:.3g}",
            alpha,
            replace(costs, draft_step=dearer),
        ),
        (
            f"a draft step costs {cheaper:.3g} instead of {costs.draft_step:.3g}",
            alpha,
            replace(costs, draft_step=cheaper),
        ),
        (
            f"a round costs {OVERHEAD_STEP:g} target steps more",
            alpha,
            replace(costs, overhead=costs.overhead + OVERHEAD_STEP),
        ),
    ]
    found = []
    for changed, changed_alpha, changed_costs in cases:
        best = best_of(predicted(changed_alpha, depths, changed_costs, further))
        found.append(Variation(changed, best.depth, best.speedup))
    return found


def draw(alphas: Sequence[float], depths: Sequence[int], grid: np.ndarray, alpha: float, verify: float) -> Figure:
    """Draw `grid` (a row an α, a column a depth), blue where speculation pays; `alpha` is marked.

    `verify`: what each further verified token costs, for the title.
    """
    from matplotlib.colors import TwoSlopeNorm

    figure = style.new_figure(4.2)
    axes = figure.subplots()
    norm = TwoSlopeNorm(1.0, min(0.5, float(grid.min())), max(1.5, float(grid.max())))
    picture = axes.imshow(
        grid,
        aspect="auto",
        origin="lower",
        cmap="PuOr",
        norm=norm,
        extent=(-0.5, len(depths) - 0.5, alphas[0], alphas[-1]),
    )
    if grid.min() < 1 < grid.max():
        axes.contour(range(len(depths)), alphas, grid, levels=[1.0], colors=style.INK, linewidths=1.2)
    axes.axhline(alpha, color=style.INK, linewidth=0.8, linestyle=":")
    axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
    axes.set_xlabel("draft depth k")
    axes.set_ylabel("acceptance α of a draft token")
    axes.set_title(f"Predicted at w = {verify:g} (verifying); solid line: break-even, dotted: the given α")
    figure.colorbar(picture, ax=axes, label="speed-up (×)")
    return figure
