"""Figure 5: the parts of a round's time: stacked bars by arm and task, per token in steps of the baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.analysis.rounds.results import PARTS, Part, RoundSplit
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_COLUMNS = 2
COLOURS: dict[Part, str] = {
    "draft": "#0072b2",
    "verify": "#e69f00",
    "not split": "#d0c8b8",
    "verify and left over": "#e6c27a",
    "draft reads": "#56b4e9",
    "state": "#cc79a7",
    "search": "#f0e442",
    "plain steps": "#009e73",
    "left over": "#b0b7bf",
}
_INFERRED = "///"


def draw(analysis: Analysis) -> Figure | None:
    """One panel a task, one bar an arm; `None` where no engine reports its rounds."""
    found = {(row.task, row.arm): row for row in analysis.rounds.splits}
    if not found:
        return None
    arms = [arm for arm in analysis.arms if any((task, arm) in found for task in (*analysis.tasks, ALL_TASKS))]
    tasks = [task for task in analysis.tasks if any((task, arm) in found for arm in arms)] or [ALL_TASKS]
    figure, panels = style.panels(tasks, len(arms), MOST_COLUMNS)
    for axes, task in zip(panels, tasks, strict=True):
        axes.grid(axis="x")
        for y, arm in enumerate(arms):
            if row := found.get((task, arm)):
                _draw_row(axes, y, row)
        style.name_rows(axes, arms)
        axes.axvline(1, color=style.INK, linewidth=1)
    panels[0].set_xlim(0, 1.05 * max(1.0, *(_longest(row) for row in found.values())))
    figure.supxlabel("time of a round per token (1: a step of the baseline)", fontsize=9)
    _legend(figure, [part for part in PARTS if any(part in row.parts for row in found.values())],
            {part for row in found.values() for part in row.inferred})  # fmt: skip
    return figure


def _draw_row(axes: Axes, y: int, row: RoundSplit) -> None:
    start = 0.0
    for part in PARTS:
        width = max(0.0, row.parts.get(part, 0.0)) / (row.tokens * row.step_s)
        if width:
            hatch = _INFERRED if part in row.inferred else ""
            axes.barh(y, width, left=start, height=0.6, color=COLOURS[part], hatch=hatch,
                      edgecolor=style.PAPER, linewidth=0.4)  # fmt: skip
            start += width


def _longest(row: RoundSplit) -> float:
    return sum(max(0.0, seconds) for seconds in row.parts.values()) / (row.tokens * row.step_s)


def _legend(figure: Figure, parts: list[Part], inferred: set[Part]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = [
        Patch(facecolor=COLOURS[part], edgecolor=style.PAPER, hatch=_INFERRED if part in inferred else "",
              label=f"{part} (inferred)" if part in inferred else part)
        for part in parts
    ]  # fmt: skip
    handles.append(Line2D([], [], color=style.INK, linewidth=1, label="no speculation"))
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)))
