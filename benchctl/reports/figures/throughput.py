"""Figure 3: throughput distributions: a box and every record as a point, by task and arm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 3
MOST_POINTS = 300
"""Of more records in a row, this number is drawn."""
_GOLDEN = 0.618034


def draw(analysis: Analysis) -> Figure | None:
    """One panel a task, one row an arm, the baseline on top; `None` when no record has a decode rate."""
    found = {(row.task, row.arm): row.tok_per_sec for row in analysis.throughput if row.tok_per_sec}
    arms = sorted(analysis.arms, key=lambda arm: analysis.sweep is None and arm != analysis.baseline)
    arms = [arm for arm in arms if any((task, arm) in found for task in (*analysis.tasks, ALL_TASKS))]
    if not arms:
        return None
    tasks = [task for task in analysis.tasks if any((task, arm) in found for arm in arms)] or [ALL_TASKS]
    figure, panels = style.panels(tasks, len(arms), MOST_COLUMNS)
    marks = style.marks_of(analysis)
    panels[0].set_xlim(0, 1.05 * max(max(values) for values in found.values()))
    for axes, task in zip(panels, tasks, strict=True):
        axes.grid(axis="x")
        for y, arm in enumerate(arms):
            if values := found.get((task, arm)):
                _draw_row(axes, y, values, marks[arm])
            else:
                axes.text(0.02, y, "no records", transform=axes.get_yaxis_transform(), va="center", color=style.SOFT)
        style.name_rows(axes, arms)
    figure.supxlabel("decode throughput of one answer (tokens per second)", fontsize=9)
    return figure


def _draw_row(axes: Axes, y: int, values: list[float], mark: style.Mark) -> None:
    axes.boxplot(
        [values],
        positions=[y],
        orientation="horizontal",
        widths=0.66,
        showfliers=False,
        patch_artist=True,
        manage_ticks=False,
        boxprops={"facecolor": style.GRID, "edgecolor": style.SOFT, "linewidth": 0.8},
        medianprops={"color": style.INK, "linewidth": 1.8},
        whiskerprops={"color": style.SOFT, "linewidth": 0.9},
        capprops={"color": style.SOFT, "linewidth": 0.9},
        zorder=2,
    )
    values = style.thinned(values, MOST_POINTS)
    # Points are spread by their place in the list, not at random, so that the figure can be drawn again.
    offsets = [0.4 * ((i * _GOLDEN) % 1 - 0.5) for i in range(len(values))]
    axes.plot(values, [y + offset for offset in offsets], mark.marker, color=mark.colour, markersize=3, alpha=0.9,
              markeredgewidth=0, zorder=3)  # fmt: skip
