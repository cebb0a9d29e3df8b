"""Figure 2: acceptance by depth and, where the engine reports it, by draft position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TASK_MARKERS = ("|", "x", "+", "1", "2", "3", "4", "_", "$a$", "$b$")
"""Thin markers, so that tasks are not mistaken for arms."""


FEWEST_ROUNDS = 20
"""An arm with fewer verify rounds is not drawn: its shares would be noise."""
MOST_POSITIONS = 16
"""Limit of drawn positions."""


def drawn_positions(analysis: Analysis) -> list[Acceptance]:
    """The rows whose acceptance by position is drawn, cut to `MOST_POSITIONS`."""
    return [
        row.model_copy(update={"position_unconditional": row.position_unconditional[:MOST_POSITIONS]})
        for row in analysis.acceptance
        if row.task == ALL_TASKS and row.arm not in analysis.baselines and row.position_unconditional and _enough(row)
    ]


def _enough(row: Acceptance) -> bool:
    return row.rounds is None or row.rounds >= FEWEST_ROUNDS


def draw(analysis: Analysis) -> Figure | None:
    """Left the rate by depth, right the share by position; `None` when no arm reports drafted tokens."""
    rows = {(row.task, row.arm): row for row in analysis.acceptance if row.rate is not None and _enough(row)}
    arms = [arm for arm in analysis.arms if arm not in analysis.baselines and (ALL_TASKS, arm) in rows]
    if not arms:
        return None
    positions = drawn_positions(analysis)
    figure = style.new_figure(max(3.0, 1.3 + 0.25 * len(arms)))
    panels = figure.subplots(1, 2 if positions else 1, squeeze=False)[0]
    marks = style.distinct_marks(analysis)
    _draw_rates(panels[0], analysis, arms, rows, marks)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(handles)), handletextpad=0.2)
    if positions:
        _draw_positions(panels[1], positions, marks)
    return figure


def _draw_rates(
    axes: Axes,
    analysis: Analysis,
    arms: list[str],
    rows: dict[tuple[str, str], Acceptance],
    marks: dict[str, style.Mark],
) -> None:
    depths = {cost.arm: cost.depth for cost in analysis.costs if cost.depth is not None}
    settings = {verdict.arm: verdict.setting for verdict in analysis.verdicts}
    for task, marker in zip(analysis.tasks if len(analysis.tasks) > 1 else (), _TASK_MARKERS * 9, strict=False):
        points = [
            (100 * row.rate, y) for y, arm in enumerate(arms) if (row := rows.get((task, arm))) and row.rate is not None
        ]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                marker,
                color=style.SOFT,
                markersize=6,
                zorder=2,
                label=style.shorten(task, 20),
            )
    shares = [100 * (rows[ALL_TASKS, arm].rate or 0.0) for arm in arms]
    for y, arm in enumerate(arms):
        mark = marks[arm]
        axes.plot(shares[y], y, mark.marker, color=mark.colour, markersize=7, markeredgecolor=style.INK,
                  markeredgewidth=0.6, zorder=4)  # fmt: skip
        before = arms[y - 1] if y else None
        if (
            before in depths
            and arm in depths
            and depths[before] < depths[arm]
            and settings.get(before, "-").split(",")[0] == settings.get(arm, "").split(",")[0]
        ):
            axes.plot(shares[y - 1 : y + 1], [y - 1, y], color=style.INK, linewidth=1, zorder=3)
    axes.grid()
    style.name_rows(axes, [f"{style.shorten(arm, 16)} (k={depths[arm]})" if arm in depths else arm for arm in arms])
    axes.set_xlim(0, 102)
    axes.set_title("Acceptance rate by depth k" if depths else "Acceptance rate")
    axes.set_xlabel("accepted / drafted tokens (%)")


def _draw_positions(axes: Axes, rows: list[Acceptance], marks: dict[str, style.Mark]) -> None:
    from matplotlib.ticker import MaxNLocator

    for row in rows:
        shares = [100 * share for share in row.position_unconditional or ()]
        mark = marks[row.arm]
        axes.plot(range(1, len(shares) + 1), shares, color=mark.colour, marker=mark.marker, markersize=5, linewidth=1.2,
                  markeredgecolor=style.INK, markeredgewidth=0.4)  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(axis="y")
    axes.set_ylim(0, 102)
    axes.set_title("By position (marks as on the left)")
    axes.set_xlabel("position of the draft token")
    axes.set_ylabel("rounds that accepted it (%)")
