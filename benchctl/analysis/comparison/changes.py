"""How a quantity of every arm changed between the runs of two settings, with intervals that hold together.

Decode rates, speed-ups, and what gates watch beside them: acceptance length by task, TTFT, peak memory, energy a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from benchctl.analysis.acceptance import CounterColumns, find_counters
from benchctl.analysis.cells import by_block
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.speedup import counts_as_baseline
from benchctl.analysis.statistics import (
    MIN_BLOCKS,
    Variance,
    block_variance,
    change_interval,
    change_variances,
    pooled_variance,
    repeated_variance,
    shared_variances,
)

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, Integers, PromptKey
    from benchctl.recipes.groups import ComparedArm

SpeedChange = Literal["faster", "slower", "no clear difference", "unknown"]


class Ratio(Result):
    """A value in both runs and how they relate; `None` where it is not known."""

    a: float | None
    b: float | None
    """Where runs were repeated, the geometric mean of `values_a`, of `values_b`."""
    ratio: float | None
    """b / a."""
    interval: Interval | None
    """Wide enough that those of all arms and runs hold together; `None` below three blocks in a run."""
    variances: list[Variance] = Field(default_factory=list)
    """Of the logarithm of the ratio: by blocks, and where runs were repeated by runs. Conclusions hold by both."""
    values_a: list[float] = Field(default_factory=list)
    values_b: list[float] = Field(default_factory=list)


@dataclass(frozen=True)
class Measured:
    """A quantity of an arm in a run; `None` and empty where no prompt was timed in all runs."""

    value: float | None
    """Pooled over blocks and prompts."""
    by_block: list[float]


@dataclass(frozen=True)
class InAllRuns:
    """A quantity of an arm in several runs, over the prompts that every block of all runs timed."""

    runs: list[Measured]
    matched: list[float | None]
    """The runs' values over those prompts alone whose answers are of equal length and ending in all runs."""
    unequal: bool
    """Whether any prompt's answers are not."""
    prompts: int
    """Timed in every block of all runs."""


@dataclass(frozen=True)
class Times:
    """Tokens and seconds of an arm and, for a speed-up, of its baseline: (blocks, prompts), NaN where not timed."""

    tokens: Floats
    seconds: Floats
    base_tokens: Floats
    base_seconds: Floats
    work: tuple[Floats, ...]
    """Length and ending of the answers of the arm, and of its baseline: (blocks, prompts) each."""

    @property
    def timed(self) -> Booleans:
        """Prompts that every block timed, (prompts,)."""
        known: Booleans = np.isfinite(self.seconds + self.base_seconds)
        return known.all(axis=0) & np.full(known.shape[1], len(known) > 0)

    def measured(self, chosen: Booleans) -> Measured:
        """Return the value over the chosen prompts."""
        if not chosen.any():
            return Measured(None, [])
        sums = [
            part[:, chosen].sum(axis=1) for part in (self.tokens, self.seconds, self.base_tokens, self.base_seconds)
        ]
        totals = [part.sum() for part in sums]
        by_block: list[float] = (sums[0] / sums[1] / (sums[2] / sums[3])).tolist()
        return Measured(float(totals[0] / totals[1] / (totals[2] / totals[3])), by_block)

    def by_prompt(self) -> Floats:
        """Return the value of every prompt, pooled over blocks, (prompts,); NaN where some block did not time it."""
        tokens, seconds, base_tokens, base_seconds = (
            part.sum(axis=0) for part in (self.tokens, self.seconds, self.base_tokens, self.base_seconds)
        )
        return np.where(self.timed, tokens / seconds / (base_tokens / base_seconds), np.nan)

    def lengths(self) -> Floats:
        """Return length and ending of all answers, (arm and baseline, prompts); NaN: not equal in all blocks."""
        return np.stack([np.where((work == work[:1]).all(axis=0), work[0], np.nan) for work in self.work])


def rate_times(frame: Frame, arm: str, prompts: Sequence[PromptKey]) -> Times:
    """Return the times of an arm alone: its value is the decode rate, tokens per second."""
    rows = arm_rows(frame, frame.arms.index(arm), prompts)
    rows = rows[full_blocks(_taken(frame.decode_s, rows))]
    ones = np.ones(rows.shape)
    return Times(_taken(frame.decoded, rows), _taken(frame.decode_s, rows), ones, ones, (_taken(frame.work, rows),))


