"""The figures of what a run varies: axes, context length, temperature, concurrency, rate; speed against memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from benchctl.analysis.conditions.front import curves, on_front
from benchctl.analysis.conditions.split import closed_levels, open_levels
from benchctl.analysis.conditions.sweep import CONDITIONS, AxisRow, axis_rows, pareto_front, varied_axes
from benchctl.analysis.results import Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchctl.analysis.conditions.results import Crossing, Level

MOST_LINES = 12
"""Limit of lines in a panel; the table has all."""
MOST_PANELS = 3
"""Limit of temperatures, concurrencies or rates with a pair of panels of their own; the table has all."""


def draw_axes(analysis: Analysis) -> Figure | None:
    """A row of panels an axis: acceptance and speed-up by its labels; `None` where no arm has both."""
    varied = varied_axes(row.level for row in axis_rows(analysis))
    return draw_labels(analysis, [axis for axis in varied if axis not in CONDITIONS])


def draw_labels(analysis: Analysis, axes: Sequence[str]) -> Figure | None:
    """The same by these axes or conditions."""
    compared = [row for row in axis_rows(analysis) if not row.level.is_baseline and row.ratio is not None]
    drawn = [axis for axis in axes if any(axis in row.labels for row in compared)]
    if not drawn:
        return None
    figure = style.new_figure(0.3 + 2.9 * len(drawn))
    panels = figure.subplots(len(drawn), 2, squeeze=False)
    for axis, (acceptance_panel, speed_panel) in zip(drawn, panels, strict=True):
        rows = [row for row in compared if axis in row.labels]
        _panels(acceptance_panel, speed_panel, axis, rows)
        acceptance_panel.set_title(f"Acceptance by {axis}")
        acceptance_panel.set_ylabel("accepted / drafted tokens (%)")
        speed_panel.set_title(f"Decode speed-up by {axis}")
        speed_panel.set_ylabel("over its group's baseline (×)")
    return figure


def _panels(acceptance_panel: Axes, speed_panel: Axes, axis: str, rows: Sequence[AxisRow]) -> None:
    """Draw a line for the arms that differ in this axis alone, acceptance left and speed-up right."""
    labels = list(dict.fromkeys(row.labels[axis] for row in rows))
    if axis in CONDITIONS:
        labels.sort(key=float)
    names = list(dict.fromkeys(row.other_labels(axis) for row in rows))[:MOST_LINES]
    marks = style.marks(["", *names], "")
    acceptance_panel.set_ylim(0, 102)
    speed_panel.axhline(1, color=style.INK, linewidth=1)
    highest = 1.0
    for number, name in enumerate(names):
        shift = 0.08 * (number - (len(names) - 1) / 2) / 2
        points = [(labels.index(row.labels[axis]) + shift, row) for row in rows if row.other_labels(axis) == name]
        look = style.line(marks[name], number)
        accepted = [(x, row.acceptance.rate) for x, row in points if row.acceptance]
        shares = [(x, 100 * rate) for x, rate in accepted if rate is not None]
        if shares:
            acceptance_panel.plot(*zip(*shares, strict=True), **look)
        ratios = [row.ratio or 0.0 for _, row in points]
        speed_panel.plot([x for x, _ in points], ratios, label=style.shorten(name, 34), **look)
        highest = max(highest, *ratios, *_intervals(speed_panel, points, marks[name]))
    speed_panel.set_ylim(0, 1.12 * highest)
    for panel in (acceptance_panel, speed_panel):
        panel.grid(axis="y")
        panel.set_xticks(range(len(labels)), [style.shorten(label, 16) for label in labels])
        panel.set_xlim(-0.5, len(labels) - 0.5)
    speed_panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)


def _intervals(panel: Axes, points: Sequence[tuple[float, AxisRow]], mark: style.Mark) -> Iterator[float]:
    """Draw the intervals of speed-ups, and yield their ends; they are cut off at twice their point."""
    for x, row in points:
        if row.speedup and (limits := row.speedup.interval):
            top = min(limits.high, 2 * (row.ratio or 0.0))
            panel.vlines(x, limits.low, top, color=mark.colour, linewidth=1.4)
            yield top


def draw_pareto(analysis: Analysis) -> Figure | None:
    """Tokens per second, and speed-up, against memory and energy: a line joins each Pareto front."""
    rows = [row for row in axis_rows(analysis) if row.level.throughput is not None and not row.inactive]
    costs = [cost for cost in _COSTS if len({cost.value_of(row) for row in rows} - {None}) >= cost.distinct_values]
    if not costs:
        return None
    figure = style.new_figure(0.4 + 3.0 * len(costs))
    panels = figure.subplots(len(costs), 2, squeeze=False)
    for cost, (rate_panel, speed_panel) in zip(costs, panels, strict=True):
        _against(cost, rows, rate_panel, speed_panel, style.marks(analysis.settings, analysis.baseline))
    style.legend_below(figure, *(row[0] for row in panels))
    return figure


@dataclass(frozen=True)
class _Against:
    """What speed is drawn against."""

    name: str
    label: str
    value_of: Callable[[AxisRow], float | None]
    unit: float
    distinct_values: int
    """Different values below which there is nothing to draw."""


_COSTS = (
    _Against("memory", "memory (GiB)", attrgetter("level.memory_bytes"), 1 << 30, 2),
    _Against("energy", "energy (J per generated token)", attrgetter("joules_per_token"), 1, 1),
)


def _against(
    cost: _Against, rows: Sequence[AxisRow], rate_panel: Axes, speed_panel: Axes, marks: dict[str, style.Mark]
) -> None:
    priced = [(value / cost.unit, row) for row in rows if (value := cost.value_of(row)) is not None]
    for arm in dict.fromkeys(row.level.of for _, row in priced):
        of_arm = [(value, row) for value, row in priced if row.level.of == arm]
        look = style.line(marks[arm], 0) | {"linestyle": ""}
        places = [value for value, _ in of_arm]
        rate_panel.plot(
            places, [row.level.throughput or 0.0 for _, row in of_arm], label=style.shorten(arm, 24), **look
        )
        speed_panel.plot(places, [row.ratio or float("nan") for _, row in of_arm], **look)
    front = [((cost.value_of(row) or 0.0) / cost.unit, row.level.throughput or 0.0, row)
             for row in pareto_front(rows, cost.value_of)]  # fmt: skip
    rate_panel.step([value for value, _, _ in front], [speed for _, speed, _ in front], where="post", color=style.SOFT,
              linewidth=1, zorder=0, label="Pareto front")  # fmt: skip
    for value, speed, row in front:
        name = style.shorten(row.other_labels(""), 30)
        rate_panel.annotate(name, (value, speed), xytext=(4, 4), textcoords="offset points", fontsize=6.5)
    speed_panel.axhline(1, color=style.INK, linewidth=1)
    rate_panel.set_title(f"Speed against {cost.name}")
    rate_panel.set_ylabel("tokens per second, prefill included")
    speed_panel.set_title(f"Speed-up against {cost.name}")
    speed_panel.set_ylabel("over its group's baseline (×)")
    for panel in (rate_panel, speed_panel):
        panel.set_xlabel(cost.label)
        panel.margins(0.12)
        panel.locator_params(axis="x", nbins=5)
        panel.set_ylim(bottom=0)
        panel.grid()


Value = Callable[["Level"], float | None]


def draw_concurrency(analysis: Analysis) -> Figure | None:
    """Left total throughput, right median latency, both by concurrency; `None` below two levels."""
    rows = closed_levels(analysis)
    if len({row.concurrency for row in rows if row.throughput is not None}) < 2:
        return None
    figure, drawn = _by_load(
        analysis, rows, lambda row: row.concurrency, lambda row: row.throughput, lambda row: row.temperature
    )
    for throughput_panel, latency_panel, of_kind in drawn:
        temperature = of_kind[0].temperature
        throughput_panel.set_title("Total throughput" + (f", temperature {temperature:g}" if len(drawn) > 1 else ""))
        throughput_panel.set_ylabel("tokens per second, all requests")
        _whiskers(throughput_panel, of_kind, analysis)
        crossings = analysis.sweep.crossings if analysis.sweep else []
        _mark(
            throughput_panel,
            [crossing for crossing in crossings if crossing.temperature == temperature],
            of_kind,
            analysis,
        )
        for axes in (throughput_panel, latency_panel):
            _name_levels(axes, sorted({float(row.concurrency) for row in of_kind}))
            axes.set_xlabel("maximum requests in flight")
    style.legend_below(figure, drawn[0][0])
    return figure


def draw_front(analysis: Analysis) -> Figure | None:
    """The speed of a request against total throughput, a line an arm; `None` where no arm has two levels."""
    rows = [row for row in closed_levels(analysis) if row.throughput and row.request_rate]
    if not any(len(levels) > 1 for levels in curves(rows).values()):
        return None
    kinds = sorted({row.temperature for row in rows})[:MOST_PANELS]
    figure = style.new_figure(0.6 + 3.4 * len(kinds))
    panels = list(figure.subplots(len(kinds), 1, squeeze=False).flat)
    for panel, temperature in zip(panels, kinds, strict=True):
        of_kind = [row for row in rows if row.temperature == temperature]
        _curves(panel, analysis, of_kind, lambda row: row.throughput, lambda row: row.request_rate)
        front = on_front(of_kind)
        panel.plot([row.throughput or 0.0 for row in front], [row.request_rate or 0.0 for row in front],
                   color=style.SOFT, linewidth=6, marker="o", markersize=14, alpha=0.45, zorder=0,
                   label="front (number: requests in flight)")  # fmt: skip
        for row in front:
            panel.annotate(f"{row.concurrency}", (row.throughput or 0.0, row.request_rate or 0.0), xytext=(5, 5),
                           textcoords="offset points", fontsize=7)  # fmt: skip
        several = f", temperature {temperature:g}" if len(kinds) > 1 else ""
        panel.set_title(f"Speed of a request against total throughput{several}")
        panel.set_xlabel("tokens per second, all requests")
        panel.set_ylabel("tokens per second of a request (median)")
        _name_levels(panel, _round_ticks(panel.get_xlim()))
    style.legend_below(figure, panels[0])
    return figure


def _round_ticks(limits: tuple[float, float]) -> list[float]:
    """Return about five numbers with few digits between two limits of a logarithmic scale."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = limits
    ticker = LogLocator(subs=(1, 2, 5)) if high / low > 10 else MaxNLocator(5)
    return [float(tick) for tick in ticker.tick_values(low, high) if low <= tick <= high]


