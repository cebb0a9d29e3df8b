"""How well drafts are accepted: by task, position, temperature, depth and load, over runs of one target, for a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.speed_results import Acceptance
from benchctl.errors import UsageError
from benchctl.reports.columns import Column, Name, Table, acceptance_rate, numeric
from benchctl.reports.render import markdown_table
from benchctl.reports.tables.provenance import source_name
from benchctl.text import percent
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis
    from benchctl.data.store import RunData

POSITIONS = 4
"""Draft positions with a share each."""


@dataclass(frozen=True)
class DrafterRow:
    """An arm of a run, under its condition."""

    arm: str
    draft: str
    """The draft model's file, else the type of speculation."""
    kind: str
    depth: int | None
    temperature: float
    concurrency: int
    context_length: int | None
    overall: Acceptance
    by_task: dict[str, Acceptance]


def drafter_table(runs: Sequence[tuple[RunData, Analysis]]) -> str:
    """Return Markdown with a row for every arm that drafted, in the order of the runs; empty where none reports it.

    Raises UsageError for runs of several targets.
    """
    targets = {run.manifest.target.name for run, _ in runs if run.manifest}
    if len(targets) > 1:
        sources = ", ".join(sorted({name.source for name in targets}))
        raise UsageError(f"These runs have several targets: {sources}.", where="--with", fix="Name runs of one target.")
    rows = [row for run, analysis in runs for row in _rows(run, analysis)]
    tasks = list(dict.fromkeys(task for row in rows for task in row.by_task))

    def of_task(task: str) -> Column[DrafterRow]:
        def write(row: DrafterRow) -> str:
            counted = row.by_task.get(task)
            return numbers.ABSENT if counted is None or counted.rate is None else percent(counted.rate, counted.doubt)

        return numeric(task, lambda row: None, cell=write)

    def at_position(position: int) -> Column[DrafterRow]:
        def share(row: DrafterRow) -> float | None:
            shares = row.overall.position_unconditional or []
            return shares[position] if position < len(shares) else None

        return numeric(f"Position {position + 1}", share, numbers.percent, optional=True)

    columns: list[Column[DrafterRow]] = [
        Column("Arm", "arm", Name, heads=True),
        Column("Draft", lambda row: Name(row.draft)),
        Column("Type", "kind"),
        numeric("Depth", "depth"),
        numeric("T", "temperature", numbers.short),
        numeric("In flight", "concurrency"),
        numeric("Context", "context_length", optional=True),
        acceptance_rate("Accepted", "overall.rate", "overall.doubt"),
        numeric("Length", "overall.acceptance_length", numbers.decimal).means(
            "tokens of a round, the target's own too."
        ),
        *map(at_position, range(POSITIONS)),
        *(map(of_task, tasks) if len(tasks) > 1 else ()),
    ]
    note = "Position: share of rounds that accepted the draft token there. A dash: not reported."
    return markdown_table(Table("drafter", "Acceptance", columns, rows, note)) if rows else ""


def _rows(run: RunData, analysis: Analysis) -> list[DrafterRow]:
    manifest = run.manifest
    if manifest is None:
        return []
    compared, rows = manifest.compared(), []
    for arm in manifest.arms:
        overall = analysis.acceptance_of(arm.name)
        if overall is None or not overall.drafted:
            continue
        place = compared[arm.name]
        kind = "+".join(arm.types)
        source = source_name(place.draft.source) if place.draft else kind
        by_task = {row.task: row for row in analysis.acceptance if row.arm == arm.name and row.task != ALL_TASKS}
        depth = (arm.speculation or {}).get("max")
        group = place.group
        condition = (group.temperature, group.concurrency, group.context_length)
        rows.append(DrafterRow(arm.name, source, kind, depth, *condition, overall, by_task))
    return rows
