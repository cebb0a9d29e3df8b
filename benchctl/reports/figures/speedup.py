"""Figure 1: speed-up by task and arm, with its 95 % interval and a line at 1×."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import ALL_TASKS, Analysis, SpeedUp
from benchctl.reports import numbers
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 4
VALUE_COLUMN = 0.7
"""Right of this share of a panel are the numbers, and no data."""


def draw(analysis: Analysis) -> Figure | None:
    """One panel a task (all tasks first), one row an arm; `None` when no arm has a speed-up."""
    compared = {row.arm for row in analysis.speedups}  # a baseline that was measured a second time is not
    arms = [arm for arm in analysis.arms if arm in compared]
    found = {(row.task, row.arm): row for row in analysis.speedups if row.pooled is not None and row.arm in arms}
    tasks = [task for task in (ALL_TASKS, *analysis.tasks) if any((task, arm) in found for arm in arms)]
    if not tasks:
        return None
    if len(analysis.tasks) == 1:
        tasks = tasks[-1:]
    names = ["all tasks" if task == ALL_TASKS else task for task in tasks]
    figure, panels = style.panels(names, len(arms), MOST_COLUMNS)
    marks = style.marks_of(analysis)
    highest = max(1.0, *(_highest(row) for row in found.values()))
    panels[0].set_xlim(0, highest / VALUE_COLUMN)
    for axes, task in zip(panels, tasks, strict=True):
        axes.axvline(1, color=style.INK, linewidth=1)
        axes.grid(axis="both")
        for y, arm in enumerate(arms):
            if (task, arm) in found:
                _draw_row(axes, y, found[task, arm], marks[arm])
            else:
                axes.text(0.02, y, "no pairs", transform=axes.get_yaxis_transform(), va="center", color=style.SOFT)
        style.name_rows(axes, arms)
    figure.supxlabel("decode speed-up over the baseline (×; 1 = as fast)", fontsize=9)
    return figure


def _highest(row: SpeedUp) -> float:
    """The right end of a row; an interval beyond twice its highest block is cut off."""
    highest = max([row.pooled or 0.0, *row.by_block])
    return max(highest, min(row.interval.high, 2 * highest) if row.interval else 0.0)


def _draw_row(axes: Axes, y: int, row: SpeedUp, mark: style.Mark) -> None:
    value = row.pooled or 0.0
    axes.plot([1, value], [y, y], color=mark.colour, linewidth=2.2, alpha=0.55, solid_capstyle="butt")
    if row.interval:
        ends = [max(0.0, value - row.interval.low)], [max(0.0, row.interval.high - value)]
        axes.errorbar(value, y, xerr=ends, color=style.INK, capsize=3, linewidth=1, zorder=4)
    if len(row.by_block) > 1:
        axes.plot(
            row.by_block, [y - 0.34] * len(row.by_block), "|", color=style.SOFT, markersize=3, markeredgewidth=0.8
        )
    axes.plot(
        value, y, mark.marker, color=mark.colour, markersize=5, markeredgecolor=style.INK, markeredgewidth=0.5, zorder=5
    )
    axes.annotate(
        numbers.ratio(value),
        (1, y),
        xycoords=axes.get_yaxis_transform(),
        ha="right",
        va="center",
        fontsize=7.5,
        bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.6},
        zorder=6,
    )
