"""The predicted speed-up over acceptance and draft depth, as a heat map with the line at which it breaks even."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.reports.figures import style

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure


def draw(alphas: Sequence[float], depths: Sequence[int], grid: np.ndarray, alpha: float) -> Figure:
    """Draw `grid` (a row an α, a column a depth), blue where speculation pays; `alpha` is marked."""
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
    axes.set_ylabel("acceptance α of one draft token")
    axes.set_title("Predicted speed-up; solid line: break-even, dotted: the given α")
    figure.colorbar(picture, ax=axes, label="speed-up (×)")
    return figure
