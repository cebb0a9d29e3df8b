"""Any number of runs side by side, also of other drafts, targets, engines or machines.

The others are compared with the first run, arm by arm of one name. What both measured of the same work is
compared; what is not the same work is listed with the reason, side by side.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
from pydantic import Field

from benchctl.analysis.comparison.compare import speed_change
from benchctl.analysis.comparison.results import Ratio, SpeedChange
from benchctl.analysis.comparison.summary import ArmSummary, RunSummary
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.statistics import MIN_BLOCKS, welch_interval
from benchctl.errors import UsageError

Part = Literal["rate", "speedup", "answers"]


class ArmRow(Result):
    """An arm of one run, compared with the first run's arm of that name."""

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
    lossless: str | None
    rate_ratio: Ratio | None = None
    """Of decode rates over the prompts that every block of both timed."""
    speed: SpeedChange | None = None
    speedup_ratio: Ratio | None = None
    answers_same: int | None = None
    answers_differing: int | None = None
    answers_unsteady: int | None = None
    """Prompts that one of the two did not answer soundly, or not alike in every block."""
    not_compared: dict[Part, str] = Field(default_factory=dict)
    """What is not comparable, and why, as the end of a sentence."""


class Differing(Result):
    """Something that is not the same in all runs."""

    what: str
    values: list[str]
    """One a run."""


class SeveralRuns(Result):
    """What was found."""

    runs: list[dict[str, str | int | None]]
    differing: list[Differing]
    rows: list[ArmRow]
    alone: dict[str, list[int]]
    """Arms that the first run lacks, and the runs that have them; they stand in the table and are not compared."""


def compare_several(runs: Sequence[RunSummary], arms: Collection[str] | None = None) -> SeveralRuns:
    """Compare every run with the first. Raises UsageError where an arm of `arms` is in none."""
    known = dict.fromkeys(arm.name for run in runs for arm in run.arms)
    for name in arms or ():
        if name not in known:
            fix = f"The arms are: {', '.join(known)}."
            raise UsageError(f"No run has an arm {name!r}.", where="--arm", fix=fix)
    first = runs[0]
    reference = {arm.name: arm for arm in first.arms}
    rows, alone = [], dict[str, list[int]]()
    for number, run in enumerate(runs):
        common = _common(first, run)
        for arm in run.arms:
            if arms and arm.name not in arms:
                continue
            row = _row(number, run, arm)
            if number and arm.name in reference:
                row = row.model_copy(update=_against(first, reference[arm.name], run, arm, common))
            elif number:
                alone.setdefault(arm.name, []).append(number)
            rows.append(row)
    return SeveralRuns(
        runs=[
            {
                "run": run.run,
                "recipe": run.recipe,
                "folder": run.folder,
                "created_at": run.created_at,
                "status": run.status,
                "blocks": run.blocks,
                "records": run.records,
                "failed_cells": len(run.failed_cells),
                "damage": " ".join(run.damage) or None,
            }
            for run in runs
        ],
        differing=_differing(runs),
        rows=rows,
        alone=alone,
    )


def _common(first: RunSummary, run: RunSummary) -> tuple[list[int], list[int]]:
    """Return the places of the prompts that both runs have, in either; those of equal text, where that is recorded."""
    place = {(task, index): number for number, (task, index, _) in enumerate(first.prompts)}
    texts = [text for _, _, text in first.prompts]
    pairs = [
        (place[task, index], number)
        for number, (task, index, text) in enumerate(run.prompts)
        if (task, index) in place and (text is None or texts[place[task, index]] in (None, text))
    ]
    return [ours for ours, _ in pairs], [other for _, other in pairs]


def _row(number: int, run: RunSummary, arm: ArmSummary) -> ArmRow:
    tokens, seconds = (arm.array(name, len(run.prompts)) for name in ("tokens", "seconds"))
    timed = np.isfinite(seconds)
    spent = float(seconds[timed].sum())
    interval = None if arm.low is None or arm.high is None else Interval(low=arm.low, high=arm.high, method="its own")
    return ArmRow(
        run=number,
        arm=arm.name,
        is_baseline=arm.is_baseline,
        labels=arm.labels,
        rate=float(tokens[timed].sum()) / spent if spent else None,
        speedup=arm.speedup,
        interval=interval,
        acceptance=arm.acceptance,
        lossless=arm.lossless,
    )


def _against(
    first: RunSummary, a: ArmSummary, run: RunSummary, b: ArmSummary, common: tuple[list[int], list[int]]
) -> dict[str, object]:
    """Return the fields of a row that compare an arm with the first run's."""
    why = _unlike(first, a, run, b, common)
    level = min(first.level, run.level)
    found: dict[str, object] = {"not_compared": why}
    if "rate" not in why:
        found |= _rates(a, b, first, run, common, level)
    if "speedup" not in why and not b.is_baseline:
        found["speedup_ratio"] = _ratio(a.speedup, b.speedup, a.by_block, b.by_block, level)
    if "answers" not in why:
        ours = np.frombuffer(a.answers, dtype=np.uint64)[common[0]]
        theirs = np.frombuffer(b.answers, dtype=np.uint64)[common[1]]
        known = (ours != 0) & (theirs != 0)
        found |= {
            "answers_same": int((known & (ours == theirs)).sum()),
            "answers_differing": int((known & (ours != theirs)).sum()),
            "answers_unsteady": int((~known).sum()),
        }
    return found


