"""The statistics of every comparison: Student's t over blocks on logarithms, variances shared among arms, Holm, Welch.

*These prompts* is Student's t on the logarithms of the blocks' own ratios, around the pooled ratio: the block, a fresh
process, is the unit of replication. A variance of two degrees of freedom is a poor guess, so arms that are measured
together share theirs (`shared_variances`).

*Prompts like these* takes the prompts for a sample, too: to the variance between blocks it adds that of leaving out one
prompt at a time within each task (the stratified jackknife; Wolter 2007, section 4.5), with Student's t at the degrees
of freedom of Satterthwaite. Where few prompts take most of the time, those count: its own degrees of freedom are
(Σ w)² / Σ w² - 1 (Kish 1965), w the baseline's seconds (`benchmarks/noise_models.py`).

*All claims at once* is the first interval at level 1 - 0.05 / m for m claims (Bonferroni), which holds however the arms
are correlated through the baseline that they share. It is the one that is shown, and that claims are made by: an arm is
called faster or slower where it leaves out 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, Any

import numpy as np

from benchctl.analysis.result import MIN_BLOCKS, Interval

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Integers
    from benchctl.data.manifest import Manifest

LEVEL = 0.95
SEQUENTIAL_LEVEL = 0.97
"""The level in place of `LEVEL` where measuring went on until the interval was narrow enough.

Such a run ends by preference when its blocks happen to agree: of plain 95 % intervals 92 in 100 hold the truth in the
worst case. At this level, with looks after five blocks (`FIRST_LOOK`) and after every further block,
94.6 to 97 in 100 do, whatever the ratio of the blocks' spread to the requested width (`benchmarks/coverage.py`). A
constant level at every look is Pocock's (1977) way of paying for looks.
"""
LOOK_LEVEL = 0.992
"""The level of a look of a run that ends when its arms are decided: a look after every block from the third, at most
18 of them. Over all looks about 5 % of runs make a false claim at the worst (`benchmarks/deciding.py`).
"""
MOST_SHARED = 6.0
"""The other arms' variances count at most so many degrees of freedom."""
PLAINLY_NOISIER = 0.2
"""An arm keeps its own variance where a variance as large beside the others' has at most this probability (F test).

Much smaller, and an arm that is six times as noisy and looks quiet by chance makes false claims; much larger, and
sharing decides nothing (`benchmarks/shared_variance.py`).
"""
SEPARATED = 0.1
"""The change for which `SpeedUp.more_blocks` is given."""
MOST_BLOCKS = 1000
FEWEST_POINTS = 5
"""Of fewer points no correlation is told."""
COMMON = 0.25
"""Correlation of two arms' variances through a baseline as noisy as they are: (1/2)²."""


@dataclass(frozen=True)
class Variance:
    """Of the logarithm of a block's ratio."""

    value: float
    freedom: float
    """Degrees of freedom."""

    def of_mean(self, blocks: int) -> Variance:
        """Return the variance of the mean of so many blocks."""
        return Variance(self.value / blocks, self.freedom)


def level_for(*manifests: Manifest | None) -> float:
    """Return the level to take intervals at, so that those of these runs hold the truth in 95 of 100."""
    rules = [manifest.auto_blocks for manifest in manifests if manifest is not None and manifest.auto_blocks]
    if any(rule.half_width is None for rule in rules):
        return LOOK_LEVEL
    return SEQUENTIAL_LEVEL if rules else LEVEL


def own_variance(sums: Floats, block: Integers) -> Variance | None:
    """Return the variance between the blocks of some pairs; `None` below three blocks. Arguments as `pooled_spread`."""
    return block_variance(_ratio(_group_sums(sums, block)))


