"""The width curve: what the target takes to verify so many tokens at once, with its cliffs and falls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import UnitCost
from benchctl.analysis.verify_widths import TIMED, edges
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 8
"""Fewer widths are no curve."""


def draw_widths(analysis: Analysis) -> Figure | None:
    """The curve of a run's baseline; `None` where fewer than `FEWEST` widths were timed."""
    units = analysis.rounds.units
    baseline = next((unit.arm for unit in units if unit.what == "target step"), None)
    return draw_curve([unit for unit in units if (unit.arm, unit.what) == (baseline, "verify")])


def draw_curve(curve: Sequence[UnitCost]) -> Figure | None:
    """Steps over width, a mark where the cost jumps or falls, with the depth that follows from it."""
    timed = [unit for unit in curve if unit.count >= TIMED]
    if len(timed) < FEWEST:
        return None
    figure = style.new_figure(3.2)
    axes = figure.subplots()
    axes.plot([unit.width for unit in timed], [unit.steps for unit in timed], "o-", color=style.INK, markersize=3.5,
              linewidth=1.1)  # fmt: skip
    axes.axhline(1, color=style.SOFT, linewidth=0.8, linestyle=":")
    highest = max(unit.steps for unit in timed)
    for number, edge in enumerate(edges(timed)):
        name = "fall" if edge.kind == "fall" else "cliff"
        axes.axvline(edge.width - 0.5, color=style.SOFT, linewidth=0.8, linestyle="--")
        label = f"{name} at {edge.width} tokens: best depth {edge.depth}"
        axes.text(edge.width, highest * (1.16 - 0.09 * (number % 2)), label, fontsize=8, color=style.INK)
    axes.set_xlim(0, 1.12 * timed[-1].width)
    axes.set_ylim(0, 1.28 * highest)
    axes.grid()
    axes.set_xlabel("tokens verified at once (draft depth + 1)")
    axes.set_ylabel("target steps")
    return figure