def draw_rate(analysis: Analysis) -> Figure | None:
    """Left requests finished, right median latency, both by the requested rate; `None` below two rates."""
    rows = open_levels(analysis)
    if len({row.rate for row in rows}) < 2:
        return None
    figure, drawn = _by_load(
        analysis, rows, lambda row: row.rate, _finished, lambda row: (row.temperature, row.concurrency)
    )
    for finished_panel, latency_panel, of_kind in drawn:
        rates = sorted({row.rate for row in of_kind if row.rate})
        finished_panel.plot(rates, rates, color=style.SOFT, linewidth=0.9, linestyle=":", label="as many as sent")
        for axes in (finished_panel, latency_panel):
            _name_levels(axes, rates)
            axes.set_xlabel("requests sent per second")
        several = f" (t={of_kind[0].temperature:g}, c={of_kind[0].concurrency})" if len(drawn) > 1 else ""
        finished_panel.set_title(f"Requests finished{several}")
        finished_panel.set_ylabel("per second")
    style.legend_below(figure, drawn[0][0])
    return figure


def _finished(row: Level) -> float | None:
    return row.arrival.finished_rate if row.arrival else None


def _by_load(
    analysis: Analysis, rows: Sequence[Level], load: Value, first_value: Value, alike: Callable[[Level], Any]
) -> tuple[Figure, list[tuple[Axes, Axes, list[Level]]]]:
    """Draw a value and the median latency by the load, a pair of panels for all levels that are alike otherwise."""
    kinds = sorted({alike(row) for row in rows})[:MOST_PANELS]
    figure = style.new_figure(0.4 + 2.9 * len(kinds))
    drawn = []
    for kind, panels in zip(kinds, figure.subplots(len(kinds), 2, squeeze=False), strict=True):
        of_kind = [row for row in rows if alike(row) == kind]
        for axes, value in zip(panels, (first_value, lambda row: row.e2e.median), strict=True):
            _curves(axes, analysis, of_kind, load, value)
        panels[1].set_title("Median latency of a request")
        panels[1].set_ylabel("seconds to the last byte")
        drawn.append((*panels, of_kind))
    return figure, drawn