def shared_variances(arms: Sequence[Variance | None]) -> list[Variance | None]:
    """Return the variances of arms that were measured together, each shrunken towards the mean of the others.

    (d·s² + D·S²) / (d + D) with d + D degrees of freedom: S² the mean of the others' variances weighted by their
    degrees of freedom, D what these count together, less what they have in common through the baseline (`COMMON`), at
    most `MOST_SHARED` (Smyth, Stat. Appl. Genet. Mol. Biol. 3, 2004, with D fixed in advance). An arm alone, or
    `PLAINLY_NOISIER`, keeps its own: its noise must not be judged by that of quiet arms.
    """
    from scipy.special import fdtrc

    shared: list[Variance | None] = []
    for index, variance in enumerate(arms):
        other_arms = [other_arm for number, other_arm in enumerate(arms) if other_arm is not None and number != index]
        freedom = sum(other_arm.freedom for other_arm in other_arms)
        if variance is None or not freedom:
            shared.append(variance)
            continue
        mean = sum(other_arm.value * other_arm.freedom for other_arm in other_arms) / freedom
        prior = min(MOST_SHARED, freedom / (1 + COMMON * (len(other_arms) - 1)))
        noisier = variance.value > 0 and (
            not mean or fdtrc(variance.freedom, prior, variance.value / mean) < PLAINLY_NOISIER
        )
        total = variance.freedom + prior
        shrunken = (variance.freedom * variance.value + prior * mean) / total
        shared.append(variance if noisier else Variance(shrunken, total))
    return shared


def pooled_spread(
    sums: Floats,
    block: Integers,
    prompt: Integers,
    task: Integers,
    level: float = LEVEL,
    claims: int = 1,
    variance: Variance | None = None,
) -> dict[str, Any]:
    """Return the fields of a `SpeedUp` that tell the spread of the pooled ratio of some pairs.

    `sums` is (pairs, 4): tokens and seconds of the arm, tokens and seconds of the baseline; the ratio of a set of
    pairs is (Σ0 / Σ1) / (Σ2 / Σ3). `block`, `prompt` and `task` are (pairs,). `claims`: how many ratios are tested
    together. `variance`: between blocks, of `shared_variances`; `None`: their own.
    """
    blocks = _group_sums(sums, block)
    if len(blocks) < MIN_BLOCKS:
        return {"interval": None}
    of_block = variance or own_variance(sums, block)
    assert of_block is not None
    mean = of_block.of_mean(len(blocks))
    middle = float(_ratio(sums.sum(axis=0)))
    tail = (1 - level) / claims
    repeated = ratio_interval(middle, mean, level, _method(level))
    equivalence = ratio_interval(middle, mean, 1 - 2 * tail, "")
    return {
        "interval": repeated if claims == 1 else ratio_interval(middle, mean, 1 - tail, _method(level, claims)),
        "pointwise": repeated,
        "like_these": _like_these(sums, middle, mean, prompt, task, level),
        "within": max(equivalence.high - 1, 1 - equivalence.low),
        "p": p_value(middle, mean),
        "more_blocks": enough_blocks(
            np.sqrt(of_block.value), np.log1p(SEPARATED), start=len(blocks), freedom=of_block.freedom, level=1 - tail
        ),
    }


def enough_blocks(spread: float, half: float, *, start: int, freedom: float, level: float) -> int | None:
    """Return how many blocks beyond `start` make half of the interval of a logarithm at most `half`.

    The smallest n ≥ 0 with t((1 + level) / 2, freedom + n) · spread / √(start + n) ≤ half; `spread` is the standard
    deviation of a block, `freedom` what is known of it at `start` blocks. `None`: not with `MOST_BLOCKS`.
    """
    from scipy.special import stdtrit

    added = np.arange(max(0, MOST_BLOCKS - start))
    enough = stdtrit(freedom + added, (1 + level) / 2) * spread / np.sqrt(start + added) <= half
    return int(enough.argmax()) if enough.any() else None


def pooled_interval(sums: Floats, block: Integers, level: float = LEVEL, claims: int = 1) -> Interval | None:
    """Return the interval of a pooled ratio for these prompts, wide enough for so many claims at once.

    Arguments as for `pooled_spread`; the variance is their own.
    """
    variance = own_variance(sums, block)
    if variance is None:
        return None
    mean = variance.of_mean(len(np.unique(block)))
    return ratio_interval(float(_ratio(sums.sum(axis=0))), mean, 1 - (1 - level) / claims, _method(level, claims))


