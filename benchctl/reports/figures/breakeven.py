"""The break-even figure: a curve of speed-up over acceptance for each depth."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.breakeven import curve_line
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import Point
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_breakeven(analysis: Analysis) -> Figure | None:
    """A curve a depth; `None` where no depth has two points."""
    breakeven = analysis.breakeven
    if breakeven is None:
        return None
    curves = {
        need.depth: [point for point in breakeven.points if point.belongs_to(need.depth)] for need in breakeven.needs
    }
    curves = {depth: curve for depth, curve in curves.items() if len(curve) > 1}
    if not curves:
        return None
    figure = style.new_figure(3.9)
    axes = figure.subplots()
    marks = style.marks([f"depth {depth}" for depth in curves], "")
    for depth, curve in curves.items():
        mark = marks[f"depth {depth}"]
        alphas, speeds = zip(*curve_line(curve, depth), strict=True)
        axes.plot([100 * alpha for alpha in alphas], speeds, color=mark.colour, linewidth=1.3, label=f"depth {depth}")
        for point in breakeven.points:
            if point.depth == depth:
                _draw_point(axes, point, mark)
    axes.axhline(1, color=style.INK, linewidth=1, label="break-even")
    axes.set_xlim(-3, 103)
    drawn = [point for point in breakeven.points if point.depth in curves]
    axes.set_ylim(0, 1.15 * max(1.0, *(shown.speedup for shown in drawn)))
    axes.grid()
    axes.set_xlabel("acceptance α of a draft token (%)")
    axes.set_ylabel("decode speed-up (×)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(5, len(curves) + 1))
    return figure


def _draw_point(axes: Axes, point: Point, mark: style.Mark) -> None:
    x = 100 * point.alpha
    if point.interval is not None:
        axes.vlines(x, point.interval.low, point.interval.high, color=mark.colour, linewidth=1, alpha=0.7)
    if point.kind == "reference":
        axes.plot(x, point.speedup, "x", color=mark.colour, markersize=7, markeredgewidth=1.5)
        return
    hollow = point.kind == "synthetic"
    axes.plot(x, point.speedup, mark.marker, markersize=5 if hollow else 7, markeredgewidth=1.1,
              markerfacecolor=style.PAPER if hollow else mark.colour,
              markeredgecolor=mark.colour if hollow else style.INK)  # fmt: skip
