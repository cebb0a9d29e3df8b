"""Any number of runs side by side, also of other drafts, targets, engines or machines.

Each is compared with the first run, arm by arm of its name: the speed-up over the own run's baseline, and of a baseline
the decode rate. What is not the same work is listed with the reason. Intervals hold together over arms and runs, also
where the runs are builds in their order, of which the first that is slower, diverges or violates is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from benchctl.analysis.comparison.changes import (
    InAllRuns,
    Ratio,
    SpeedChange,
    find_ratios,
    in_all_runs,
    speed_change,
    without_prompts,
)
from benchctl.analysis.comparison.compare import chosen_arms
from benchctl.analysis.frame import PromptKey
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.speed_table import Measured, SpeedTable, rates
from benchctl.data.summary import ArmSummary, RunSummary
from benchctl.errors import UsageError
from benchctl.recipes.axes import BINARY

_OF_RUN = ("run", "recipe", "folder", "created_at", "status", "blocks", "records")
ComparedPart = Literal["rate", "speedup", "answers"]


NotComparedCode = Literal[
    "damaged", "no common prompt", "condition", "prompts", "sampling", "target", "KV type", "overlapping", "not timed"
]


class NotCompared(Result):
    """Why a part of an arm is not compared with the first run's."""

    code: NotComparedCode
    values: list[str] = Field(default_factory=list)
    """The run that is damaged; the number of common prompts; the key of `sampling`; the targets, or the KV types."""


class ArmRow(Result):
    """An arm of a run, compared with the first run's arm of that name."""

    run: int
    """Number of the run, from 0."""
    arm: str
    is_baseline: bool
    labels: dict[str, str]
    rate: float | None
    """Tokens over time, over all that was timed in every block."""
    speedup: float | None
    interval: Interval | None
    """Over the run's own baseline."""
    acceptance: float | None
    acceptance_doubt: str | None
    lossless: str | None
    change: SpeedChange | None = None
    """The class of `speedup_ratio`; for a baseline that of `rate_ratio`."""
    rate_ratio: Ratio | None = None
    """The ratio of decode rates over the prompts that every block of both runs timed."""
    speedup_ratio: Ratio | None = None
    answers_same: int | None = None
    answers_differing: int | None = None
    answers_unsteady: int | None = None
    """Prompts that either did not answer soundly, or not alike in every block."""
    not_compared: dict[ComparedPart, NotCompared] = Field(default_factory=dict)
    """The parts that are not comparable, with the reason."""


class Differing(Result):
    """Something that is not the same in all runs."""

    what: str
    values: list[str]
    """One a run."""


class SeveralRuns(Result):
    """The comparison of any number of runs with the first."""

    runs: list[dict[str, str | int | None]]
    differing: list[Differing]
    claims: int
    """How many intervals of a kind hold together: of each arm in every later run."""
    rows: list[ArmRow]
    alone: dict[str, list[int]]
    """Arms that the first run lacks, and the runs that have them; they stand in the table and are not compared."""


def compare_several(runs: Sequence[RunSummary], arms: Collection[str] | None = None) -> SeveralRuns:
    """Compare every run with the first. Raises UsageError where an arm of `arms` is in none."""
    wanted = chosen_arms((arm.name for run in runs for arm in run.arms), arms)
    first = runs[0]
    reference = {arm.name: arm for arm in first.arms if arm.name in wanted}
    claims = max(1, sum(arm.name in reference for run in runs[1:] for arm in run.arms))
    rows, only_later = [], dict[str, list[int]]()
    for number, run in enumerate(runs):
        arms_here = [arm for arm in run.arms if arm.name in wanted]
        pairs = [(reference[arm.name], arm) for arm in arms_here if number and arm.name in reference]
        compared = _against(first, run, pairs, 1 - (1 - min(first.level, run.level)) / claims)
        for arm in arms_here:
            if number and arm.name not in reference:
                only_later.setdefault(arm.name, []).append(number)
            rows.append(_row(number, run, arm, compared.get(arm.name, {})))
    return SeveralRuns(
        runs=[
            {name: getattr(run, name) for name in _OF_RUN}
            | {"failed_cells": len(run.failed_cells), "damage": " ".join(run.damage) or None}
            for run in runs
        ],
        differing=_differing(runs),
        claims=claims,
        rows=rows,
        alone=only_later,
    )


def _common(first: RunSummary, run: RunSummary) -> list[PromptKey]:
    """Return the prompts that both runs have; those of equal text, where that is recorded."""
    texts = {(task, index): text for task, index, text in first.prompts}
    return [
        (task, index)
        for task, index, text in run.prompts
        if (task, index) in texts and (text is None or texts[task, index] in (None, text))
    ]


