"""What to run, as a table, and the commands of what is recommended."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.analysis.decision_results import Advice, GroupDecision
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.reports.columns import Column, Name, Table, Tone, interval, numeric
from benchctl.words import advice as advice_words
from benchctl.words import numbers

TARGET_ALONE = "the target alone"
WHY = (
    "An arm is recommended only where it is shown to be faster, to have drafted, and to answer as the target does. All "
    "tasks: as they were measured, together. A task alone, from 12 prompts on: its interval lies above 1.00×."
)


def only_group(analysis: Analysis) -> GroupDecision | None:
    """What is decided of a run without conditions; `None` for a sweep, whose every group has a row of its own."""
    return analysis.decision.groups[0] if analysis.decision and analysis.sweep is None else None


def told_by_group(analysis: Analysis) -> bool:
    """Whether `sentences_of_sweep` say what to run of every group: a run over axes, without advice for single tasks."""
    groups = analysis.decision.groups if analysis.decision else []
    return analysis.sweep is not None and analysis.sweep.over_axes and not any(group.tasks for group in groups)


def what_to_run(analysis: Analysis) -> Table[Advice]:
    """A row for all tasks together and for each alone; of a sweep under each condition."""
    return Table(
        "what-to-run",
        "What to run on this machine",
        (
            Column("Task", lambda row: "all tasks" if row.task == ALL_TASKS else row.task, heads=True),
            Column("Condition", lambda row: row.condition or None, optional=True),
            Column("Run", "arm", Name, absent=TARGET_ALONE, tone=_tone),
            Column("Setting", "setting"),
            numeric("Speed-up", "speedup", numbers.ratio),
            interval("95 % interval", "interval"),
            Column("Output", lambda row: advice_words.output(row) or None),
            Column("Evidence", lambda row: advice_words.evidence(analysis, row), wrap=True),
        ),
        analysis.decision.rows if analysis.decision else [],
        note=WHY,
    )


def has_choices(table: Table[Advice]) -> bool:
    """Whether what to run differs, by task or condition, with an arm somewhere."""
    return len(table.rows) > 1 and any(row.arm for row in table.rows)


def production_commands(rows: Sequence[Advice]) -> list[tuple[str, str]]:
    """The command line of every recommendation, each once: (arm, or the target alone; command)."""
    commands: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.command is not None:
            condition = f" ({row.condition})" if row.condition else ""
            commands.setdefault(row.command, (f"{row.arm or TARGET_ALONE}{condition}", row.command))
    return list(commands.values())


def _tone(row: Advice) -> Tone:
    return "good" if row.arm else "quiet"
