"""The break-even tables: the acceptance that each depth needs, and the points of the curves."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.breakeven import Reference
from benchctl.analysis.round_results import BreakEven, Need, Point
from benchctl.reports.columns import Column, Name, Table, for_programs, interval, numeric
from benchctl.words import numbers

TITLE = "Break-even, measured"
NOT_AN_OUTPUT = "The text of synthetic arms is not a model's output: draft tokens were accepted at random."
_KINDS = {"synthetic": "synthetic (not a model's output)", "draft": "real draft", "reference": "reference (inferred)"}


def needs_table(curve: BreakEven) -> Table[Need]:
    """A row a depth."""
    return Table(
        "breakeven",
        TITLE,
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
        curve.needs,
    )


def _crossing(need: Need) -> str:
    """Where a depth breaks even, with the range; else what it does instead."""
    if need.outcome == "crosses":
        ends = f"{numbers.percent(need.alpha_low)} to {numbers.percent(need.alpha_high)}"
        return f"{numbers.percent(need.alpha)} ({ends})"
    return numbers.ABSENT if need.outcome == "not measured" else need.outcome


def lengths_table(measured: Sequence[Reference], published: Sequence[Reference]) -> Table[tuple[str, Reference]]:
    """The acceptance lengths of a run, and of a file beside them, by depth."""
    rows = [*(("this run", row) for row in measured), *(("the file", row) for row in published)]
    columns: list[Column[tuple[str, Reference]]] = [
        numeric("Depth k", lambda row: row[1].depth),
        Column("Of", lambda row: row[0]),
        Column("Model", lambda row: row[1].model, Name, heads=True),
        Column("Mode", lambda row: row[1].mode, Name),
        numeric("Acceptance length", lambda row: row[1].acceptance_length, numbers.decimal),
    ]
    note = "Lengths of other prompts, sampling or answers are no equals."
    in_order = sorted(rows, key=lambda row: row[1].depth)
    return Table("acceptance-lengths", "Acceptance lengths", columns, in_order, note=note)


def points_table(curve: BreakEven) -> Table[Point]:
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
        curve.points,
        note=NOT_AN_OUTPUT,
    )