def _row(number: int, run: RunSummary, arm: ArmSummary, compared: dict[str, Any]) -> ArmRow:
    return ArmRow(
        run=number,
        arm=arm.name,
        is_baseline=arm.compared.is_baseline,
        labels=arm.labels,
        rate=arm.rate(len(run.prompts)),
        speedup=arm.speedup,
        interval=None
        if arm.low is None or arm.high is None
        else Interval(low=arm.low, high=arm.high, method="its own"),
        acceptance=arm.acceptance,
        acceptance_doubt=arm.acceptance_doubt,
        lossless=arm.lossless,
        **compared,
    )


def _table(arm: ArmSummary, run: RunSummary, prompts: Sequence[PromptKey]) -> SpeedTable:
    """Return the table of an arm alone over some prompts, in the blocks that did not break off."""
    table = rates(run.keys, *(arm.array(name, len(run.keys)) for name in ("tokens", "seconds")))
    return table.in_blocks(table.full_blocks).at(prompts)


def _answers(arm: ArmSummary, run: RunSummary, prompts: Sequence[PromptKey]) -> NDArray[np.uint64]:
    column = {key: number for number, key in enumerate(run.keys)}
    return np.frombuffer(arm.answers, dtype=np.uint64)[[column[key] for key in prompts]]


def _against(
    first: RunSummary, run: RunSummary, pairs: Sequence[tuple[ArmSummary, ArmSummary]], level: float
) -> dict[str, dict[str, Any]]:
    """Return by arm the fields of a row that compare it with the first run's; `pairs`: each beside that."""
    common = _common(first, run)
    groups = {b.name: b.compared.baseline for _, b in pairs}
    unlike = {b.name: _unlike(first, a, run, b, common) for a, b in pairs}
    of_rate, of_speedup = dict[str, InAllRuns](), dict[str, InAllRuns]()
    for a, b in pairs:
        if "rate" not in unlike[b.name]:
            of_rate[b.name] = in_all_runs([_table(a, first, common), _table(b, run, common)], 1)
        if "speedup" not in unlike[b.name] and not b.compared.is_baseline:
            of_speedup[b.name] = without_prompts([Measured(arm.speedup, arm.by_block) for arm in (a, b)], 1)
    rate = find_ratios(of_rate, groups, level, arms_repeat=False)
    speedup = find_ratios(of_speedup, groups, level, arms_repeat=False)
    fields = {}
    for a, b in pairs:
        fields[b.name] = _ratios(rate.get(b.name), speedup.get(b.name), unlike[b.name], b)
        if "answers" not in unlike[b.name]:
            ours, theirs = _answers(a, first, common), _answers(b, run, common)
            sound = (ours != 0) & (theirs != 0)
            fields[b.name] |= {
                "answers_same": int((sound & (ours == theirs)).sum()),
                "answers_differing": int((sound & (ours != theirs)).sum()),
                "answers_unsteady": int((~sound).sum()),
            }
    return fields


def _ratios(
    rate: Ratio | None, speedup: Ratio | None, unlike: dict[ComparedPart, NotCompared], arm: ArmSummary
) -> dict[str, Any]:
    if rate is not None and rate.ratio is None:
        unlike, rate = {"rate": NotCompared(code="not timed")}, None
        change: SpeedChange | None = "unknown"
    else:
        change = speed_change(rate.interval) if rate is not None and arm.compared.is_baseline else None
    if speedup is not None:
        change = speed_change(speedup.interval)
    return {"not_compared": unlike, "rate_ratio": rate, "speedup_ratio": speedup, "change": change}


def _unlike(
    first: RunSummary, a: ArmSummary, run: RunSummary, b: ArmSummary, common: Sequence[PromptKey]
) -> dict[ComparedPart, NotCompared]:
    """Return why each quantity cannot be compared; empty where everything can be."""
    parts: tuple[ComparedPart, ...] = ("rate", "speedup", "answers")
    if damaged := [summary.run for summary in (first, run) if summary.distrust is not None]:
        return dict.fromkeys(parts, NotCompared(code="damaged", values=damaged[:1]))
    if not common:
        return dict.fromkeys(parts, NotCompared(code="no common prompt"))
    ours, theirs = a.compared, b.compared
    if replace(ours.group, setups=None) != replace(theirs.group, setups=None):
        return dict.fromkeys(parts, NotCompared(code="condition"))
    unlike: dict[ComparedPart, NotCompared] = {}
    if not len(common) == len(first.prompts) == len(run.prompts):  # a speed-up is over all prompts of its run
        unlike["speedup"] = NotCompared(code="prompts", values=[str(len(common))])
    sampling = [key for key in {**first.sampling, **run.sampling} if first.sampling.get(key) != run.sampling.get(key)]
    if sampling:
        unlike |= dict.fromkeys(("rate", "answers"), NotCompared(code="sampling", values=sampling[:1]))
    if _files(a) != _files(b):
        unlike |= dict.fromkeys(("rate", "answers"), NotCompared(code="target", values=[a.target, b.target]))
    elif ours.target_cache != theirs.target_cache:
        types = [ours.target_cache or "default", theirs.target_cache or "default"]
        unlike["answers"] = NotCompared(code="KV type", values=types)
    if not (ours.group.one_at_a_time and theirs.group.one_at_a_time) and "answers" not in unlike:
        unlike["answers"] = NotCompared(code="overlapping")
    return unlike


