"""What to run per task on this machine: the end of a report."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.results import ALL_TASKS, Advice, Analysis
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, Tone, interval, numeric

TARGET_ALONE = "the target alone"
WHY = (
    "An arm is recommended only where it is shown to be faster, to have drafted, and to answer as the target does. All "
    "tasks: as they were measured, together. A task alone: its interval, simultaneous over all arms and tasks, lies "
    "above 1.00×."
)


def what_to_run(analysis: Analysis) -> Table[Advice]:
    """A row for all tasks together and for each alone; of a sweep under each condition."""
    return Table(
        "what-to-run",
        "What to run on this machine",
        (
            Column("Task", lambda row: "all tasks" if row.task == ALL_TASKS else row.task, heads=True),
            Column("Condition", lambda row: row.condition or None, optional=True),
            Column("Run", lambda row: row.arm, cell=lambda row: Name(row.arm) if row.arm else TARGET_ALONE, tone=_tone),
            Column("Setting", lambda row: row.setting),
            numeric("Speed-up", lambda row: row.speedup, numbers.ratio),
            interval("95 % interval", lambda row: row.interval),
            Column("Output", lambda row: row.output or numbers.ABSENT),
            Column("Certainty", lambda row: row.certainty, wrap=True),
        ),
        analysis.decision.rows if analysis.decision else [],
        note=WHY,
    )


def production_commands(rows: Sequence[Advice]) -> list[tuple[str, str]]:
    """The command line of every recommendation, each once: (arm, or the target alone; command)."""
    found: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.command is not None:
            under = f" ({row.condition})" if row.condition else ""
            found.setdefault(row.command, (f"{row.arm or TARGET_ALONE}{under}", row.command))
    return list(found.values())


def _tone(row: Advice) -> Tone:
    return "good" if row.arm else "quiet"
