"""All figures of a report, drawn and written as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from benchctl.analysis.results import Analysis
from benchctl.reports.figures import (
    acceptance,
    axes,
    breakeven,
    concurrency,
    payoff,
    rounds,
    speedup,
    style,
    temperature,
    throughput,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchctl.analysis.conditions.results import Dimension

Section: TypeAlias = "Dimension | Literal['axes']"
"""What a section of a sweep's report is about."""


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
    varies: Section | None = None
    """What the figure is about, of a run that varies it; `None` where it belongs to every run."""
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
            "reports it, the share of verify rounds that accepted the draft token at each of the first 16 positions. "
            "Arms of fewer than 20 rounds are not drawn.",
            alt="Acceptance rate by arm and draft depth, and acceptance by draft position. "
            "The table “Acceptance” has the same numbers.",
            absent="Acceptance is not reported by this engine, contradicts itself, or hardly anything was drafted.",
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
            "marks of the printed figure: the acceptance from which the arm would break even at its measured overhead; "
            "“over 100 %”: not even a draft that is always accepted would, by this estimate.",
            alt="Points of acceptance and speed-up, one an arm, against the break-even line at 1; beside it the "
            "measured and the needed acceptance. The tables “Acceptance” and “Cost of a round” have the same numbers.",
            absent="Acceptance and speed-up are not both known for any arm.",
        ),
    ),
    (
        rounds.draw,
        Drawing(
            name="rounds",
            title="Where a round's time goes",
            caption="A mean round of each arm, split into its parts, over its tokens: what a token costs. A bar beyond "
            "the line at 1 is slower than no speculation. Hatched: inferred, not timed in this run; where such parts "
            "take longer than the round, nothing is left over and the bar is too long.",
            alt="Stacked bars of the time of a round, over its tokens, by arm and task. "
            "The table “Where a round's time goes” has the same numbers.",
            absent="This engine does not tell its rounds.",
        ),
    ),
)


_OF_SWEEPS: tuple[tuple[Callable[[Analysis], Figure | None], Drawing], ...] = (
    (
        axes.draw_axes,
        Drawing(
            name="by-axis",
            varies="axes",
            title="Acceptance and speed-up by axis",
            caption="Left: how much of what was drafted the target kept. Right: pooled decode speed-up over the "
            "baseline of the same group, with its 95 % interval where there are enough blocks; cut off where "
            "it is very wide. A line joins arms that differ in this axis alone; at most 12 are drawn.",
            alt="Acceptance rate and speed-up of every arm along every axis. "
            "The table “Every arm by axis” has the same numbers.",
            absent="No arm and its baseline finished the same prompt.",
        ),
    ),
    (
        axes.draw_pareto,
        Drawing(
            name="pareto",
            varies="axes",
            title="Speed against memory",
            caption="Left: tokens a second of every arm, the baselines among them; the grey line joins those that no "
            "other beats in both. Right: speed-up over the baseline of the same group, another for each "
            "group. Memory is counted before the run, not measured. Energy was not measured.",
            alt="Points of tokens a second, and of speed-up, against memory. "
            "The table “Every arm by axis” has the same numbers.",
            absent="Memory is not known of two arms that differ in it.",
        ),
    ),
    (
        axes.draw_contexts,
        Drawing(
            name="by-context",
            varies="context_length",
            title="Acceptance and speed-up by context length",
            caption="Left: how much of what was drafted the target kept. Right: pooled decode speed-up over the "
            "baseline at the same length, with its 95 % interval where there are enough blocks.",
            alt="Acceptance rate and speed-up of every arm against the length of prompts.",
            absent="No arm and its baseline finished the same prompt.",
        ),
    ),
    (
        concurrency.draw_concurrency,
        Drawing(
            name="by-concurrency",
            varies="concurrency",
            title="Throughput and latency by concurrency",
            caption="Left: tokens a second of all requests together, while all slots were full. "
            "Right: how long a request takes, median. A ring: where an arm's total throughput falls below that without "
            "speculation, interpolated between the measured levels beside it. Whiskers: 95 % interval of its ratio to "
            "the baseline, where there are enough blocks; cut off where it is very wide. Both scales are logarithmic.",
            alt="Total throughput and median latency of every arm and of the baseline against concurrency. "
            "The table “By concurrency” has the same numbers.",
            absent="Fewer than two levels of concurrency have a total throughput.",
        ),
    ),
    (
        concurrency.draw_rate,
        Drawing(
            name="by-rate",
            varies="rate",
            title="Requests finished and latency by arrival rate",
            caption="Left: requests that ended a second; below the dotted line the server does not keep up. Right: how "
            "long a request takes from its intended send time, median; where the server does not keep up it depends on "
            "how many requests there were. Both scales are logarithmic.",
            alt="Requests finished a second and median latency of every arm and of the baseline against the rate asked "
            "for. The table “By rate” has the same numbers.",
            absent="Only one rate was measured.",
        ),
    ),
    (
        temperature.draw,
        Drawing(
            name="by-temperature",
            varies="temperature",
            title="Acceptance and speed-up by temperature",
            caption="Left: how much of what was drafted the target kept. Right: pooled decode speed-up over the "
            "baseline at the same temperature, with its 95 % interval where there are enough blocks.",
            alt="Acceptance rate and speed-up of every arm against temperature. "
            "The table “By temperature” has the same numbers.",
            absent="No arm and the baseline finished the same prompt at any temperature.",
        ),
    ),
)


_BREAKEVEN = (
    breakeven.draw,
    Drawing(
        name="breakeven",
        title="Break-even, measured",
        caption="Speed-up of each draft depth at every acceptance, by accepting draft tokens by lot (synthetic "
        "acceptance: hollow marks; their text is no model's output); filled marks: the real drafts; crosses: "
        "acceptance lengths from elsewhere, at this machine's speed. Whiskers: 95 % interval.",
        alt="Curves of speed-up over acceptance, one a depth, with the real drafts as points, against a line at 1. "
        "The table “Break-even” has the same numbers.",
        absent="Fewer than two acceptances were measured at any depth.",
    ),
)


def draw_all(analysis: Analysis) -> list[Drawing]:
    """Draw the figures of every run, and of what this one varies; those without data come back without an image."""
    swept: list[Section] = [*analysis.sweep.dimensions] if analysis.sweep else []
    swept += ["axes"] if analysis.sweep and analysis.sweep.over_axes else []
    figures = [*(one for one in _OF_SWEEPS if one[1].varies in swept), *_FIGURES]
    figures += [_BREAKEVEN] if analysis.breakeven else []
    return [_draw(function, drawing, analysis) for function, drawing in figures]


def _draw(function: Callable[[Analysis], Figure | None], drawing: Drawing, analysis: Analysis) -> Drawing:
    from dataclasses import replace

    with style.styled():
        figure = function(analysis)
        if figure is None:
            return drawing
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # the layout is found; it need not be found again for each format
        return replace(drawing, svg=style.to_svg(figure), png=style.to_png(figure))
