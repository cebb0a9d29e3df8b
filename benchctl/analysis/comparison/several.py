"""Any number of runs side by side, also of other drafts, targets, engines or machines.

The others are compared with the first run, arm by arm of its name: its speed-up over the own run's baseline, and of a
baseline the decode rate. What both measured of the same work is compared; what is not the same work is listed with the
reason, side by side. Intervals hold together over arms and runs. So they do where the runs are builds in their order,
of which the first that is slower, diverges or violates losslessness is searched.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
from pydantic import Field

from benchctl.analysis.comparison.changes import full_blocks, interval_of, speed_change
from benchctl.analysis.comparison.compare import chosen_arms
from benchctl.analysis.comparison.results import Ratio, SpeedChange
from benchctl.analysis.comparison.summary import ArmSummary, RunSummary
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.statistics import Variance, block_variance, shared_variances
from benchctl.errors import UsageError
from benchctl.recipes.axes import BINARY

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats

Part = Literal["rate", "speedup", "answers"]


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
    lossless: str | None
    change: SpeedChange | None = None
    """Of `speedup_ratio`; of a baseline of `rate_ratio`."""
    rate_ratio: Ratio | None = None
    """Of decode rates over the prompts that every block of both timed."""
    speedup_ratio: Ratio | None = None
    answers_same: int | None = None
    answers_differing: int | None = None
    answers_unsteady: int | None = None
    """Prompts that either did not answer soundly, or not alike in every block."""
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
    shared = [_shared(run) for run in runs]
    rows, alone = [], dict[str, list[int]]()
    for number, run in enumerate(runs):
        common = _common(first, run)
        level = 1 - (1 - min(first.level, run.level)) / claims
        for arm in run.arms:
            if arm.name not in wanted:
                continue
            row = _row(number, run, arm)
            if number and arm.name in reference:
                both = (shared[0], shared[number])
                row = row.model_copy(update=_against(first, reference[arm.name], run, arm, common, level, both))
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
        claims=claims,
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
    interval = None if arm.low is None or arm.high is None else Interval(low=arm.low, high=arm.high, method="its own")
    return ArmRow(
        run=number,
        arm=arm.name,
        is_baseline=arm.is_baseline,
        labels=arm.labels,
        rate=arm.rate(len(run.prompts)),
        speedup=arm.speedup,
        interval=interval,
        acceptance=arm.acceptance,
        lossless=arm.lossless,
    )


Variances = dict[str, Variance | None]
"""Between the blocks of a run, by arm, shared among the arms of a baseline."""


def _shared(run: RunSummary) -> tuple[Variances, Variances]:
    """Return those of decode rates, over the prompts that every block timed, and those of speed-ups."""
    rates, speedups = Variances(), Variances()
    for baseline in dict.fromkeys(arm.baseline for arm in run.arms):
        arms = [arm for arm in run.arms if arm.baseline == baseline]
        of_rates = [block_variance(_block_rates(*_kept(arm, len(run.prompts)))) for arm in arms]
        rates |= zip([arm.name for arm in arms], shared_variances(of_rates), strict=True)
        compared = [arm for arm in arms if arm.by_block and all(arm.by_block)]
        own = [block_variance(arm.by_block) for arm in compared]
        speedups |= zip([arm.name for arm in compared], shared_variances(own), strict=True)
    return rates, speedups


def _kept(arm: ArmSummary, prompts: int) -> tuple[Floats, Floats]:
    """Return tokens and seconds, (blocks, prompts), of the blocks that timed at least half of the fullest's prompts."""
    tokens, seconds = (arm.array(name, prompts) for name in ("tokens", "seconds"))
    kept = full_blocks(seconds)
    return tokens[kept], seconds[kept]


def _block_rates(tokens: Floats, seconds: Floats) -> list[float]:
    """Return each block's decode rate over the prompts that all blocks timed; nothing where none is."""
    timed = np.isfinite(seconds).all(axis=0)
    if not timed.any():
        return []
    found: list[float] = (tokens[:, timed].sum(axis=1) / seconds[:, timed].sum(axis=1)).tolist()
    return found


