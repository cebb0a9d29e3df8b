"""Acceptance and speed-up by temperature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchctl.analysis.conditions.split import TemperatureRow, temperature_rows
from benchctl.analysis.results import Analysis
from benchctl.reports.figures import style

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LINES = 3
"""Limit of concurrencies or rates with a pair of panels; the table has all."""
_DASHES = ("-", "--", "-.", ":")


def draw(analysis: Analysis) -> Figure | None:
    """Left the acceptance rate, right the speed-up with its interval, by temperature; `None` where it does not vary."""
    rows = [row for row in temperature_rows(analysis) if row.speedup.pooled is not None]
    lines = sorted({_line(row) for row in rows})[:MOST_LINES]
    if not lines:
        return None
    figure = style.new_figure(0.4 + 2.7 * len(lines))
    panels = figure.subplots(len(lines), 2, squeeze=False)
    for (left, right), line in zip(panels, lines, strict=True):
        here = [row for row in rows if _line(row) == line]
        _draw(left, right, analysis, here)
        where = f", {f'{line[0]:g} per second' if line[0] else f'concurrency {line[1]}'}" if len(lines) > 1 else ""
        left.set_title(f"Acceptance rate{where}")
        left.set_ylabel("accepted / drafted tokens (%)")
        right.set_title("Decode speed-up")
        right.set_ylabel("over the baseline (×)")
        for axes in (left, right):
            axes.set_xlabel("temperature")
    handles, labels = panels[0][1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(3, len(handles)))
    return figure


def _line(row: TemperatureRow) -> tuple[float, int]:
    return row.level.rate or 0.0, row.level.concurrency


def _draw(left: Axes, right: Axes, analysis: Analysis, rows: Sequence[TemperatureRow]) -> None:
    marks = style.marks(analysis.settings, analysis.baseline)
    left.set_ylim(0, 102)
    right.axhline(1, color=style.INK, linewidth=1, label="break-even: pays above")
    highest = 1.0
    for number, of in enumerate(dict.fromkeys(row.level.of for row in rows)):
        own = sorted((row for row in rows if row.level.of == of), key=lambda row: row.level.temperature)
        line_style: dict[str, Any] = {
            "color": marks[of].colour,
            "marker": marks[of].marker,
            "linestyle": _DASHES[number % len(_DASHES)],
            "linewidth": 1.3,
            "markersize": 6,
            "markeredgecolor": style.INK,
            "markeredgewidth": 0.6,
        }
        shares = [(row.level.temperature, 100 * row.acceptance.rate) for row in own if row.acceptance.rate is not None]
        if shares:
            left.plot(*zip(*shares, strict=True), **line_style)
        right.plot(
            [row.level.temperature for row in own],
            [row.speedup.pooled or 0.0 for row in own],
            label=style.shorten(of, 24),
            **line_style,
        )
        for row in own:
            ends = row.speedup.interval
            if ends is not None:
                right.vlines(row.level.temperature, ends.low, ends.high, color=marks[of].colour, linewidth=1.4)
            highest = max(
                highest, row.speedup.pooled or 0.0, min(ends.high, 2 * (row.speedup.pooled or 0)) if ends else 0
            )
    right.set_ylim(0, 1.15 * highest)
    for axes in (left, right):
        axes.grid()
        axes.set_xticks(sorted({row.level.temperature for row in rows}))
