"""What measured break-even adds to a report: the acceptance that each depth needs, the curves and their points."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.analysis.results import Analysis
from benchctl.experiments.explain.curve import BreakEven, Need, Point, Reference, curve_line, measured_arms
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, for_programs, interval, numeric
from benchctl.reports.figures import style
from benchctl.reports.figures.draw import Addition, Drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from benchctl.data.store import RunData

NOT_AN_OUTPUT = "The text of synthetic arms is not a model's output: draft tokens were accepted at random."
_KINDS = {"synthetic": "synthetic (not a model's output)", "draft": "real draft", "reference": "reference (inferred)"}


def needs_table(found: BreakEven) -> Table[Need]:
    """A row a depth."""
    return Table(
        "breakeven",
        "Break-even",
        (
            numeric("Depth k", "depth"),
            numeric(
                "Break-even α, measured",
                "alpha",
                cell=_crossing,
                explain="acceptance of a draft token at which the curve of synthetic acceptance crosses 1, and where "
                "curves through the ends of the 95 % intervals do.",
            ),
            numeric("Tokens per round", "tokens", numbers.decimal),
            numeric(
                "by the cost model",
                "by_model",
                cell=lambda row: "never pays" if row.model_says == "never pays" else numbers.percent(row.by_model),
                explain="the same, from the cost of the real draft's rounds (inferred).",
            ),
            numeric("Real draft's α", "measured", numbers.percent),
            *for_programs("alpha_low", "alpha_high", "outcome"),
        ),
        found.needs,
    )


def _crossing(need: Need) -> str:
    """Where a depth breaks even, with the range; else what it does instead."""
    if need.outcome == "crosses":
        ends = f"{numbers.percent(need.alpha_low)} to {numbers.percent(need.alpha_high)}"
        return f"{numbers.percent(need.alpha)} ({ends})"
    return numbers.ABSENT if need.outcome == "not measured" else need.outcome


def points_table(found: BreakEven) -> Table[Point]:
    """A row a point."""
    return Table(
        "breakeven-points",
        "Points of the curve",
        (
            Column("Arm", "name", Name, heads=True),
            Column("Kind", "kind", _KINDS.__getitem__),
            numeric("Depth k", "depth"),
            numeric("Tokens per round", "tokens", numbers.decimal),
            numeric("α", "alpha", numbers.percent),
            numeric("Speed-up", "speedup", numbers.ratio),
            interval("95 % interval", "interval"),
            numeric(
                "The curve there",
                "curve",
                numbers.ratio,
                explain="the synthetic curve at a real draft's tokens per round.",
            ),
            Column("Within interval", "curve_holds", numbers.yes_or_no),
        ),
        found.points,
        note=NOT_AN_OUTPUT,
    )


def statements(found: BreakEven) -> list[str]:
    """The break-even of each depth, points off the curve, and points that could not be placed, a sentence each."""
    return [
        *(need.sentence for need in found.needs),
        *(point.note for point in found.points if point.note),
        *found.notes,
    ]


def draw_curves(found: BreakEven) -> Figure | None:
    """A curve a depth; `None` where no depth has two points."""
    curves = {need.depth: [point for point in found.points if point.belongs_to(need.depth)] for need in found.needs}
    curves = {depth: curve for depth, curve in curves.items() if len(curve) > 1}
    if not curves:
        return None
    figure = style.new_figure(3.9)
    axes = figure.subplots()
    marks = style.marks([f"depth {depth}" for depth in curves], "")
    for depth, curve in curves.items():
        mark = marks[f"depth {depth}"]
        alphas, speeds = zip(*curve_line(curve, depth), strict=True)
        axes.plot([100 * alpha for alpha in alphas], speeds, color=mark.colour, linewidth=1.3, label=f"depth {depth}")
        for point in found.points:
            if point.depth == depth:
                _draw_point(axes, point, mark)
    axes.axhline(1, color=style.INK, linewidth=1, label="break-even")
    axes.set_xlim(-3, 103)
    drawn = [point for point in found.points if point.depth in curves]
    axes.set_ylim(0, 1.15 * max(1.0, *(shown.speedup for shown in drawn)))
    axes.grid()
    axes.set_xlabel("acceptance α of a draft token (%)")
    axes.set_ylabel("decode speed-up (×)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=min(5, len(curves) + 1))
    return figure


def _draw_point(axes: Axes, point: Point, mark: style.Mark) -> None:
    x = 100 * point.alpha
    if point.interval is not None:
        axes.vlines(x, point.interval.low, point.interval.high, color=mark.colour, linewidth=1, alpha=0.7)
    if point.kind == "reference":
        axes.plot(x, point.speedup, "x", color=mark.colour, markersize=7, markeredgewidth=1.5)
        return
    hollow = point.kind == "synthetic"
    axes.plot(x, point.speedup, mark.marker, markersize=5 if hollow else 7, markeredgewidth=1.1,
              markerfacecolor=style.PAPER if hollow else mark.colour,
              markeredgecolor=mark.colour if hollow else style.INK)  # fmt: skip


_DRAWING = partial(
    Drawing,
    name="breakeven",
    title="Break-even, measured",
    caption="Speed-up of each draft depth at every acceptance. Hollow marks: synthetic acceptance (draft tokens "
    "accepted at random; their text is not a model's output); filled marks: the real drafts; crosses: given "
    "acceptance lengths, at this machine's speed. Whiskers: 95 % interval.",
    alt="Curves of speed-up over acceptance, for each depth, with the real drafts as points, against a line at 1. "
    "The table “Break-even” has the same numbers.",
)


def addition(analysis: Analysis) -> Addition | None:
    """Return what the report of a run with synthetic arms has more."""
    if analysis.breakeven is None:
        return None
    found = BreakEven.model_validate(analysis.breakeven)
    return Addition(
        tables=(needs_table(found), points_table(found)),
        statements=statements(found),
        figure=_DRAWING(draw=lambda _: draw_curves(found)),
    )


def acceptance_lengths(run: RunData, analysis: Analysis) -> list[Reference]:
    """The acceptance lengths of a run's real drafts, by the models they ran on; the mode is how they are drafted."""
    settings = {verdict.arm: verdict.setting.partition(",")[0] for verdict in analysis.verdicts}
    found = []
    for arm in measured_arms(analysis, run.manifest):
        if not arm.synthetic and arm.tokens is not None:
            on = analysis.compared[arm.name]
            models = [Path(model.source).name for model in (on.target, on.draft) if model is not None]
            name = " + ".join(models or [analysis.recipe]) + (f" ({on.setup})" if on.setup else "")
            mode = settings[arm.name]
            found.append(Reference(model=name, mode=mode, depth=arm.depth, acceptance_length=arm.tokens))
    return found


def measured_with(run: RunData, analysis: Analysis) -> list[str]:
    """What acceptance lengths were measured with, a line each."""
    recipe = run.manifest.recipe if run.manifest else {}
    return [
        "Acceptance lengths: tokens per verification step, the target's own included.",
        f"run {analysis.run} of {analysis.recipe}, sampling {json.dumps(recipe.get('sampling'))}, "
        f"prompts {json.dumps(recipe.get('prompts'))}",
        "model: mode (how it drafts): draft depth: acceptance length",
    ]
