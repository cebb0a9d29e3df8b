"""The tables of a run over axes: every arm with its labels, and what to run of each group."""

from __future__ import annotations

from typing import Any

from benchctl.analysis.conditions.axes import AxisRow, GroupRow, axis_rows, energy_of, group_rows, varied_axes
from benchctl.analysis.results import Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, arm_column, interval, numeric
from benchctl.reports.tables.output import OUTPUT_TONE

_GIB = 1 << 30


def by_axis(analysis: Analysis) -> Table[AxisRow]:
    """A row an arm, the baselines of the groups among them."""
    rows = axis_rows(analysis)
    axes = varied_axes(row.level for row in rows)
    columns: list[Column[Any]] = [
        arm_column(analysis, lambda row: row.level.arm, of=lambda row: row.level.of),
        *(_axis(axis) for axis in axes),
        numeric("tok/s", lambda row: row.level.throughput, numbers.rate, key="tok_per_s", explain="prefill included."),
        numeric(
            "Speed-up",
            lambda row: None if row.level.is_baseline else row.ratio,
            cell=_speedup,
            key="speedup",
            explain="decode rate over the baseline of the same group.",
        ),
        interval(
            "95 % interval",
            lambda row: row.speedup.interval if row.speedup and not row.inactive else None,
            key="speedup",
        ),
        numeric("Accepted", lambda row: row.acceptance.rate if row.acceptance else None, numbers.percent, key="rate"),
        numeric(
            "Acceptance length",
            lambda row: row.acceptance.acceptance_length if row.acceptance else None,
            numbers.decimal,
            key="acceptance_length",
            explain="tokens per drafted round: accepted ones and the target's own.",
        ),
        Column("", lambda row: row.acceptance.tokens_per_round if row.acceptance else None, key="tokens_per_round"),
        Column(
            "Output",
            lambda row: row.verdict.lossless if row.verdict else None,
            tone=lambda row: OUTPUT_TONE.get(row.verdict.lossless if row.verdict else "", ""),
            key="output",
        ),
        numeric(
            "Memory",
            lambda row: row.level.memory_bytes,
            lambda value: numbers.ABSENT if value is None else f"{value / _GIB:.2f}",
            unit="GiB",
            key="memory_bytes",
            optional=True,
            explain="model files, caches of the whole context and buffers; estimated before the run, not measured.",
        ),
        numeric(
            "Energy",
            energy_of,
            lambda value: numbers.ABSENT if value is None else f"{value:.3g}",
            unit="J/token",
            key="joules_per_token",
            optional=True,
            explain="of the whole machine while the arm was measured, per generated token, prefill included.",
        ),
        Column("", lambda row: row.level.group, key="group"),
        Column("", lambda row: row.level.is_baseline, key="is_baseline"),
    ]
    return Table("axes", "Every arm by axis", columns, rows)


def groups(analysis: Analysis) -> Table[GroupRow]:
    """What to run of each group."""
    rows = group_rows(analysis)
    axes = list(dict.fromkeys(axis for row in rows for axis in row.labels))

    def label(axis: str) -> Column[Any]:
        return Column(axis, lambda row: row.labels.get(axis), cell=lambda row: Name(row.labels.get(axis, "")))

    columns: list[Column[Any]] = [
        Column("Baseline", lambda row: row.baseline.arm, cell=lambda row: Name(row.baseline.arm), heads=True),
        *(label(axis) for axis in axes),
        numeric("tok/s alone", lambda row: row.baseline.throughput, numbers.rate),
        numeric("Arms", lambda row: row.arms),
        Column(
            "Fastest",
            lambda row: row.fastest.arm if row.fastest else None,
            cell=lambda row: Name(row.fastest.arm) if row.fastest else numbers.ABSENT,
        ),
        numeric("Speed-up", lambda row: row.fastest.speedup if row.fastest else None, numbers.ratio),
        interval("95 % interval", lambda row: row.fastest.interval if row.fastest else None),
        Column(
            "What to run",
            lambda row: row.sentence,
            tone=lambda row: "good" if row.use else "",
            wrap=True,
        ),
    ]
    note = "Each group is compared with its own baseline: the same target, KV type and engine without speculation."
    return Table("groups", "The best arm of each group", columns, rows, note=note)


def _speedup(row: AxisRow) -> str:
    return "baseline" if row.level.is_baseline else "inactive" if row.inactive else numbers.ratio(row.ratio)


def _axis(axis: str) -> Column[Any]:
    return Column(axis, lambda row: row.labels.get(axis), key=axis.replace(".", "_"))
