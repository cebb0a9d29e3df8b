"""Figure 4: acceptance against realised speed-up, and the acceptance each arm would need to break even."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import ALL_TASKS, Analysis, Cost
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(analysis: Analysis) -> Figure | None:
    """Left a point an arm, right measured beside break-even acceptance; `None` when no arm has both numbers."""
    rates = {row.arm: row.rate for row in analysis.acceptance if row.task == ALL_TASKS and row.rate is not None}
    points = {
        row.arm: (100 * rates[row.arm], row)
        for row in analysis.speedups
        if row.task == ALL_TASKS and row.pooled is not None and row.arm in rates and row.arm != analysis.baseline
    }
    if not points:
        return None
    arms = [arm for arm in analysis.arms if arm in points]
    costs = [cost for cost in analysis.costs if cost.arm in arms and cost.alpha is not None]
    figure = style.new_figure(max(3.3, 1.9 + 0.22 * len(arms)))
    panels = figure.subplots(1, 2 if costs else 1, squeeze=False)[0]
    marks = style.distinct_marks(analysis)
    axes = panels[0]
    highest = 1.0
    for arm in arms:
        x, row = points[arm]
        y = row.pooled or 0.0
        if row.interval:
            axes.vlines(x, row.interval.low, row.interval.high, color=marks[arm].colour, linewidth=1.2)
        axes.plot(x, y, marks[arm].marker, color=marks[arm].colour, markersize=7, markeredgecolor=style.INK,
                  markeredgewidth=0.6, label=style.shorten(arm, 18))  # fmt: skip
        highest = max(highest, y, min(row.interval.high, 2 * y) if row.interval else 0)  # a longer whisker is cut
    axes.set_ylim(0, 1.25 * highest)
    axes.set_xlim(-3, 103)
    axes.axhline(1, color=style.INK, linewidth=1, label="break-even: pays above")
    axes.grid()
    axes.set_title("Acceptance, realised speed-up")
    axes.set_xlabel("accepted / drafted tokens (%)")
    axes.set_ylabel("decode speed-up (×)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(arms) + 1))
    if costs:
        _draw_need(panels[1], costs, marks)
    return figure


def _draw_need(axes: Axes, costs: list[Cost], marks: dict[str, style.Mark]) -> None:
    for y, cost in enumerate(costs):
        mark, alpha = marks[cost.arm], 100 * (cost.alpha or 0.0)
        axes.axhline(y, color=style.GRID, linewidth=0.6, zorder=0)
        if cost.break_even_alpha is not None:
            axes.plot([alpha, 100 * cost.break_even_alpha], [y, y], color=mark.colour, linewidth=1.2)
            axes.plot(100 * cost.break_even_alpha, y, mark.marker, markersize=7, markerfacecolor=style.PAPER,
                      markeredgecolor=mark.colour, markeredgewidth=1.3)  # fmt: skip
        else:
            right = alpha <= 55  # on the side with more space
            axes.text(
                alpha + (4 if right else -4),
                y,
                "over 100 %",
                ha="left" if right else "right",
                va="center",
                fontsize=7.5,
                bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 1},
            )
        axes.plot(
            alpha, y, mark.marker, color=mark.colour, markersize=7, markeredgecolor=style.INK, markeredgewidth=0.6
        )
    style.name_rows(axes, [style.shorten(cost.arm, 16) for cost in costs])
    axes.set_xlim(-3, 103)
    axes.set_title("Measured (filled), break-even (hollow)")
    axes.set_xlabel("acceptance α of one draft token (%)")
