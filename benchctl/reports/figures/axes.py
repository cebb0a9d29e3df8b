"""Acceptance and speed-up along every axis, and speed against memory and energy over all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchctl.analysis.conditions.axes import (
    CONTEXT,
    AxisRow,
    axis_rows,
    energy_of,
    memory_of,
    pareto_front,
    varied_axes,
)
from benchctl.analysis.results import Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 12
"""Limit of lines in a panel; the table has all."""
_DASHES = ("-", "--", "-.", ":")
_GIB = 1 << 30


def draw_axes(analysis: Analysis) -> Figure | None:
    """A row of panels an axis: acceptance and speed-up by its labels; `None` where no arm has both."""
    return _draw(analysis, [axis for axis in varied_axes(row.level for row in axis_rows(analysis)) if axis != CONTEXT])


def draw_contexts(analysis: Analysis) -> Figure | None:
    """Acceptance and speed-up by prompt length."""
    return _draw(analysis, [CONTEXT])


def _draw(analysis: Analysis, axes: Sequence[str]) -> Figure | None:
    every = [row for row in axis_rows(analysis) if not row.level.is_baseline and row.ratio is not None]
    drawn = [axis for axis in axes if any(axis in row.labels for row in every)]
    if not drawn:
        return None
    figure = style.new_figure(0.3 + 2.9 * len(drawn))
    panels = figure.subplots(len(drawn), 2, squeeze=False)
    for axis, (left, right) in zip(drawn, panels, strict=True):
        rows = [row for row in every if axis in row.labels]
        _panels(left, right, axis, rows)
        left.set_title(f"Acceptance by {axis}")
        left.set_ylabel("accepted / drafted tokens (%)")
        right.set_title(f"Decode speed-up by {axis}")
        right.set_ylabel("over its group's baseline (×)")
    return figure


def _panels(left: Axes, right: Axes, axis: str, rows: Sequence[AxisRow]) -> None:
    labels = list(dict.fromkeys(row.labels[axis] for row in rows))
    if axis == CONTEXT:
        labels.sort(key=int)
    lines = list(dict.fromkeys(row.other_labels(axis) for row in rows))[:MOST_LINES]
    marks = style.marks(["", *lines], "")
    left.set_ylim(0, 102)
    right.axhline(1, color=style.INK, linewidth=1)
    highest = 1.0
    for number, line in enumerate(lines):
        own = [row for row in rows if row.other_labels(axis) == line]
        places = [labels.index(row.labels[axis]) + 0.08 * (number - (len(lines) - 1) / 2) / 2 for row in own]
        line_style: dict[str, Any] = {
            "color": marks[line].colour,
            "marker": marks[line].marker,
            "linestyle": _DASHES[number % len(_DASHES)],
            "linewidth": 1.2,
            "markersize": 5,
            "markeredgecolor": style.INK,
            "markeredgewidth": 0.5,
        }
        kept = [
            (place, 100 * row.acceptance.rate)
            for place, row in zip(places, own, strict=True)
            if row.acceptance is not None and row.acceptance.rate is not None
        ]
        if kept:
            left.plot(*zip(*kept, strict=True), **line_style)
        right.plot(places, [row.ratio or 0.0 for row in own], label=style.shorten(line, 34), **line_style)
        for place, row in zip(places, own, strict=True):
            ends = row.speedup.interval if row.speedup else None
            if ends is not None:
                right.vlines(place, ends.low, min(ends.high, 2 * (row.ratio or 0.0)), color=marks[line].colour)
            highest = max(highest, row.ratio or 0.0, min(ends.high, 2 * (row.ratio or 0.0)) if ends else 0.0)
    right.set_ylim(0, 1.12 * highest)
    for panel in (left, right):
        panel.grid(axis="y")
        panel.set_xticks(range(len(labels)), [style.shorten(label, 16) for label in labels])
        panel.set_xlim(-0.5, len(labels) - 0.5)
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)


def draw_pareto(analysis: Analysis) -> Figure | None:
    """Tokens per second, and speed-up, against memory and energy: a line joins each Pareto front."""
    rows = [row for row in axis_rows(analysis) if row.level.throughput is not None and not row.inactive]
    costs = [cost for cost in _COSTS if _is_drawn(cost, rows)]
    if not costs:
        return None
    figure = style.new_figure(0.4 + 3.0 * len(costs))
    panels = figure.subplots(len(costs), 2, squeeze=False)
    for cost, (left, right) in zip(costs, panels, strict=True):
        _against(cost, rows, left, right, style.marks(analysis.settings, analysis.baseline))
    handles = {name: handle for row in panels for handle, name in zip(*row[0].get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def has_energy(analysis: Analysis) -> bool:
    """Whether the figure has a panel of energy: at least one arm has energy per token."""
    return _is_drawn(_ENERGY, axis_rows(analysis))


@dataclass(frozen=True)
class _Cost:
    """What speed is drawn against."""

    name: str
    label: str
    of: Callable[[AxisRow], float | None]
    unit: float
    least: int
    """Different values below which there is nothing to draw."""


_ENERGY = _Cost("energy", "energy (J per generated token)", energy_of, 1, 1)
_COSTS = (_Cost("memory", "memory (GiB)", memory_of, _GIB, 2), _ENERGY)


def _is_drawn(cost: _Cost, rows: Sequence[AxisRow]) -> bool:
    return len({cost.of(row) for row in rows} - {None}) >= cost.least


def _against(cost: _Cost, rows: Sequence[AxisRow], left: Axes, right: Axes, marks: dict[str, style.Mark]) -> None:
    known = [(value / cost.unit, row) for row in rows if (value := cost.of(row)) is not None]
    for of in dict.fromkeys(row.level.of for _, row in known):
        own = [(value, row) for value, row in known if row.level.of == of]
        line_style: dict[str, Any] = {
            "color": marks[of].colour,
            "marker": marks[of].marker,
            "linestyle": "",
            "markersize": 6,
            "markeredgecolor": style.INK,
            "markeredgewidth": 0.5,
        }
        places = [value for value, _ in own]
        left.plot(places, [row.level.throughput or 0.0 for _, row in own], label=style.shorten(of, 24), **line_style)
        right.plot(places, [row.ratio or float("nan") for _, row in own], **line_style)
    front = [((cost.of(row) or 0.0) / cost.unit, row.level.throughput or 0.0, row)
             for row in pareto_front(rows, cost.of)]  # fmt: skip
    left.step(
        [value for value, _, _ in front],
        [speed for _, speed, _ in front],
        where="post",
        color=style.SOFT,
        linewidth=1,
        zorder=0,
        label="Pareto front",
    )
    for value, speed, row in front:
        name = style.shorten(row.other_labels(""), 30)
        left.annotate(name, (value, speed), xytext=(4, 4), textcoords="offset points", fontsize=6.5)
    right.axhline(1, color=style.INK, linewidth=1)
    left.set_title(f"Speed against {cost.name}")
    left.set_ylabel("tokens per second, prefill included")
    right.set_title(f"Speed-up against {cost.name}")
    right.set_ylabel("over its group's baseline (×)")
    for panel in (left, right):
        panel.set_xlabel(cost.label)
        panel.margins(0.12)
        panel.locator_params(axis="x", nbins=5)
        panel.set_ylim(bottom=0)
        panel.grid()
