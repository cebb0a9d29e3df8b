"""All figures of a report, drawn and written as SVG and PNG."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import UnitCost
from benchctl.reports.figures import arms, breakeven, style, sweep, widths

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchctl.analysis.conditions.results import Dimension

Section: TypeAlias = "Dimension | Literal['axes']"
"""The subject of a section of a sweep's report."""


@dataclass(frozen=True)
class Drawing:
    """A figure of the report. A report has none where there is nothing to draw."""

    draw: Callable[[Analysis], Figure | None]
    name: str
    """File name without its ending."""
    title: str
    caption: str
    alt: str
    """A description of the figure for screen readers."""
    varies: Section | None = None
    """The dimension that the figure belongs to, in a run that varies it; `None` for every run."""
    svg: str = ""
    png: bytes = b""
    """The figure as drawn, see `draw_all`."""


_DRAWN: dict[str, Callable[[Analysis], Figure | None]] = {
    "by-axis": sweep.draw_axes,
    "pareto": sweep.draw_pareto,
    "by-context": partial(sweep.draw_labels, axes=["context_length"]),
    "by-answer": partial(sweep.draw_labels, axes=["max_tokens"]),
    "by-concurrency": sweep.draw_concurrency,
    "front": sweep.draw_front,
    "by-rate": sweep.draw_rate,
    "by-temperature": partial(sweep.draw_labels, axes=["temperature"]),
    "speedup": arms.draw_speedup,
    "acceptance": arms.draw_acceptance,
    "payoff": arms.draw_payoff,
    "rounds": arms.draw_rounds,
    "tokens-per-time": arms.draw_tokens_per_time,
    "widths": widths.draw_widths,
    "left-out": arms.draw_left_out,
    "breakeven": breakeven.draw_breakeven,
}
_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("figures.toml").read_text("utf-8"))
_FIGURES = [Drawing(draw=draw, name=name, **_TEXTS[name]) for name, draw in _DRAWN.items()]


def draw_all(analysis: Analysis) -> list[Drawing]:
    """Draw the figures of what this run varies, and of every run."""
    varied: set[Section | None] = {None, *(analysis.sweep.dimensions if analysis.sweep else ())}
    varied |= {"axes"} if analysis.sweep and analysis.sweep.over_axes else set()
    figures = [drawing for drawing in _FIGURES if drawing.varies in varied]
    return [drawn for drawing in figures if (drawn := _drawn(drawing, partial(drawing.draw, analysis))) is not None]


def width_figure(curve: Sequence[UnitCost]) -> Drawing | None:
    """Draw the width curve of a target alone; `None` where too few widths were timed."""
    (drawing,) = (drawing for drawing in _FIGURES if drawing.name == "widths")
    return _drawn(drawing, lambda: widths.draw_curve(curve))


def _drawn(drawing: Drawing, draw: Callable[[], Figure | None]) -> Drawing | None:
    with style.styled():
        figure = draw()
        if figure is None:
            return None
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # computed once; with another engine `savefig` draws twice for each format
        return replace(drawing, svg=style.to_svg(figure), png=style.to_png(figure))
