"""How certain a pooled speed-up is: for these prompts, for prompts like these, and for all claims of a run at once.

*These prompts* is a hierarchical bootstrap whose unit is the block. A resample draws as many blocks as there are, with
replacement, and takes all prompts of every drawn block: the second stage is without replacement, since every block
has the same prompts (Davison & Hinkley 1997, section 3.8, their second strategy). Drawing the prompts with
replacement, too, counts the noise of a request twice: such intervals held the truth in more than 99 of 100 simulated
runs, not in 95 (`benchmarks/coverage.py`). Three blocks can only be drawn in ten ways, and no draw goes beyond the best
and the worst of them, so the interval is never narrower than Student's t on the logarithms of the blocks' own ratios.

*Prompts like these* takes the prompts for a sample, too: to the variance between blocks it adds that of leaving out one
prompt at a time within each task (the jackknife; Efron & Tibshirani 1993, chapter 11), with Student's t at the degrees
of freedom of Satterthwaite.

*All claims at once* is the first interval at level 1 - 0.05 / m for m claims (Bonferroni), which holds however the arms
are correlated through the baseline that they share. Which claims are made is decided by Holm's step-down, which keeps
the same level and is never weaker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.result import Interval

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Integers
    from benchctl.data.manifest import Manifest

RESAMPLES = 10_000
SEED = 20240607
MIN_BLOCKS = 3
"""Below three blocks no interval between runs is given."""
LEVEL = 0.95
SEQUENTIAL_LEVEL = 0.97
"""The level in place of `LEVEL` where measuring went on until the interval was narrow enough.

Such a run ends by preference when its blocks happen to agree: of plain 95 % intervals 92 in 100 hold the truth in the
worst case. At this level, with the first look after five blocks (`FIRST_LOOK`) and one after every further block,
94.6 to 97 in 100 do, whatever the ratio of the blocks' spread to the requested width (`benchmarks/coverage.py`). A
constant level at every look is Pocock's (1977) way of paying for looks.
"""
POWER = 0.8
"""The power for which `Spread.detectable` is given."""


@dataclass(frozen=True)
class Spread:
    """What is known of a pooled ratio beside its value. Everything is `None` below three blocks."""

    interval: Interval | None = None
    """These prompts, this ratio alone."""
    simultaneous: Interval | None = None
    """These prompts; all claims of the run together hold in 95 of 100 runs."""
    like_these: Interval | None = None
    """Prompts like these; `None` also below three prompts."""
    within: float | None = None
    """The smallest x for which the ratio is shown to lie in 1 - x to 1 + x (two one-sided tests), over all claims."""
    claims_held: int = 0
    """The most claims, up to those of the run, for which an interval wide enough for all of them excludes 1."""
    detectable: float | None = None
    """The smallest change, as a share, that would have been detected with a power of 80 %, over all claims."""


def level_for(*manifests: Manifest | None) -> float:
    """Return the level to take intervals at, so that those of these runs hold the truth in 95 of 100."""
    sequential = any(one is not None and one.auto_blocks is not None for one in manifests)
    return SEQUENTIAL_LEVEL if sequential else LEVEL


def pooled_spread(
    sums: Floats, block: Integers, prompt: Integers, task: Integers, level: float = LEVEL, claims: int = 1
) -> Spread:
    """Return the spread of the pooled ratio of some pairs.

    `sums` is (pairs, 4): tokens and seconds of the arm, tokens and seconds of the baseline; the ratio of a set of
    pairs is (Σ0 / Σ1) / (Σ2 / Σ3). `block`, `prompt` and `task` are (pairs,). `claims`: how many ratios are tested
    together.
    """
    blocks = _group_sums(sums, block)
    if len(blocks) < MIN_BLOCKS:
        return Spread()
    tail = (1 - level) / claims
    ratios = _Ratios(blocks)
    own = ratios.interval(level, _method(level))
    simultaneous = own if claims == 1 else ratios.interval(1 - tail, _method(level, claims))
    equivalence = ratios.interval(1 - 2 * tail, "")
    return Spread(
        interval=own,
        simultaneous=simultaneous,
        like_these=_like_these(sums, blocks, prompt, task, own, level),
        within=max(equivalence.high - 1, 1 - equivalence.low),
        claims_held=_claims_held(ratios, level, claims),
        detectable=ratios.detectable(tail),
    )


def claims_that_hold(counts: Sequence[int]) -> list[bool]:
    """Return which of a run's claims that a ratio is not 1 hold together: Holm's step-down (1979).

    `counts`: `Spread.claims_held` of every ratio that is tested, those without an interval as 0. The surest must hold
    among all of them, the next among the rest, and so on until one does not.
    """
    found = [False] * len(counts)
    for step, place in enumerate(sorted(range(len(counts)), key=lambda one: -counts[one])):
        if counts[place] < len(counts) - step:
            break
        found[place] = True
    return found


def _claims_held(ratios: _Ratios, level: float, claims: int) -> int:
    """Return `Spread.claims_held`: intervals widen with the claims, so the last that excludes 1 is found by halving."""
    fewest, most = 0, claims
    while fewest < most:
        number = (fewest + most + 1) // 2
        found = ratios.interval(1 - (1 - level) / number, "")
        fewest, most = (number, most) if found.excludes_one else (fewest, number - 1)
    return fewest


def pooled_interval(sums: Floats, block: Integers, level: float = LEVEL, claims: int = 1) -> Interval | None:
    """Return the interval of a pooled ratio for these prompts, wide enough for so many claims at once.

    Arguments as for `pooled_spread`.
    """
    blocks = _group_sums(sums, block)
    if len(blocks) < MIN_BLOCKS:
        return None
    return _Ratios(blocks).interval(1 - (1 - level) / claims, _method(level, claims))


def _group_sums(sums: Floats, group: Integers) -> Floats:
    """Return the sums over the pairs of each group that has any, (groups, 4), groups in ascending order."""
    groups, place = np.unique(group, return_inverse=True)
    totals = [np.bincount(place, weights=column, minlength=len(groups)) for column in sums.T]
    return np.stack(totals, axis=1)


class _Ratios:
    """The ratio of a run, of its blocks and of its resamples, worked out once for intervals at any level."""

    def __init__(self, blocks: Floats) -> None:
        """`blocks`: (blocks, 4)."""
        self._count = len(blocks)
        self._middle = _ratio(blocks.sum(axis=0))
        self._resampled = _ratio(_drawn(self._count, RESAMPLES) @ blocks)
        self._error = _block_spread(blocks) / self._count**0.5
        self._student = _student(self._count - 1)

    def interval(self, level: float, method: str) -> Interval:
        """Return the wider of bootstrap and Student's t on either side."""
        tail = (1 - level) / 2
        low, high = np.percentile(self._resampled, [100 * tail, 100 * (1 - tail)])
        half = self._student(1 - tail) * self._error
        low, high = min(low, self._middle * np.exp(-half)), max(high, self._middle * np.exp(half))
        return Interval(low=float(low), high=float(high), method=method)

    def detectable(self, tail: float) -> float:
        """Return exp((t(1 - tail / 2) + t(POWER)) · s / √n) - 1, both quantiles at n - 1 degrees of freedom."""
        return float(np.expm1((self._student(1 - tail / 2) + self._student(POWER)) * self._error))