def _curves(axes: Axes, analysis: Analysis, rows: Sequence[Level], x: Value, y: Value) -> None:
    """A line for each of the recipe's arms on two logarithmic scales, so that interpolation follows the line."""
    marks = style.marks(analysis.settings, analysis.baseline)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid()
    by_load = sorted(rows, key=lambda row: (row.rate or 0.0, row.concurrency))
    for number, arm in enumerate(analysis.settings):
        points = [(level, value) for row in by_load if row.of == arm and (level := x(row)) and (value := y(row))]
        if points:
            is_baseline = arm == analysis.baseline
            look = style.line(marks[arm], number)
            look |= {"linewidth": 1.6, "markeredgecolor": style.PAPER} if is_baseline else {}
            name = style.shorten(f"{arm} (no speculation)" if is_baseline else arm, 30)
            axes.plot(*zip(*points, strict=True), label=name, **look)


def _name_levels(axes: Axes, levels: Sequence[float]) -> None:
    """Ticks where something was measured, and plain numbers instead of powers of ten."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, NullLocator

    axes.set_xticks(levels, [f"{level:g}" for level in levels])
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    narrow = MaxNLocator(5) if high / low < 3 else LogLocator(subs=(1, 1.5, 2, 3, 4, 5, 6, 8))
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high / low > 10 else narrow)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_locator(NullLocator())


def _whiskers(axes: Axes, rows: Sequence[Level], analysis: Analysis) -> None:
    """The interval of an arm's throughput over the baseline's, about its point; cut off at half and twice its value."""
    marks = style.marks(analysis.settings, analysis.baseline)
    arms = [arm for arm in analysis.settings if arm != analysis.baseline]
    for row in rows:
        ends = row.throughput_interval
        if ends and row.throughput and row.throughput_speedup:
            scale = row.throughput / row.throughput_speedup  # the baseline's, over the blocks that both have
            low, high = max(ends.low, row.throughput_speedup / 2), min(ends.high, 2 * row.throughput_speedup)
            beside = row.concurrency * 1.025 ** (arms.index(row.of) - (len(arms) - 1) / 2)
            axes.vlines(beside, scale * low, scale * high, color=marks[row.of].colour, linewidth=1.4)


def _mark(axes: Axes, crossings: Sequence[Crossing], rows: Sequence[Level], analysis: Analysis) -> None:
    """A ring and a number where an arm's curve meets the baseline's."""
    import numpy as np

    base = sorted((row.concurrency, row.throughput) for row in rows if row.is_baseline and row.throughput)
    marks = style.marks(analysis.settings, analysis.baseline)
    for crossing in crossings:
        if crossing.at is None or len(base) < 2 or crossing.arm not in marks:
            continue  # of a length or a setup alone: the baseline's curve here is of all of them
        x, y = zip(*base, strict=True)
        height = float(np.exp(np.interp(np.log(crossing.at), np.log(x), np.log(y))))
        axes.plot(crossing.at, height, "o", markersize=13, markerfacecolor="none",
                  markeredgecolor=marks[crossing.arm].colour, markeredgewidth=1.6, zorder=6)  # fmt: skip
        axes.annotate(f"≈ {crossing.at:.1f}", (crossing.at, height), xytext=(0, -19), textcoords="offset points",
                      ha="center", fontsize=8, bbox=style.box(0.8), zorder=7)  # fmt: skip
