"""What an arm took of the machine: energy and memory."""

from __future__ import annotations

from benchctl.analysis.resources import NOT_RECORDED, Resources
from benchctl.analysis.results import Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, arm_column, numeric


def resources(analysis: Analysis) -> Table[Resources]:
    """A row for every arm; none of a run that an older benchctl made, which did not look."""
    rows = [one for one in analysis.resources if _told(one)]
    columns: list[Column[Resources]] = [
        arm_column(analysis, lambda row: row.arm),
        numeric(
            "Energy",
            lambda row: row.joules_per_token,
            _joules,
            unit="J/token",
            explain="of the whole machine while the arm was measured, for every generated token, prefill included.",
            key="joules_per_token",
        ),
        numeric(
            "above idle",
            lambda row: row.above_idle_per_token,
            _joules,
            unit="J/token",
            explain="without what the machine took doing nothing, before the run.",
            key="above_idle_per_token",
            optional=True,
        ),
        numeric(
            "against baseline",
            lambda row: row.against_baseline,
            numbers.ratio,
            explain="energy per token over the baseline's.",
            key="energy_against_baseline",
            optional=True,
        ),
        numeric(
            "Peak memory",
            lambda row: row.resident_bytes,
            numbers.size,
            explain="resident, all processes of the engine added up; a mapped model file counts.",
            key="resident_bytes",
        ),
        numeric("on the GPU", lambda row: row.device_bytes, numbers.size, key="device_bytes", optional=True),
        numeric("in swap", lambda row: row.swapped_bytes or None, numbers.size, key="swapped_bytes", optional=True),
        numeric(
            "Checkpoint",
            lambda row: row.checkpoint_bytes,
            numbers.size,
            explain="one sequence's recurrent state as the engine saves it, target and draft together, by its log.",
            key="checkpoint_bytes",
            optional=True,
        ),
    ]
    return Table("resources", "Energy and memory", columns, rows, note=_note(rows))


def _told(row: Resources) -> bool:
    return row.joules_per_token is not None or row.resident_bytes is not None or row.untold != NOT_RECORDED


def _note(rows: list[Resources]) -> str:
    reasons = dict.fromkeys(row.untold for row in rows if row.untold is not None)
    told = dict.fromkeys(kind for row in rows for kind in row.told_by)
    parts = [f"Energy told of: {', '.join(told)}."] if told else []
    return " ".join([*parts, *(f"Energy is not reported: {reason}." for reason in reasons)])


def _joules(value: float | None) -> str:
    return numbers.ABSENT if value is None else f"{value:.3g}"