def _block_spread(blocks: Floats) -> float:
    """Return the standard deviation of the logarithms of the blocks' ratios."""
    return float(np.log(_ratio(blocks)).std(ddof=1))


def _like_these(
    sums: Floats, blocks: Floats, prompt: Integers, task: Integers, own: Interval, level: float
) -> Interval | None:
    prompts = _group_sums(sums, prompt)
    count = len(prompts)
    if count < 3:
        return None
    tasks = task[np.unique(prompt, return_index=True)[1]]
    if min(np.bincount(tasks)[np.unique(tasks)]) < 2:
        tasks = np.zeros_like(tasks)  # a task of one prompt shows no spread
    without = np.log(_ratio(prompts.sum(axis=0) - prompts))
    of_prompts = 0.0
    for one in np.unique(tasks):
        left_out = without[tasks == one]
        of_prompts += (len(left_out) - 1) * float(left_out.var())
    of_blocks = _block_spread(blocks) ** 2 / len(blocks)
    variance = of_blocks + of_prompts
    if variance == 0:
        return own.model_copy(update={"method": _like_these_method(level)})
    freedom = variance**2 / (of_blocks**2 / (len(blocks) - 1) + of_prompts**2 / (count - len(np.unique(tasks))))
    half = float(_student(freedom)((1 + level) / 2)) * variance**0.5
    middle = float(_ratio(prompts.sum(axis=0)))
    return Interval(
        low=min(own.low, middle * float(np.exp(-half))),
        high=max(own.high, middle * float(np.exp(half))),
        method=_like_these_method(level),
    )


def _student(freedom: float) -> Callable[[float], float]:
    """Return the quantile function of Student's t."""
    from scipy.special import stdtrit  # without the whole of scipy.stats, which takes long to import

    return lambda share: float(stdtrit(freedom, share))


@lru_cache(maxsize=8)
def _drawn(count: int, resamples: int) -> Floats:
    """Return how often each of `count` blocks is drawn, (resamples, count): the same for every arm and task."""
    drawn = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), size=resamples)
    return drawn.astype(np.float64)


def _method(level: float, claims: int = 1) -> str:
    note = "" if level == LEVEL else f", taken at {100 * level:g} % because the run ended when it was narrow enough"
    together = f", wide enough that all {claims} claims hold together (Bonferroni)" if claims > 1 else ""
    return (
        f"these prompts: hierarchical bootstrap over blocks, each with all its prompts ({RESAMPLES:,} resamples), at "
        f"least as wide as Student's t over blocks{note}{together}"
    )


def _like_these_method(level: float) -> str:
    note = "" if level == LEVEL else f", taken at {100 * level:g} %"
    return f"prompts like these: spread between blocks and jackknife over prompts within tasks, Student's t{note}"


def _ratio(sums: Floats) -> Floats:
    ratio: Floats = sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3])
    return ratio