def _against(
    first: RunSummary,
    a: ArmSummary,
    run: RunSummary,
    b: ArmSummary,
    common: tuple[list[int], list[int]],
    level: float,
    shared: Sequence[tuple[Variances, Variances]],
) -> dict[str, object]:
    """Return the fields of a row that compare an arm with the first run's. `shared`: variances of both runs."""
    why = _unlike(first, a, run, b, common)
    found: dict[str, object] = {"not_compared": why}
    if "rate" not in why:
        found |= _rates(a, b, first, run, common, level, [rates.get(a.name) for rates, _ in shared])
    if "speedup" not in why and not b.is_baseline:
        blocks = (len(a.by_block), len(b.by_block))
        ratio = _ratio(a.speedup, b.speedup, [speedups.get(a.name) for _, speedups in shared], blocks, level)
        found |= {"speedup_ratio": ratio, "change": speed_change(ratio.interval)}
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
    a: ArmSummary,
    b: ArmSummary,
    first: RunSummary,
    run: RunSummary,
    common: tuple[list[int], list[int]],
    level: float,
    variances: Sequence[Variance | None],
) -> dict[str, object]:
    sums = []
    both = np.ones(len(common[0]), dtype=bool)
    for arm, prompts, places in ((a, len(first.prompts), common[0]), (b, len(run.prompts), common[1])):
        tokens, seconds = (part[:, places] for part in _kept(arm, prompts))
        sums.append((tokens, seconds))
        both &= np.isfinite(seconds).all(axis=0) & bool(len(seconds))
    if not both.any():
        return {"change": "unknown", "not_compared": {"rate": "no prompt was timed in every block of both runs"}}
    pooled = [float(tokens[:, both].sum() / seconds[:, both].sum()) for tokens, seconds in sums]
    ratio = _ratio(pooled[0], pooled[1], variances, (len(sums[0][0]), len(sums[1][0])), level)
    return {"rate_ratio": ratio} | ({"change": speed_change(ratio.interval)} if b.is_baseline else {})


def _ratio(
    a: float | None,
    b: float | None,
    variances: Sequence[Variance | None],
    blocks: tuple[int, int],
    level: float,
) -> Ratio:
    ratio = b / a if a and b else None
    return Ratio(a=a, b=b, ratio=ratio, interval=interval_of(ratio, variances, blocks, 1, level))


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


class FirstChange(Result):
    """What the builds after the first show of an arm."""

    arm: str
    slower: int | None
    """Number of the first run (from 0) whose speed-up, of a baseline its decode rate, is shown to be lower."""
    ratio: float | None = None
    """Of that build over the first."""
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
                msgspec.structs.replace(arm, name="-".join([arm.of, *_others(arm.labels)]))
                for arm in run.arms
                if arm.labels.get(BINARY) == build and not arm.is_again
            ],
        )
        for build in builds
    ]


def _others(labels: dict[str, str]) -> list[str]:
    return [label for axis, label in labels.items() if axis != BINARY]


def first_changes(found: SeveralRuns) -> list[FirstChange]:
    """Return for every arm of the first build where it changed."""
    names = [row.arm for row in found.rows if row.run == 0]
    return [_first_change(name, [row for row in found.rows if row.arm == name]) for name in names]


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


def sentences(found: SeveralRuns, changes: Sequence[FirstChange]) -> Iterator[str]:
    """Yield what was found, a line for each arm."""
    names = [str(run["run"]) for run in found.runs]
    for change in changes:
        parts = [f"{names[change.violates]} is the first with a violation"] if change.violates is not None else []
        if change.slower is not None and change.interval is not None:
            found_in = f"{change.interval.low:.2f} to {change.interval.high:.2f}"
            parts.append(f"{names[change.slower]} is the first that is slower, {change.ratio:.2f}x ({found_in})")
        if change.diverges is not None:
            parts.append(f"{names[change.diverges]} is the first with other answers")
        else:
            parts.append("no build has other answers")
        if change.possible is not None:
            parts.append(f"none is shown to be slower, {change.possible:.2f}x stays possible")
        if change.unknown:
            parts.append(f"no interval of the speed of {', '.join(names[run] for run in change.unknown)}")
        yield f"{change.arm}: {'; '.join(parts)}."
