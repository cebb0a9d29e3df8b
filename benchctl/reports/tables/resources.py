"""Energy and memory of every arm."""

from __future__ import annotations

from benchctl.analysis.resources import NOT_RECORDED, Resources
from benchctl.analysis.results import Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Table, arm_column, numeric


def resources(analysis: Analysis) -> Table[Resources]:
    """A row for every arm; none for a run of an older benchctl, which did not record them."""
    rows = [resource for resource in analysis.resources if _is_recorded(resource)]
    columns: list[Column[Resources]] = [
        arm_column(analysis, lambda row: row.arm),
        numeric(
            "Energy",
            lambda row: row.joules_per_token,
            _joules,
            unit="J/token",
            explain="of the whole machine while the arm was measured, per generated token, prefill included.",
            key="joules_per_token",
        ),
        numeric(
            "above idle",
            lambda row: row.above_idle_per_token,
            _joules,
            unit="J/token",
            explain="minus the idle power measured before the run.",
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
            explain="resident set of all engine processes; mapped model files included.",
            key="resident_bytes",
        ),
        numeric("on the GPU", lambda row: row.device_bytes, numbers.size, key="device_bytes", optional=True),
        numeric("in swap", lambda row: row.swapped_bytes or None, numbers.size, key="swapped_bytes", optional=True),
        numeric(
            "Checkpoint",
            lambda row: row.checkpoint_bytes,
            numbers.size,
            explain="saved recurrent state of one sequence, target and draft, from the engine's log.",
            key="checkpoint_bytes",
            optional=True,
        ),
    ]
    return Table("resources", "Energy and memory", columns, rows, note=_note(rows))


def _is_recorded(row: Resources) -> bool:
    return row.joules_per_token is not None or row.resident_bytes is not None or row.untold != NOT_RECORDED


def _note(rows: list[Resources]) -> str:
    reasons = dict.fromkeys(row.untold for row in rows if row.untold is not None)
    sources = dict.fromkeys(kind for row in rows for kind in row.told_by)
    parts = [f"Energy is reported for: {', '.join(sources)}."] if sources else []
    return " ".join([*parts, *(f"Energy is not reported: {reason}." for reason in reasons)])


def _joules(value: float | None) -> str:
    return numbers.ABSENT if value is None else f"{value:.3g}"
