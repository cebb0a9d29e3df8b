"""Measured break-even: the acceptance that each depth needs, and every point of the curve."""

from __future__ import annotations

from benchctl.analysis.results import Analysis
from benchctl.analysis.rounds.results import Need, Point
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, interval, numeric

NOT_AN_OUTPUT = "The text of synthetic arms is not a model's output: draft tokens were accepted at random."
_KINDS = {
    "synthetic": "synthetic (not a model's output)",
    "draft": "real draft",
    "reference": "reference (inferred)",
}
_OUTCOMES = {"always pays": "always pays", "never pays": "never pays", "not measured": numbers.ABSENT}


def needs(analysis: Analysis) -> Table[Need]:
    """A row a depth."""
    return Table(
        "breakeven",
        "Break-even",
        (
            numeric("Depth k", lambda row: row.depth, key="depth"),
            numeric(
                "Break-even α, measured",
                lambda row: row.alpha,
                cell=lambda row: _OUTCOMES.get(row.outcome) or numbers.percent(row.alpha),
                key="alpha",
                explain="acceptance of one draft token at which the curve of synthetic acceptance crosses 1.",
            ),
            numeric("Tokens per round", lambda row: row.tokens, numbers.decimal, key="tokens"),
            numeric(
                "by the cost model",
                lambda row: row.by_model,
                cell=lambda row: "never pays" if row.model_says == "never pays" else numbers.percent(row.by_model),
                key="by_model",
                explain="the same, from the cost of the real draft's rounds (inferred).",
            ),
            numeric("Real draft's α", lambda row: row.measured, numbers.percent, key="measured"),
            Column("", lambda row: row.outcome, key="outcome"),
        ),
        analysis.breakeven.needs if analysis.breakeven else [],
    )


def points(analysis: Analysis) -> Table[Point]:
    """A row a point."""
    return Table(
        "breakeven-points",
        "Points of the curve",
        (
            Column("Arm", lambda row: row.name, cell=lambda row: Name(row.name), key="name", heads=True),
            Column("Kind", lambda row: row.kind, cell=lambda row: _KINDS[row.kind], key="kind"),
            numeric("Depth k", lambda row: row.depth, key="depth"),
            numeric("Tokens per round", lambda row: row.tokens, numbers.decimal, key="tokens"),
            numeric("α", lambda row: row.alpha, numbers.percent, key="alpha"),
            numeric("Speed-up", lambda row: row.speedup, numbers.ratio, key="speedup"),
            interval("95 % interval", lambda row: row.interval, key="interval"),
            numeric(
                "The curve there",
                lambda row: row.curve,
                numbers.ratio,
                key="curve",
                explain="the synthetic curve at a real draft's tokens per round.",
            ),
            Column("Within interval", lambda row: row.curve_holds, numbers.yes_or_no, key="curve_holds"),
        ),
        analysis.breakeven.points if analysis.breakeven else [],
        note=NOT_AN_OUTPUT,
    )


def breakeven_statements(analysis: Analysis) -> list[str]:
    """The break-even of each depth, points off the curve, and points that could not be placed, a sentence each."""
    found = analysis.breakeven
    if found is None:
        return []
    return [
        *(need.sentence for need in found.needs),
        *(point.note for point in found.points if point.note),
        *found.notes,
    ]