def pearson(points: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's r; `None` below `FEWEST_POINTS`, and where either value is the same everywhere."""
    if len(points) < FEWEST_POINTS or any(len(set(values)) == 1 for values in zip(*points, strict=True)):
        return None
    return float(np.asarray(np.corrcoef(points, rowvar=False))[0, 1])


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's step-down (1979), however they hang together."""
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, np.arange(len(p), 0, -1) * np.take(p, order)))
    return [float(value) for value in adjusted]


def tests_after(times_asked: int) -> int:
    """Return what a p-value is multiplied with, when more evidence was gathered so often and tested again each time.

    The n-th test, from 0, has 2 / ((n + 1)(n + 2)) of the level: over any number of tests these add up to less than 2.
    """
    return (times_asked + 1) * (times_asked + 2) // 2


WELCH = "Welch's t over the logarithms of each run's blocks"
REPEATED = "Student's t over the logarithms of whole runs that were repeated"


def block_variance(by_block: Sequence[float] | Floats) -> Variance | None:
    """Return the variance of the logarithm of a block's value, positive ones; `None` below three blocks."""
    if len(by_block) < MIN_BLOCKS:
        return None
    return Variance(float(np.log(by_block).var(ddof=1)), len(by_block) - 1)


def change_interval(
    ratio: float,
    before: Sequence[Variance],
    after: Sequence[Variance],
    level: float = LEVEL,
    repeated: Variance | None = None,
) -> Interval:
    """Return the interval of the ratio of two means (of logarithms) over runs, `after` to `before`.

    `before`, `after`: of each run, the variance of its logarithm between blocks, divided by their number; they are
    summed with the degrees of freedom of Welch (Biometrika 1947) and Satterthwaite (1946). Blocks of a run share the
    machine's state of that run; `repeated` is the variance of a run's logarithm between runs of equal settings, where
    some were repeated: then the wider of the two intervals is returned. The prompts are the same in all runs and count
    as fixed.
    """
    means = change_variances(before, after, repeated)
    intervals = [
        ratio_interval(ratio, mean, level, estimator) for mean, estimator in zip(means, (WELCH, REPEATED), strict=False)
    ]
    return max(intervals, key=lambda interval: interval.high)


def change_variances(
    before: Sequence[Variance], after: Sequence[Variance], repeated: Variance | None
) -> list[Variance]:
    """Return the variances of the logarithm of a change that count, each by itself; arguments as `change_interval`."""
    of_blocks = _sum(*(Variance(run.value / len(runs) ** 2, run.freedom) for runs in (before, after) for run in runs))
    if repeated is None:
        return [of_blocks]
    return [of_blocks, Variance(repeated.value * (1 / len(before) + 1 / len(after)), repeated.freedom)]


def beyond_p(distance: float, mean: Variance) -> float:
    """Return the one-sided probability of a mean so far beyond a limit where the truth lies at the limit (Student)."""
    from scipy.special import stdtr

    if not mean.value:
        return 0.0 if distance > 0 else 1.0
    return float(stdtr(mean.freedom, -distance / mean.value**0.5))


def repeated_variance(runs: Sequence[Sequence[float]]) -> Variance | None:
    """Return the variance of a run's logarithm, from runs of equal settings; `None` where none was repeated.

    `runs`: the values of the runs of each setting. Pooled: the squared distances from each setting's mean, over the
    runs less the settings.
    """
    freedom = sum(len(values) - 1 for values in runs)
    if not freedom:
        return None
    squares = sum(float(np.log(values).var()) * len(values) for values in runs)
    return Variance(squares / freedom, freedom)