def speedup_times(frame: Frame, compared: ComparedArm, prompts: Sequence[PromptKey], *, whole: bool) -> Times:
    """Return the times of an arm and of its baseline; `whole`: from request to last byte, where requests overlap."""
    again = frame.arms.index(compared.again) if compared.again in frame.arms else None
    own = replace(frame, baseline=frame.arms.index(compared.baseline), again=again)
    ours, theirs = (arm_rows(own, number, prompts) for number in (own.arms.index(compared.name), own.baseline))
    both = full_blocks(_taken(own.decode_s, ours)) & full_blocks(_taken(own.decode_s, theirs))
    ours, theirs = ours[both], theirs[both]
    tokens, seconds = (own.predicted, own.column("e2e_s")) if whole else (own.decoded, own.decode_s)
    base = np.where(theirs >= 0, own.baseline_e2e_s(theirs) if whole else own.baseline_s(theirs), np.nan)
    decoded, base_decoded = _taken(tokens, ours), _taken(tokens, theirs)
    paced = counts_as_baseline(own, own.arms.index(compared.name))[[own.prompts.index(key) for key in prompts]]
    return Times(
        decoded,
        np.where(paced, decoded * base / base_decoded, _taken(seconds, ours)),
        base_decoded,
        base,
        (_taken(own.work, ours), _taken(own.work, theirs)),
    )


def in_all_runs(runs: Sequence[Times]) -> InAllRuns:
    """Return what was measured of an arm in runs of the same prompts."""
    timed = np.logical_and.reduce([run.timed for run in runs])
    works = [np.concatenate(of_arm) for of_arm in zip(*(run.work for run in runs), strict=True)]
    equal = np.logical_and.reduce([timed, *((work == work[:1]).all(axis=0) for work in works)])
    return InAllRuns(
        runs=[run.measured(timed) for run in runs],
        matched=[run.measured(equal).value for run in runs],
        unequal=bool((timed & ~equal).any()),
        prompts=int(timed.sum()),
    )


def arm_rows(frame: Frame, arm: int, prompts: Sequence[PromptKey]) -> Integers:
    """Return the rows of an arm, (blocks, prompts); -1 where there is none."""
    place = {key: number for number, key in enumerate(frame.prompts)}
    rows: Integers = frame.row_at[arm][:, [place[key] for key in prompts]]
    return rows


def full_blocks(seconds: Floats) -> Booleans:
    """Which blocks of (blocks, prompts) timed half as many prompts as the fullest: others broke off."""
    counts = np.isfinite(seconds).sum(axis=1)
    full: Booleans = counts * 2 >= max(1, int(counts.max(initial=0)))
    return full


def _taken(column: Floats, rows: Integers) -> Floats:
    return np.where(rows >= 0, column[rows], np.nan)


@dataclass(frozen=True)
class Quantity:
    """A quantity of an arm in every run, A's runs first, and how it changed."""

    measured: InAllRuns
    change: Ratio
    matched: float | None
    """The change over those answers alone that are equally long in all runs."""


def find_quantities(
    arms: Mapping[str, InAllRuns], of_a: int, groups: Mapping[str, str], level: float, *, arms_repeat: bool
) -> dict[str, Quantity]:
    """Return how a quantity of every arm changed from the first `of_a` runs to the others.

    `groups`: each arm's baseline. The variances between a run's blocks are shared among the arms of a group;
    `arms_repeat`: those between repeated runs are pooled over them, too. `level`: of a single interval.
    """
    variances: dict[str, list[Variance | None]] = {name: [] for name in arms}
    repeated = {name: _repeated(measured, of_a) for name, measured in arms.items()}
    for group in dict.fromkeys(groups[name] for name in arms):
        names = [name for name in arms if groups[name] == group]
        for number in range(len(arms[names[0]].runs)):
            own = [block_variance(arms[name].runs[number].by_block) for name in names]
            for name, variance in zip(names, shared_variances(own), strict=True):
                variances[name].append(variance)
        if arms_repeat:
            repeated |= dict.fromkeys(names, pooled_variance([repeated[name] for name in names]))
    return {
        name: Quantity(
            measured,
            _change(measured, variances[name], of_a, level, repeated[name]),
            _mean_ratio(measured.matched, of_a),
        )
        for name, measured in arms.items()
    }


def _repeated(measured: InAllRuns, of_a: int) -> Variance | None:
    """Return the variance of a run's logarithm between runs of the same setting; `None` where none was repeated."""
    values = [run.value for run in measured.runs]
    known = [value for value in values if value]
    return repeated_variance([known[:of_a], known[of_a:]]) if len(known) == len(values) else None