def _unlike(
    first: RunSummary, a: ArmSummary, run: RunSummary, b: ArmSummary, common: tuple[list[int], list[int]]
) -> dict[Part, str]:
    """Return why each quantity cannot be compared; empty where everything can be."""
    every: tuple[Part, ...] = ("rate", "speedup", "answers")
    for compared_run in (first, run):
        if compared_run.distrust is not None:
            return dict.fromkeys(every, f"the files of {compared_run.run} are not as they were written")
    if not common[0]:
        return dict.fromkeys(every, "the runs have no prompt in common")
    if a.condition != b.condition:
        return dict.fromkeys(every, "its context length, concurrency, rate or temperature differs")
    why: dict[Part, str] = {}
    whole = len(common[0]) == len(first.prompts) == len(run.prompts)
    if not whole:  # a speed-up is over all prompts of its run
        why["speedup"] = f"the runs have only {len(common[0])} prompts in common"
    sampling = [key for key in {**first.sampling, **run.sampling} if first.sampling.get(key) != run.sampling.get(key)]
    if sampling:
        why |= dict.fromkeys(("rate", "answers"), f"sampling.{sampling[0]} differs")
    if a.target_files != b.target_files:
        why |= dict.fromkeys(("rate", "answers"), f"its target differs ({a.target} and {b.target})")
    elif a.cache_type != b.cache_type:
        why["answers"] = f"its KV type differs ({a.cache_type or 'default'} and {b.cache_type or 'default'})"
    if (a.overlapping or b.overlapping) and "answers" not in why:
        why["answers"] = "answers of overlapping requests are not reproducible"
    return why


def _rates(
    a: ArmSummary, b: ArmSummary, first: RunSummary, run: RunSummary, common: tuple[list[int], list[int]], level: float
) -> dict[str, object]:
    sums = []
    both = np.ones(len(common[0]), dtype=bool)
    for arm, prompts, places in ((a, len(first.prompts), common[0]), (b, len(run.prompts), common[1])):
        tokens, seconds = (arm.array(name, prompts)[:, places] for name in ("tokens", "seconds"))
        counts = np.isfinite(seconds).sum(axis=1)
        kept = counts * 2 >= max(1, int(counts.max(initial=0)))  # a cell that broke off early costs its block alone
        sums.append((tokens[kept], seconds[kept]))
        both &= np.isfinite(seconds[kept]).all(axis=0) & bool(kept.any())
    if not both.any():
        return {"speed": "unknown", "not_compared": {"rate": "no prompt was timed in every block of both runs"}}
    each = [(tokens[:, both].sum(axis=1) / seconds[:, both].sum(axis=1)).tolist() for tokens, seconds in sums]
    pooled = [float(tokens[:, both].sum() / seconds[:, both].sum()) for tokens, seconds in sums]
    ratio = _ratio(pooled[0], pooled[1], each[0], each[1], level)
    return {"rate_ratio": ratio, "speed": speed_change(ratio.interval)}


def _ratio(a: float | None, b: float | None, blocks_a: list[float], blocks_b: list[float], level: float) -> Ratio:
    ratio = b / a if a and b else None
    enough = ratio is not None and min(len(blocks_a), len(blocks_b)) >= MIN_BLOCKS and all((*blocks_a, *blocks_b))
    interval = welch_interval(ratio, blocks_b, blocks_a, level) if enough and ratio is not None else None
    return Ratio(a=a, b=b, ratio=ratio, interval=interval)


def _differing(runs: Sequence[RunSummary]) -> list[Differing]:
    """Return what is not the same in all runs, the most important first."""

    def every(name: str) -> list[str]:
        return ["; ".join(dict.fromkeys(str(getattr(arm, name) or "none") for arm in run.arms)) for run in runs]

    facts: list[tuple[str, list[str]]] = [
        ("target", every("target")),
        (
            "target files",
            ["; ".join(dict.fromkeys(" ".join(f[:12] for f in a.target_files) for a in r.arms)) for r in runs],
        ),
        ("draft", ["; ".join(dict.fromkeys(a.draft for a in r.arms if a.draft)) or "none" for r in runs]),
        ("KV type", every("cache_type")),
        ("engine", every("engine")),
        ("machine", [run.machine for run in runs]),
        ("prompts", [str(len(run.prompts)) for run in runs]),
        ("sampling", [", ".join(f"{key} {value}" for key, value in run.sampling.items()) for run in runs]),
        ("blocks", [str(run.blocks) for run in runs]),
    ]
    return [Differing(what=what, values=values) for what, values in facts if len(set(values)) > 1]