def pooled_variance(arms: Sequence[Variance | None]) -> Variance | None:
    """Return the mean variance between repeated runs of arms with the same baseline; `None` where there is none.

    Unlike `shared_variances` it takes them for equal, since what changes from run to run is the machine's state; that
    an arm's blocks are noisier is seen in its blocks. Degrees of freedom as there: less what the arms have in common.
    """
    variances = [variance for variance in arms if variance is not None]
    freedom = sum(variance.freedom for variance in variances)
    if not freedom:
        return None
    mean = sum(variance.value * variance.freedom for variance in variances) / freedom
    return Variance(mean, freedom / (1 + COMMON * (len(variances) - 1)))


def _sum(*parts: Variance) -> Variance:
    """Return the variance of a sum, with Satterthwaite's degrees of freedom."""
    total = sum(part.value for part in parts)
    if not total:
        return Variance(0.0, 1.0)
    return Variance(total, total**2 / sum(part.value**2 / part.freedom for part in parts))


def half_width(mean: Variance, level: float) -> float:
    """Return half of Student's interval of a mean; `mean`: its variance."""
    from scipy.special import stdtrit  # without the whole of scipy.stats, which takes long to import

    return float(stdtrit(mean.freedom, (1 + level) / 2) * mean.value**0.5)


def ratio_interval(middle: float, mean: Variance, level: float, method: str = "") -> Interval:
    """Return Student's interval of a ratio; `mean`: the variance of its logarithm."""
    half = half_width(mean, level)
    return Interval(low=middle * exp(-half), high=middle * exp(half), method=method)


def p_value(middle: float, mean: Variance) -> float:
    """Return the two-sided probability of a ratio at least as far from 1."""
    return min(1.0, 2 * beyond_p(abs(log(middle)), mean))


def _group_sums(sums: Floats, group: Integers) -> Floats:
    """Return the sums over the pairs of each group that has any, (groups, 4), groups in ascending order."""
    groups, group_index = np.unique(group, return_inverse=True)
    totals = [np.bincount(group_index, weights=column, minlength=len(groups)) for column in sums.T]
    return np.stack(totals, axis=1)


def _like_these(
    sums: Floats, middle: float, mean: Variance, prompt: Integers, task: Integers, level: float
) -> Interval | None:
    prompts = _group_sums(sums, prompt)
    if len(prompts) < 3:
        return None
    tasks = task[np.unique(prompt, return_index=True)[1]]
    if min(np.bincount(tasks)[np.unique(tasks)]) < 2:
        tasks = np.zeros_like(tasks)  # a task of a single prompt shows no spread
    _, stratum, members = np.unique(tasks, return_inverse=True, return_counts=True)
    strata = _group_sums(prompts, stratum)
    size = members[stratum][:, np.newaxis]
    # Without a prompt the others of its task stand for the whole task.
    without = np.log(_ratio(prompts.sum(axis=0) - (size * prompts - strata[stratum]) / (size - 1)))
    of_tasks = [(count - 1) * float(without[stratum == n].var()) for n, count in enumerate(members.tolist())]
    effective = prompts[:, 3].sum() ** 2 / (prompts[:, 3] ** 2).sum()
    jackknife = Variance(sum(of_tasks), max(1.0, float(effective) - 1))
    note = "" if level == LEVEL else f", taken at {100 * level:g} %"
    method = f"prompts like these: spread between blocks and jackknife over prompts within tasks, Student's t{note}"
    measured = ratio_interval(middle, mean, level, method)
    sampled = ratio_interval(middle, _sum(mean, jackknife), level, method)
    return Interval(low=min(measured.low, sampled.low), high=max(measured.high, sampled.high), method=method)


def _method(level: float, claims: int = 1) -> str:
    note = "" if level == LEVEL else f", taken at {100 * level:g} % because the run ended by what it showed"
    family = f", wide enough that all {claims} claims hold together (Bonferroni)" if claims > 1 else ""
    return f"these prompts: Student's t over blocks, on logarithms{note}{family}"


def _ratio(sums: Floats) -> Floats:
    ratio: Floats = sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3])
    return ratio
