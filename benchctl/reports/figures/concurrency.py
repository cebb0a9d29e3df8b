"""Total throughput and median latency by concurrency, or by arrival rate, with and without speculation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.conditions.split import closed_levels, open_levels
from benchctl.analysis.results import Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchctl.analysis.conditions.results import Crossing, Level

MOST_LINES = 3
"""Limit of temperatures (or concurrencies of an open loop) with a pair of panels; the tables have all."""

Value = Callable[["Level"], float | None]


def draw_concurrency(analysis: Analysis) -> Figure | None:
    """Left total throughput, right median latency, both by concurrency; `None` below two levels."""
    rows = closed_levels(analysis)
    if len({row.concurrency for row in rows if row.throughput is not None}) < 2:
        return None
    lines = sorted({row.temperature for row in rows})[:MOST_LINES]
    figure = style.new_figure(0.4 + 2.9 * len(lines))
    panels = figure.subplots(len(lines), 2, squeeze=False)
    for (left, right), temperature in zip(panels, lines, strict=True):
        here = [row for row in rows if row.temperature == temperature]
        title = f", temperature {temperature:g}" if len(lines) > 1 else ""
        _draw(left, analysis, here, lambda row: row.concurrency, lambda row: row.throughput)
        _draw(right, analysis, here, lambda row: row.concurrency, lambda row: row.e2e.median)
        left.set_title(f"Total throughput{title}")
        left.set_ylabel("tokens per second, all requests")
        right.set_title("Median latency of a request")
        right.set_ylabel("seconds to the last byte")
        _whiskers(left, here, analysis)
        crossings = analysis.sweep.crossings if analysis.sweep else []
        _mark(left, [crossing for crossing in crossings if crossing.temperature == temperature], here, analysis)
        for axes in (left, right):
            _name_levels(axes, sorted({float(row.concurrency) for row in here}))
            axes.set_xlabel("maximum requests in flight")
    style.legend_below(figure, panels[0][0])
    return figure


def draw_rate(analysis: Analysis) -> Figure | None:
    """Left requests finished, right median latency, both by the requested rate; `None` below two rates."""
    rows = open_levels(analysis)
    if len({row.rate for row in rows}) < 2:
        return None
    lines = sorted({(row.temperature, row.concurrency) for row in rows})[:MOST_LINES]
    figure = style.new_figure(0.4 + 2.9 * len(lines))
    panels = figure.subplots(len(lines), 2, squeeze=False)
    for (left, right), line in zip(panels, lines, strict=True):
        here = [row for row in rows if (row.temperature, row.concurrency) == line]
        _draw(left, analysis, here, lambda row: row.rate, _finished)
        _draw(right, analysis, here, lambda row: row.rate, lambda row: row.e2e.median)
        rates = sorted({row.rate for row in here if row.rate})
        left.plot(rates, rates, color=style.SOFT, linewidth=0.9, linestyle=":", label="as many as sent")
        for axes in (left, right):
            _name_levels(axes, rates)
            axes.set_xlabel("requests sent per second")
        left.set_title("Requests finished" + (f" (t={line[0]:g}, c={line[1]})" if len(lines) > 1 else ""))
        left.set_ylabel("per second")
        right.set_title("Median latency of a request")
        right.set_ylabel("seconds to the last byte")
    style.legend_below(figure, panels[0][0])
    return figure


def _finished(row: Level) -> float | None:
    return row.arrival.finished_rate if row.arrival else None


def _draw(axes: Axes, analysis: Analysis, rows: Sequence[Level], x: Value, y: Value) -> None:
    """A line for each of the recipe's arms on two logarithmic scales, so that interpolation follows the line."""
    marks = style.marks(analysis.settings, analysis.baseline)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid()
    for number, of in enumerate(analysis.settings):
        points = [(place, value) for row in rows if row.of == of and (place := x(row)) and (value := y(row))]
        if points:
            is_baseline = of == analysis.baseline
            look = style.line(marks[of], number)
            look |= {"linewidth": 1.6, "markeredgecolor": style.PAPER} if is_baseline else {}
            name = style.shorten(f"{of} (no speculation)" if is_baseline else of, 30)
            axes.plot(*zip(*sorted(points), strict=True), label=name, **look)


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
    for row in rows:
        ends = row.throughput_interval
        if ends and row.throughput and row.throughput_speedup:
            scale = row.throughput / row.throughput_speedup  # the baseline's, over the blocks that both have
            axes.vlines(
                row.concurrency,
                scale * max(ends.low, row.throughput_speedup / 2),
                scale * min(ends.high, 2 * row.throughput_speedup),
                color=marks[row.of].colour,
                linewidth=1.4,
            )


def _mark(axes: Axes, crossings: Sequence[Crossing], rows: Sequence[Level], analysis: Analysis) -> None:
    """A ring and a number where an arm's curve meets the baseline's."""
    import numpy as np

    base = sorted((row.concurrency, row.throughput) for row in rows if row.is_baseline and row.throughput)
    marks = style.marks(analysis.settings, analysis.baseline)
    for crossing in crossings:
        if crossing.at is None or len(base) < 2:
            continue
        x, y = zip(*base, strict=True)
        height = float(np.exp(np.interp(np.log(crossing.at), np.log(x), np.log(y))))
        axes.plot(crossing.at, height, "o", markersize=13, markerfacecolor="none",
                  markeredgecolor=marks[crossing.arm].colour, markeredgewidth=1.6, zorder=6)  # fmt: skip
        axes.annotate(
            f"≈ {crossing.at:.1f}",
            (crossing.at, height),
            xytext=(0, -19),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            bbox={"facecolor": style.PAPER, "edgecolor": "none", "pad": 0.8},
            zorder=7,
        )
