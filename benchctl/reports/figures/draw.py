"""All figures of a report, drawn and written as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from benchctl.analysis.results import Analysis
from benchctl.offers import offered
from benchctl.reports.columns import Table
from benchctl.reports.figures import arms, style, sweep

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


@dataclass(frozen=True)
class Addition:
    """What an experiment adds to the report of a run."""

    tables: tuple[Table[Any], ...]
    statements: list[str]
    """Sentences below the tables."""
    figure: Drawing


def addition_to(analysis: Analysis) -> Addition | None:
    """Return what the installed experiments add to the report of this run."""
    found: Addition | None = offered("section")(analysis)
    return found


_FIGURES = (
    Drawing(
        draw=sweep.draw_axes,
        name="by-axis",
        varies="axes",
        title="Acceptance and speed-up by axis",
        caption="Left: share of drafted tokens that the target accepted. Right: pooled decode speed-up over the "
        "baseline of the same group, with its 95 % interval with enough blocks; cut off where very wide. A line "
        "joins arms that differ in this axis alone; at most 12 are drawn.",
        alt="Acceptance rate and speed-up of every arm along every axis. axes.csv has the same numbers.",
    ),
    Drawing(
        draw=sweep.draw_pareto,
        name="pareto",
        varies="axes",
        title="Speed against memory and energy",
        caption="Left: tokens per second of every arm and baseline; the grey line is the Pareto front. Right: "
        "speed-up over the baseline of the same group. Memory is estimated before the run, not measured. Energy, where "
        "it is reported: the whole machine's, per generated token.",
        alt="Points of tokens per second, and of speed-up, against memory and energy. axes.csv has the same numbers.",
    ),
    Drawing(
        draw=partial(sweep.draw_labels, axes=["context_length"]),
        name="by-context",
        varies="context_length",
        title="Acceptance and speed-up by context length",
        caption="Left: share of drafted tokens that the target accepted. Right: pooled decode speed-up over the "
        "baseline at the same length, with its 95 % interval with enough blocks.",
        alt="Acceptance rate and speed-up of every arm against the length of prompts.",
    ),
    Drawing(
        draw=sweep.draw_concurrency,
        name="by-concurrency",
        varies="concurrency",
        title="Throughput and latency by concurrency",
        caption="Left: tokens per second of all requests together, while all slots were full. Right: median "
        "duration of a request. A ring: where an arm's total throughput falls below that without speculation, "
        "interpolated between measured levels. Whiskers: 95 % interval of its ratio to the baseline, with enough "
        "blocks; cut off where very wide. Both scales are logarithmic.",
        alt="Total throughput and median latency of every arm and of the baseline against concurrency. "
        "conditions.csv has the same numbers.",
    ),
    Drawing(
        draw=sweep.draw_rate,
        name="by-rate",
        varies="rate",
        title="Requests finished and latency by arrival rate",
        caption="Left: requests finished per second; below the dotted line the server does not keep up. Right: "
        "median latency from the intended send time; where the server does not keep up, it depends on the number "
        "of requests. Both scales are logarithmic.",
        alt="Requests finished per second and median latency of every arm and of the baseline against the "
        "requested rate. conditions.csv has the same numbers.",
    ),
    Drawing(
        draw=partial(sweep.draw_labels, axes=["temperature"]),
        name="by-temperature",
        varies="temperature",
        title="Acceptance and speed-up by temperature",
        caption="Left: share of drafted tokens that the target accepted. Right: pooled decode speed-up over the "
        "baseline at the same temperature, with its 95 % interval with enough blocks.",
        alt="Acceptance rate and speed-up of every arm against temperature. axes.csv has the same numbers.",
    ),
    Drawing(
        draw=arms.draw_speedup,
        name="speedup",
        title="Speed-up by task and arm",
        caption="Pooled decode speed-up over the baseline. Whiskers: 95 % interval of this value alone, with "
        "enough blocks; cut off where very wide. Ticks: each block. Left of the line at 1: slower than without.",
        alt="The decode speed-up of every arm in every task against a line at 1. speedup.csv has the same numbers.",
    ),
    Drawing(
        draw=arms.draw_acceptance,
        name="acceptance",
        title="Acceptance by depth and position",
        caption="Share of drafted tokens that the target accepted, by arm and draft depth k; where the engine "
        "reports it, the share of verify rounds that accepted the draft token at each of the first 16 positions. "
        "Arms with fewer than 20 rounds are not drawn.",
        alt="Acceptance rate by arm and draft depth, and acceptance by draft position. "
        "acceptance.csv has the same numbers.",
    ),
    Drawing(
        draw=arms.draw_payoff,
        name="payoff",
        title="Acceptance against realised speed-up",
        caption="High acceptance alone does not pay: a round of drafting and verifying must also be cheap. Hollow "
        "marks of the printed figure: the acceptance at which the arm would break even at its measured overhead; "
        "“over 100 %”: by this estimate not even a draft that is always accepted would.",
        alt="Points of acceptance and speed-up of every arm, against the break-even line at 1; beside it the "
        "measured and the break-even acceptance. acceptance.csv and costs.csv have the same numbers.",
    ),
    Drawing(
        draw=arms.draw_rounds,
        name="rounds",
        title="Where a round's time goes",
        caption="The mean round of each arm, split into its parts, per token. A bar beyond the line at 1 is slower "
        "than no speculation. Hatched: inferred, not timed in this run; where inferred parts exceed the round, the "
        "bar is too long.",
        alt="Stacked bars of the time of a round, over its tokens, by arm and task. rounds.csv has the same numbers.",
    ),
    Drawing(
        draw=arms.draw_tokens_per_time,
        name="tokens-per-time",
        title="Tokens per time against throughput",
        caption="Across: TPT, E / (k·c + v), the rate if nothing but drafting and verifying took time, by the "
        "run's own times. Below the dotted line: searching, state, plain steps and the rest took some.",
        alt="Points of tokens per time and throughput of every arm, both over the baseline's. "
        "rounds.csv has the same numbers.",
    ),
    Drawing(
        draw=arms.draw_left_out,
        name="left-out",
        title="What drafts left out, by layer and context",
        caption="Share of rounds that drafted without a part of a layer, or all of it, by the tokens before the "
        "round (to 64: 33 to 64). At most 12 arms are drawn.",
        alt="A map for each arm: layers across, parts and contexts down, darker where more rounds left it out. "
        "left-out.csv has the means over layers.",
    ),
)


def draw_all(analysis: Analysis) -> list[Drawing]:
    """Draw the figures of what this run varies, of every run, and of what an experiment adds."""
    varied: set[Section | None] = {None, *(analysis.sweep.dimensions if analysis.sweep else ())}
    varied |= {"axes"} if analysis.sweep and analysis.sweep.over_axes else set()
    more = addition_to(analysis)
    figures = [drawing for drawing in _FIGURES if drawing.varies in varied] + ([more.figure] if more else [])
    return [drawn for drawing in figures if (drawn := _drawn(drawing, analysis)) is not None]


def _drawn(drawing: Drawing, analysis: Analysis) -> Drawing | None:
    with style.styled():
        figure = drawing.draw(analysis)
        if figure is None:
            return None
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # computed once, not again for each format
        return replace(drawing, svg=style.to_svg(figure), png=style.to_png(figure))
