"""The figures of every report: speed-up, acceptance, payoff, parts of a round, and what drafts left out."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import PARTS, Part, RoundSplit
from benchctl.analysis.speed_results import Acceptance, Cost, SpeedUp
from benchctl.reports.figures import style
from benchctl.words import numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchctl.data.rounds import LeftOut

SPEEDUP_COLUMNS = 4
VALUE_COLUMN = 0.7
"""Right of this share of a panel are the numbers, and no data."""


def draw_speedup(analysis: Analysis) -> Figure | None:
    """A panel a task (all tasks first), a row an arm; `None` when no arm has a speed-up."""
    compared = {row.arm for row in analysis.speedups}  # a baseline that was measured a second time is not
    arms = [arm for arm in analysis.arms if arm in compared]
    rows = {(row.task, row.arm): row for row in analysis.speedups if row.pooled is not None and row.arm in arms}
    tasks = [task for task in (ALL_TASKS, *analysis.tasks) if any((task, arm) in rows for arm in arms)]
    if not tasks:
        return None
    if len(analysis.tasks) == 1:
        tasks = tasks[-1:]
    names = ["all tasks" if task == ALL_TASKS else task for task in tasks]
    figure, panels = style.panels(names, len(arms), SPEEDUP_COLUMNS)
    marks = style.marks_of(analysis)
    highest = max(1.0, *(_right_end(row) for row in rows.values()))
    panels[0].set_xlim(0, highest / VALUE_COLUMN)
    for axes, task in zip(panels, tasks, strict=True):
        axes.axvline(1, color=style.INK, linewidth=1)
        axes.grid(axis="both")
        for y, arm in enumerate(arms):
            if (task, arm) in rows:
                _draw_speedup(axes, y, rows[task, arm], marks[arm])
            else:
                axes.text(0.02, y, "no pairs", transform=axes.get_yaxis_transform(), va="center", color=style.SOFT)
        style.name_rows(axes, arms)
    figure.supxlabel("decode speed-up over the baseline (×; 1 = as fast)", fontsize=9)
    return figure


def _right_end(row: SpeedUp) -> float:
    """The right end of a row; an interval beyond twice its highest block is cut off."""
    highest = max([row.pooled or 0.0, *row.by_block])
    return max(highest, min(row.interval.high, 2 * highest) if row.interval else 0.0)


def _draw_speedup(axes: Axes, y: int, row: SpeedUp, mark: style.Mark) -> None:
    value = row.pooled or 0.0
    axes.plot([1, value], [y, y], color=mark.colour, linewidth=2.2, alpha=0.55, solid_capstyle="butt")
    if row.interval:
        ends = [max(0.0, value - row.interval.low)], [max(0.0, row.interval.high - value)]
        axes.errorbar(value, y, xerr=ends, color=style.INK, capsize=3, linewidth=1, zorder=4)
    if len(row.by_block) > 1:
        heights = [y - 0.34] * len(row.by_block)
        axes.plot(row.by_block, heights, "|", color=style.SOFT, markersize=3, markeredgewidth=0.8)
    axes.plot(value, y, **style.point(mark, 5), zorder=5)
    axes.annotate(numbers.ratio(value), (1, y), xycoords=axes.get_yaxis_transform(), ha="right", va="center",
                  fontsize=7.5, bbox=style.box(0.6), zorder=6)  # fmt: skip


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


def draw_acceptance(analysis: Analysis) -> Figure | None:
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
    kinds = {verdict.arm: verdict.setting.split(",")[0] for verdict in analysis.verdicts}
    for task, marker in zip(analysis.tasks if len(analysis.tasks) > 1 else (), _TASK_MARKERS * 9, strict=False):
        of_task = ((y, rows.get((task, arm))) for y, arm in enumerate(arms))
        points = [(100 * row.rate, y) for y, row in of_task if row and row.rate is not None]
        if points:
            label = style.shorten(task, 20)
            axes.plot(*zip(*points, strict=True), marker, color=style.SOFT, markersize=6, zorder=2, label=label)
    shares = [100 * (rows[ALL_TASKS, arm].rate or 0.0) for arm in arms]
    for y, arm in enumerate(arms):
        mark = marks[arm]
        axes.plot(shares[y], y, **style.point(mark), zorder=4)
        if doubt := rows[ALL_TASKS, arm].doubt:
            side = ("right", -7) if shares[y] > 50 else ("left", 7)
            axes.annotate(
                doubt, (shares[y], y), (side[1], 0), textcoords="offset points", ha=side[0], va="center", size=8
            )
        before = arms[y - 1] if y else ""
        deeper = before in depths and arm in depths and depths[before] < depths[arm]
        if deeper and kinds.get(before) == kinds.get(arm):
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


def _name(arm: str, doubt: str | None) -> str:
    return style.shorten(arm, 18) + (f" ({doubt})" if doubt else "")


def draw_payoff(analysis: Analysis) -> Figure | None:
    """Left a point an arm, right measured beside break-even acceptance; `None` when no arm has both numbers."""
    rates = {row.arm: row.rate for row in analysis.acceptance if row.task == ALL_TASKS and row.rate is not None}
    doubts = {row.arm: row.doubt for row in analysis.acceptance if row.task == ALL_TASKS}
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
        axes.plot(x, y, **style.point(marks[arm]), label=_name(arm, doubts[arm]))
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
            axes.text(alpha + (4 if right else -4), y, "over 100 %", ha="left" if right else "right", va="center",
                      fontsize=7.5, bbox=style.box(1))  # fmt: skip
        axes.plot(alpha, y, **style.point(mark))
    style.name_rows(axes, [style.shorten(cost.arm, 16) for cost in costs])
    axes.set_xlim(-3, 103)
    axes.set_title("Measured (filled), break-even (hollow)")
    axes.set_xlabel("acceptance α of a draft token (%)")


ROUND_COLUMNS = 2
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


def draw_rounds(analysis: Analysis) -> Figure | None:
    """A panel a task, a bar an arm; `None` where no engine reports its rounds."""
    splits = {(row.task, row.arm): row for row in analysis.rounds.splits}
    if not splits:
        return None
    arms = [arm for arm in analysis.arms if any((task, arm) in splits for task in (*analysis.tasks, ALL_TASKS))]
    tasks = [task for task in analysis.tasks if any((task, arm) in splits for arm in arms)] or [ALL_TASKS]
    figure, panels = style.panels(tasks, len(arms), ROUND_COLUMNS)
    for axes, task in zip(panels, tasks, strict=True):
        axes.grid(axis="x")
        for y, arm in enumerate(arms):
            if row := splits.get((task, arm)):
                _draw_round(axes, y, row)
        style.name_rows(axes, arms)
        axes.axvline(1, color=style.INK, linewidth=1)
    panels[0].set_xlim(0, 1.05 * max(1.0, *(_longest(row) for row in splits.values())))
    figure.supxlabel("time of a round per token (1: a step of the baseline)", fontsize=9)
    _legend(figure, [part for part in PARTS if any(part in row.parts for row in splits.values())],
            {part for row in splits.values() for part in row.inferred})  # fmt: skip
    return figure


def _draw_round(axes: Axes, y: int, row: RoundSplit) -> None:
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


MOST_ARMS = 12
"""Arms of the recipe whose drafts are drawn."""
_PARTS = {"attention": "attention", "recurrent": "recurrent", "mlp": "MLP", "layer": "layer"}


def draw_tokens_per_time(analysis: Analysis) -> Figure | None:
    """A point an arm; `None` below two whose drafting and verifying were timed."""
    rows = [row for row in analysis.rounds.splits if row.task == ALL_TASKS]
    points = [(row.arm, tpt, row.speedup) for row in rows if (tpt := row.tokens_per_time) is not None]
    if len(points) < 2:
        return None
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    marks, setting_of = style.marks_of(analysis), {name: arm.of for name, arm in analysis.compared.items()}
    for name in dict.fromkeys(setting_of[arm] for arm, _, _ in points):
        alike = [point for point in points if setting_of[point[0]] == name]
        axes.plot([tpt for _, tpt, _ in alike], [speedup for _, _, speedup in alike],
                  **style.point(marks[alike[0][0]]), label=style.shorten(name, 18))  # fmt: skip
    highest = 1.08 * max(1.0, *(max(tpt, speedup) for _, tpt, speedup in points))
    axes.plot([0, highest], [0, highest], color=style.SOFT, linewidth=0.9, linestyle=":", label="nothing else costs")
    axes.axhline(1, color=style.INK, linewidth=1, label="no speculation")
    axes.set_xlim(0, highest)
    axes.set_ylim(0, highest)
    axes.grid()
    axes.set_xlabel("tokens per time of drafting and verifying, over the baseline's (×)")
    axes.set_ylabel("throughput, over the baseline's (×)")
    style.legend_below(figure, axes)
    return figure


def draw_left_out(analysis: Analysis) -> Figure | None:
    """A panel for each of the recipe's arms, a line a part and range of contexts, a column a layer; else `None`."""
    panels = _panels(analysis)
    if not panels:
        return None
    from matplotlib.colors import LinearSegmentedColormap

    lines = [len(rows) for rows in panels.values()]
    figure = style.new_figure(0.9 + 0.55 * len(panels) + 0.15 * sum(lines))
    all_axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": lines})[:, 0]
    colours = LinearSegmentedColormap.from_list("left out", ["#eef3f8", "#0072b2"])
    for axes, (name, rows) in zip(all_axes, panels.items(), strict=True):
        mesh = axes.pcolormesh(list(rows.values()), cmap=colours, vmin=0, vmax=1, edgecolors=style.GRID, linewidth=0.3)
        axes.set_yticks(np.arange(len(rows)) + 0.5, list(rows), fontsize=6.5)
        axes.invert_yaxis()
        axes.set_title(style.shorten(name, 40))
        layers = len(next(iter(rows.values())))
        step = 1 + layers // 32
        axes.set_xticks(np.arange(0, layers, step) + 0.5, range(0, layers, step), fontsize=6.5)
    all_axes[-1].set_xlabel("layer")
    figure.colorbar(mesh, ax=list(all_axes), label="share of rounds", fraction=0.03, aspect=25)
    return figure


