"""All figures of a report, drawn and written as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.results import Analysis
from benchctl.reports.figures import acceptance, payoff, speedup, style, throughput

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """One figure of the report. `svg` and `png` are `None` where there was nothing to draw; `absent` says why."""

    name: str
    """File name without its ending."""
    title: str
    caption: str
    alt: str
    """What the figure shows, for those who do not see it."""
    absent: str
    svg: str | None = None
    png: bytes | None = None


_FIGURES: tuple[tuple[Callable[[Analysis], Figure | None], Drawing], ...] = (
    (
        speedup.draw,
        Drawing(
            name="speedup",
            title="Speed-up by task and arm",
            caption="Pooled decode speed-up over the baseline. Whiskers: 95 % interval, where there are enough blocks; "
            "cut off where it is very wide; small strokes above: each block. Left of the line at 1 an arm is slower "
            "than no speculation.",
            alt="The decode speed-up of every arm in every task against a line at 1. "
            "The table “Speed-up” has the same numbers.",
            absent="No speed-up can be drawn: no arm and the baseline finished the same prompt.",
        ),
    ),
    (
        acceptance.draw,
        Drawing(
            name="acceptance",
            title="Acceptance by depth",
            caption="How much of what was drafted the target kept, by arm and draft depth k; and, where the engine "
            "tells, the share of verify rounds that accepted the draft token at each position.",
            alt="Acceptance rate by arm and draft depth, and acceptance by draft position. "
            "The table “Acceptance” has the same numbers.",
            absent="Acceptance is not told by this engine, contradicts itself, or nothing was drafted.",
        ),
    ),
    (
        throughput.draw,
        Drawing(
            name="throughput",
            title="Throughput distributions",
            caption="Decode throughput, one point a record (at most 300 a row), by the client's clock, or the engine's "
            "where the client did not time the answer. Boxes: quartiles; line: median; whiskers: up to 1.5 times the "
            "quartile distance.",
            alt="Boxes and points of the decode throughput of every record, by task and arm. "
            "The table “Throughput” has the medians.",
            absent="No record has a decode rate.",
        ),
    ),
    (
        payoff.draw,
        Drawing(
            name="payoff",
            title="Acceptance against realised speed-up",
            caption="High acceptance alone does not pay: a round of drafting and verifying must also be cheap. Hollow "
            "marks: the acceptance from which the arm would break even at its measured overhead; “over 100 %”: not "
            "even a draft that is always accepted would, by this estimate.",
            alt="Points of acceptance and speed-up, one an arm, against the break-even line at 1; beside it the "
            "measured and the needed acceptance. The tables “Acceptance” and “Cost of a round” have the same numbers.",
            absent="Acceptance and speed-up are not both known for any arm.",
        ),
    ),
)


def draw_all(analysis: Analysis) -> list[Drawing]:
    """Draw the four figures; those without data come back without an image."""
    return [_draw(function, drawing, analysis) for function, drawing in _FIGURES]


def _draw(function: Callable[[Analysis], Figure | None], drawing: Drawing, analysis: Analysis) -> Drawing:
    from dataclasses import replace

    with style.styled():
        figure = function(analysis)
        if figure is None:
            return drawing
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is found; it need not be found again for each format
        return replace(drawing, svg=style.to_svg(figure), png=style.to_png(figure))
