"""What to run per task on this machine: the end of a report."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.results import Analysis
from benchctl.analysis.task_advice import TaskAdvice, advise_tasks
from benchctl.data.manifest import Manifest
from benchctl.reports import numbers
from benchctl.reports.columns import Column, Name, Table, Tone, interval, numeric

TARGET_ALONE = "the target alone"
WHY = (
    "An arm is recommended only where its interval, simultaneous over all arms and tasks, lies above 1.00×, and its "
    "output is identical or consistent with the target."
)


def what_to_run(analysis: Analysis, manifest: Manifest | None) -> Table[TaskAdvice]:
    """A row a task; of a sweep a row a task and condition."""
    return Table(
        "what-to-run",
        "What to run on this machine",
        (
            Column("Task", lambda row: row.task, heads=True),
            Column("Condition", lambda row: row.condition or None, optional=True),
            Column("Run", lambda row: row.arm, cell=lambda row: Name(row.arm) if row.arm else TARGET_ALONE, tone=_tone),
            Column("Setting", lambda row: row.setting),
            numeric("Speed-up", lambda row: row.speedup, numbers.ratio),
            interval("95 % interval", lambda row: row.interval),
            Column("Output", lambda row: row.output or numbers.ABSENT),
            Column("Certainty", lambda row: row.certainty, wrap=True),
        ),
        advise_tasks(analysis, manifest),
        note=WHY,
    )


def production_commands(rows: Sequence[TaskAdvice]) -> list[tuple[str, str]]:
    """The command line of every recommendation, each once: (arm, or the target alone; command)."""
    found: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.command is not None:
            under = f" ({row.condition})" if row.condition else ""
            found.setdefault(row.command, (f"{row.arm or TARGET_ALONE}{under}", row.command))
    return list(found.values())


def _tone(row: TaskAdvice) -> Tone:
    return "good" if row.arm else "quiet"