def _panels(analysis: Analysis) -> dict[str, dict[str, list[float]]]:
    """Return by the recipe's arm, and its setup, the shares of every layer, by part and longest context."""
    by_setting: dict[str, list[LeftOut]] = defaultdict(list)
    for row in analysis.left_out or ():
        arm = analysis.compared[row.arm]
        by_setting[f"{arm.of} ({arm.setup})" if arm.setup else arm.of].append(row)
    return {name: shares for name, rows in list(by_setting.items())[:MOST_ARMS] if (shares := _shares(rows))}


def _shares(rows: Sequence[LeftOut]) -> dict[str, list[float]]:
    """Return the share of rounds that drafted without a part of each layer, by the part's name and longest context."""
    layers = max(row.layers for row in rows)
    by_context: dict[int, tuple[int, Mapping[str, int]]] = {}
    for row in rows:
        rounds, times = by_context.get(row.context, (0, {}))
        by_context[row.context] = rounds + row.rounds, Counter(times) + Counter(row.times)
    parts = {name.partition(".")[2] for row in rows for name in row.times}
    return {
        f"{label}, to {context}": [times.get(f"{layer}.{part}", 0) / rounds for layer in range(layers)]
        for part, label in _PARTS.items()
        if part in parts
        for context, (rounds, times) in sorted(by_context.items())
    }
