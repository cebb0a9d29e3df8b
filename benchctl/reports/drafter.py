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
_LIMITS = ("min", "p_min", "size_n", "size_m", "min_hits")
"""Settings beside the depth on which acceptance depends."""


@dataclass(frozen=True)
class DrafterRow:
    """An arm of a run, under its condition."""

    arm: str
    draft: str
    """The draft model's file, else the type of speculation."""
    kind: str
    """Of speculation, with its settings but the depth."""
    depth: int | None
    temperature: float
    concurrency: int
    context_length: int | None
    max_tokens: int | None
    """Of the longest answer."""
    suite: str | None
    """Of prompts."""
    overall: Acceptance
    by_task: dict[str, Acceptance]


def drafter_table(runs: Sequence[tuple[RunData, Analysis]]) -> str:
    """Return Markdown with a row for every arm that drafted, in the order of the runs; empty where none reports it.

    Raises UsageError for runs of several targets.
    """
    targets = {run.manifest.target.name for run, _ in runs if run.manifest}
    if len(targets) > 1:
        sources = ", ".join(sorted(f"{name.source} (SHA-256 {', '.join(name.identity)[:12]})" for name in targets))
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

        def write(row: DrafterRow) -> str:
            drafted = row.depth is None or position < row.depth
            return numbers.ABSENT if drafted and share(row) is None else numbers.percent(share(row)) if drafted else ""

        return numeric(f"Position {position + 1}", share, cell=write, optional=True)

    columns: list[Column[DrafterRow]] = [
        Column("Arm", "arm", Name, heads=True),
        Column("Draft", lambda row: Name(row.draft)),
        Column("Type", "kind"),
        numeric("Depth", "depth"),
        numeric("T", "temperature", numbers.short),
        numeric("In flight", "concurrency"),
        numeric("Context", "context_length", optional=True),
        *([Column("Prompts", lambda row: row.suite and Name(row.suite))] if _differ(rows, "suite") else []),
        *([numeric("Answers up to", "max_tokens")] if _differ(rows, "max_tokens") else []),
        acceptance_rate("Accepted", "overall.rate", "overall.doubt"),
        numeric("Length", "overall.acceptance_length", numbers.decimal).means(
            "tokens of a round, the target's own too."
        ),
        *map(at_position, range(POSITIONS)),
        *(map(of_task, tasks) if len(tasks) > 1 else ()),
    ]
    note = (
        "Position: share of rounds that accepted the draft token there; empty beyond the depth. A dash: not reported."
    )
    return markdown_table(Table("drafter", "Acceptance", columns, rows, note)) if rows else ""


def _differ(rows: Sequence[DrafterRow], name: str) -> bool:
    return len({getattr(row, name) for row in rows}) > 1


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
        settings = arm.speculation or {}
        limits = [f"{key} {settings[key]:g}" for key in _LIMITS if settings.get(key) is not None]
        types = "+".join(arm.types)
        source = source_name(place.draft.source) if place.draft else types
        by_task = {row.task: row for row in analysis.acceptance if row.arm == arm.name and row.task != ALL_TASKS}
        group = place.group
        longest = group.max_tokens or (manifest.recipe.get("sampling") or {}).get("max_tokens")
        condition = (group.temperature, group.concurrency, group.context_length, longest, manifest.suite.get("name"))
        rows.append(
            DrafterRow(arm.name, source, ", ".join([types, *limits]), settings.get("max"), *condition, overall, by_task)
        )
    return rows