def _change(
    measured: InAllRuns, variances: Sequence[Variance | None], of_a: int, level: float, repeated: Variance | None
) -> Ratio:
    values = [run.value for run in measured.runs]
    ratio = _mean_ratio(values, of_a)
    blocks = [len(run.by_block) for run in measured.runs]
    means = [variance.of_mean(count) for variance, count in zip(variances, blocks, strict=True) if variance is not None]
    sides = (means[:of_a], means[of_a:]) if ratio and len(means) == len(values) else None  # else a run shows none
    return Ratio(
        a=_mean(values[:of_a]),
        b=_mean(values[of_a:]),
        ratio=ratio,
        interval=change_interval(ratio, *sides, level, repeated) if ratio and sides else None,
        variances=change_variances(*sides, repeated) if sides else [],
        values_a=[value for value in values[:of_a] if value],
        values_b=[value for value in values[of_a:] if value],
    )


def _mean_ratio(values: Sequence[float | None], of_a: int) -> float | None:
    a, b = _mean(values[:of_a]), _mean(values[of_a:])
    return b / a if a and b else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; `None` where a value is not known."""
    known = [value for value in values if value]
    return float(np.exp(np.mean(np.log(known)))) if known and len(known) == len(values) else None


def speed_change(interval: Interval | None) -> SpeedChange:
    """Return the class of the interval of a ratio of speeds."""
    if interval is None:
        return "unknown"
    return "faster" if interval.low > 1 else "slower" if interval.high < 1 else "no clear difference"


def doubt_of(quantity: Quantity) -> str | None:
    """Return why nothing is said of how a quantity changed, or `None`."""
    ratio, interval, matched = quantity.change.ratio, quantity.change.interval, quantity.matched
    if ratio is None:
        return "No prompt was timed in every block of both runs."
    counts = [len(run.by_block) for run in quantity.measured.runs]
    if interval is None:
        return f"A has {counts[0]} and B {counts[-1]} blocks; below {MIN_BLOCKS} in each there is no interval."
    if speed_change(interval) in ("faster", "slower") and quantity.measured.unequal:
        if matched is None:
            return "No answer is as long in B as it was in A, so they are not the same work."
        if (matched > 1) != (ratio > 1):
            return f"The ratio is {matched:.2f} over the answers of equal length, so the difference is due to lengths."
    return None


Watched = dict[str, Measured]
"""By quantity; what is not known in every block is absent."""


def watch(frame: Frame, prompts: Mapping[str, Sequence[PromptKey]]) -> dict[str, Watched]:
    """Return the quantities of every arm, over its `prompts`: those that every block answered.

    `ttft`: median, seconds; `acceptance TASK`: 1 + accepted / rounds; `memory`: bytes; `energy`: joules a token. The
    run's value is the geometric mean of its blocks.
    """
    counters = find_counters(frame)
    return {arm: _of_arm(frame, counters, arm, of_arm) for arm, of_arm in prompts.items()}


def _of_arm(frame: Frame, counters: CounterColumns, arm: str, prompts: Sequence[PromptKey]) -> Watched:
    rows = arm_rows(frame, frame.arms.index(arm), prompts)
    rows = rows[full_blocks(np.where((rows >= 0) & frame.answered[rows], 1.0, np.nan))]
    energy, memory = by_block(frame, arm)
    found: dict[str, Sequence[float] | Floats] = {"energy": energy, "memory": memory}
    if rows.size:
        found["ttft"] = np.median(frame.column("ttft_s")[rows], axis=1)
        counted = np.stack([counters.accepted, counters.rounds]) + np.where(counters.trusted, 0, np.nan)
        for task in dict.fromkeys(task for task, _ in prompts):
            of_task = rows[:, [key[0] == task for key in prompts]]
            accepted, rounds = np.nansum(counted[:, of_task], axis=2)
            with np.errstate(divide="ignore", invalid="ignore"):  # an arm that never drafts has no acceptance length
                found[f"acceptance {task}"] = 1 + accepted / rounds
    return {
        name: Measured(float(np.exp(np.mean(np.log(values)))), list(map(float, values)))
        for name, values in found.items()
        if len(values) and np.all(np.isfinite(values)) and np.all(np.greater(values, 0))
    }


def watched_changes(
    runs: Mapping[str, Sequence[Watched]], of_a: int, groups: Mapping[str, str], level: float
) -> dict[str, dict[str, Ratio]]:
    """Return by arm how each quantity changed that A reports; arguments as `find_quantities`, `runs` by arm."""
    found: dict[str, dict[str, Ratio]] = {arm: {} for arm in runs}
    nothing = Measured(None, [])
    for name in dict.fromkeys(name for of_arm in runs.values() for run in of_arm[:of_a] for name in run):
        measured = {
            arm: InAllRuns([run.get(name, nothing) for run in of_arm], [None for _ in of_arm], False, 0)
            for arm, of_arm in runs.items()
            if all(name in run for run in of_arm[:of_a])
        }
        for arm, quantity in find_quantities(measured, of_a, groups, level, arms_repeat=False).items():
            found[arm][name] = quantity.change
    return found