def _files(arm: ArmSummary) -> tuple[str, ...]:
    return arm.compared.target.identity if arm.compared.target else ()


def _differing(runs: Sequence[RunSummary]) -> list[Differing]:
    """Return what is not the same in all runs, the most important first."""

    def every(of_arm: Callable[[ArmSummary], str | None]) -> list[str]:
        return ["; ".join(dict.fromkeys(filter(None, map(of_arm, run.arms)))) or "none" for run in runs]

    facts = {
        "target": every(lambda arm: arm.target),
        "target files": every(lambda arm: " ".join(sha[:12] for sha in _files(arm))),
        "draft": every(lambda arm: arm.draft),
        "KV type": every(lambda arm: arm.compared.target_cache or "none"),
        "engine": every(lambda arm: arm.engine),
        "machine": [run.machine for run in runs],
        "prompts": [str(len(run.prompts)) for run in runs],
        "sampling": [", ".join(f"{key} {value}" for key, value in run.sampling.items()) for run in runs],
        "blocks": [str(run.blocks) for run in runs],
    }
    return [Differing(what=fact, values=values) for fact, values in facts.items() if len(set(values)) > 1]


class FirstChange(Result):
    """Where an arm changed after the first build."""

    arm: str
    slower: int | None
    """Number of the first run (from 0) whose speed-up, of a baseline its decode rate, is shown to be lower."""
    ratio: float | None = None
    """That build's value over the first build's."""
    interval: Interval | None = None
    diverges: int | None
    """The first whose answers are not the first build's; rounding of another build's kernels is enough for that."""
    violates: int | None
    """The first whose output is not its own target's, as `verify-lossless` found."""
    possible: float | None = None
    """Where none is shown to be slower: the lowest end of any build's interval."""
    unknown: list[int]
    """Runs before `slower` of whose speed there is no interval."""


def by_build(run: RunSummary) -> list[RunSummary]:
    """Return a run with builds as an axis as a run for each build, in the recipe's order. Raises UsageError."""
    builds = list(dict.fromkeys(arm.labels[BINARY] for arm in run.arms if BINARY in arm.labels))
    if len(builds) < 2:
        raise UsageError(
            "It has no builds to search: its recipe lists none under `engine.binary`.",
            where=run.folder,
            fix="Name a run for each build, the oldest first, or list the builds in the recipe and run it.",
        )
    return [
        msgspec.structs.replace(
            run,
            run=build,
            arms=[
                msgspec.structs.replace(
                    arm, name="-".join([arm.compared.of, *(arm.labels[axis] for axis in arm.labels if axis != BINARY)])
                )
                for arm in run.arms
                if arm.labels.get(BINARY) == build and not arm.compared.is_again
            ],
        )
        for build in builds
    ]


def first_changes(several: SeveralRuns) -> list[FirstChange]:
    """Return for every arm of the first build where it changed."""
    names = [row.arm for row in several.rows if row.run == 0]
    return [_first_change(name, [row for row in several.rows if row.arm == name]) for name in names]


def _first_change(name: str, rows: Sequence[ArmRow]) -> FirstChange:
    slower = next((row for row in rows if row.change == "slower"), None)
    judged = _judged(slower) if slower else None
    intervals = [ratio.interval for ratio in map(_judged, rows) if ratio and ratio.interval]
    before = [row for row in rows if row.run and (slower is None or row.run < slower.run)]

    def first(holds: Callable[[ArmRow], bool]) -> int | None:
        return next((row.run for row in rows if holds(row)), None)

    return FirstChange(
        arm=name,
        slower=slower.run if slower else None,
        ratio=judged.ratio if judged else None,
        interval=judged.interval if judged else None,
        diverges=first(lambda row: bool(row.answers_differing)),
        violates=first(lambda row: row.lossless == "violation"),
        possible=None if slower else min((interval.low for interval in intervals), default=None),
        unknown=[row.run for row in before if row.change in (None, "unknown")],
    )


def _judged(row: ArmRow) -> Ratio | None:
    return row.rate_ratio if row.is_baseline else row.speedup_ratio
