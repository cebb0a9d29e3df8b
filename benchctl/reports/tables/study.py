"""The two tables of the PLaMo 2 study, in its own layout, so that both can be compared side by side.

Tensors: which were kept, their role, the state of the output. Configurations: by task. What a study's file (JSONL
without a manifest) does not have is a dash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.data.traces import CostTraces
from benchctl.reports.columns import Column, Name, Table, acceptance_rate, numeric
from benchctl.words import numbers


@dataclass(frozen=True)
class Tensors:
    """The tensor table of a search for damaged tensors."""

    table: Table[Any]
    rows: list[dict[str, Any]]
    """The same as plain data."""


@dataclass(frozen=True)
class Configuration:
    """A configuration on a task, or on all together."""

    configuration: str
    task: str
    tok_per_sec: float | None
    """Median over prompts and blocks."""
    speedup: float | None
    """Pooled over prompts and blocks; 1 for the baseline."""
    acceptance: float | None
    acceptance_doubt: str | None
    identical: int | None
    """Prompts with the baseline's answer in every block; `None` for the baseline."""
    prompts: int
    checkpoint_bytes: int | None


@dataclass(frozen=True)
class DraftAlone:
    """The decode rate of the draft model alone."""

    tok_per_sec: float
    ratio: float | None
    """To the median of the target's own rate."""


def configurations(analysis: Analysis) -> list[Configuration]:
    """Return the rows in the recipe's order, task by task, all tasks last."""
    speedups = {(row.arm, row.task): row.pooled for row in analysis.speedups}
    acceptance = {(row.arm, row.task): row.rate for row in analysis.acceptance}
    doubts = {(row.arm, row.task): row.doubt for row in analysis.acceptance}
    comparisons = {judged.arm: judged.comparisons for judged in analysis.losslessness}
    checkpoints = {row.arm: row.checkpoint_bytes for row in analysis.resources}

    def row(arm: str, task: str) -> Configuration:
        tasks, baseline = analysis.tasks if task == ALL_TASKS else [task], arm in analysis.baselines
        rates = [row.tok_per_sec for row in analysis.throughput if row.arm == arm and row.task in tasks]
        values = list(chain.from_iterable(rates))
        compared = [answer.outcome for answer in comparisons.get(arm, ()) if answer.task in tasks]
        return Configuration(
            configuration=arm,
            task=task,
            tok_per_sec=median(values) if values else None,
            speedup=1.0 if baseline else speedups.get((arm, task)),
            acceptance=acceptance.get((arm, task)),
            acceptance_doubt=doubts.get((arm, task)),
            identical=compared.count("identical") if compared and not baseline else None,
            prompts=len(compared),
            checkpoint_bytes=checkpoints.get(arm),
        )

    all_tasks = (*analysis.tasks, *((ALL_TASKS,) if len(analysis.tasks) > 1 else ()))
    return [row(arm, task) for arm in analysis.arms for task in all_tasks]


def draft_alone(analysis: Analysis, costs: CostTraces | None) -> DraftAlone | None:
    """Return the draft's own rate where `benchctl explain` has timed it."""
    timing = costs.draft_alone if costs is not None else None
    if timing is None or not timing.seconds:
        return None
    rate = timing.tokens / timing.seconds
    target = [value for row in analysis.throughput if row.arm in analysis.baselines for value in row.tok_per_sec]
    return DraftAlone(rate, rate / median(target) if target else None)


def configuration_table(analysis: Analysis) -> Table[Configuration]:
    """Configuration by task, as published."""
    columns: list[Column[Configuration]] = [
        Column("Configuration", "configuration", Name, heads=True),
        Column("Task", "task"),
        numeric("tok/s, median", "tok_per_sec", numbers.rate).means("over prompts and blocks."),
        numeric("Speed-up, pooled", "speedup", numbers.ratio).means(
            "tokens over time of all pairs, over the baseline's; not the ratio of the medians."
        ),
        acceptance_rate("Acceptance", "acceptance", "acceptance_doubt").means("accepted over drafted tokens."),
        numeric(
            "Identical outputs",
            "identical",
            cell=lambda row: numbers.ABSENT if row.identical is None else f"{row.identical}/{row.prompts}",
        ).means("prompts with the baseline's answer in every block."),
        numeric("Checkpoint", "checkpoint_bytes", numbers.count, unit="bytes per sequence").means(
            "saved recurrent state of target and draft, from the engine's log."
        ),
    ]
    return Table("study", "Configurations", columns, configurations(analysis))


def sentences(analysis: Analysis, costs: CostTraces | None, tensors: Tensors | None) -> Iterator[str]:
    """Yield the sentences below the tables."""
    draft = draft_alone(analysis, costs)
    if draft is not None:
        ratio = "" if draft.ratio is None else f", {draft.ratio:.2f} times the target's own median rate"
        yield f"The draft alone decodes {numbers.rate(draft.tok_per_sec)} tok/s{ratio}."
    else:
        yield "The draft's own rate was not measured: benchctl explain RUN times it."
    if tensors is None:
        yield "There is no search for breaking tensors beside this run: benchctl isolate RECIPE searches."
