"""The between-run interval of a pooled speed-up: a hierarchical bootstrap whose unit is the block.

A resample draws as many blocks as there are, with replacement, and takes of every drawn block all its prompts: the
second stage is without replacement, since every block was asked the same prompts (Davison & Hinkley 1997, section 3.8,
their second strategy). Drawing the prompts with replacement, too, counts the noise of a request twice, once as the
difference between blocks that it makes and once more: such intervals held the truth in more than 99 of 100 simulated
runs, not in 95 (`benchmarks/coverage.py`).

Three blocks can only be drawn in ten ways, and no draw goes beyond the best and the worst of them: the percentiles of
so few hold the truth in four runs of five. The interval is therefore never narrower than Student's t on the logarithms
of the blocks' own ratios.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.results import Interval

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Integers
    from benchctl.data.manifest import Manifest

RESAMPLES = 10_000
SEED = 20240607
MIN_BLOCKS = 3
"""Below three blocks nothing is said about the spread between runs."""
LEVEL = 0.95
LEVEL_LOOKED_AT = 0.97
"""What is taken in place of `LEVEL` where measuring went on until the interval was narrow enough.

Such a run ends by preference when its blocks happen to agree: of plain 95 % intervals 92 in 100 hold the truth in the
worst case. At this level, with the first look after five blocks (`FIRST_LOOK`) and one after every further block,
94.6 to 97 in 100 do, whatever the spread of the blocks is against the width asked for (`benchmarks/coverage.py`). A
constant level at every look is Pocock's (1977) way of paying for looks.
"""


def level_for(*manifests: Manifest | None) -> float:
    """Return the level to take intervals at, so that those of these runs hold the truth in 95 of 100."""
    looked_at = any(one is not None and one.auto_blocks is not None for one in manifests)
    return LEVEL_LOOKED_AT if looked_at else LEVEL


def pooled_intervals(
    sums: Floats, block: Integers, task: Integers, level: float = LEVEL
) -> tuple[Interval | None, dict[int, Interval]]:
    """Return the interval of the pooled ratio over all tasks, and that of each task.

    `sums` is (pairs, 4): tokens and seconds of the arm, tokens and seconds of the baseline; the ratio of a set of
    pairs is (Σ0 / Σ1) / (Σ2 / Σ3). `block` and `task` are (pairs,). Fewer than three blocks give no interval.
    """
    by_task = {}
    for number in np.unique(task):
        interval = _interval(_block_sums(sums[task == number], block[task == number]), level)
        if interval is not None:
            by_task[int(number)] = interval
    return _interval(_block_sums(sums, block), level), by_task


def _block_sums(sums: Floats, block: Integers) -> Floats:
    """Return the sums over the pairs of each block that has any, (blocks, 4)."""
    blocks, place = np.unique(block, return_inverse=True)
    totals = [np.bincount(place, weights=column, minlength=len(blocks)) for column in sums.T]
    return np.stack(totals, axis=1)


def _interval(blocks: Floats, level: float) -> Interval | None:
    """Return the wider of bootstrap and Student's t on either side; `blocks` is (blocks, 4)."""
    from scipy.special import stdtrit  # Student's t without the whole of scipy.stats, which takes long to import

    count = len(blocks)
    if count < MIN_BLOCKS:
        return None
    tail = (1 - level) / 2
    resampled = _ratio(_drawn(count, RESAMPLES) @ blocks)
    low, high = np.percentile(resampled, [100 * tail, 100 * (1 - tail)])
    half = float(stdtrit(count - 1, 1 - tail)) * np.log(_ratio(blocks)).std(ddof=1) / count**0.5
    middle = _ratio(blocks.sum(axis=0))
    low, high = min(low, middle * np.exp(-half)), max(high, middle * np.exp(half))
    return Interval(low=float(low), high=float(high), method=_method(level))


@lru_cache(maxsize=8)
def _drawn(count: int, resamples: int) -> Floats:
    """Return how often each of `count` blocks is drawn, (resamples, count): the same for every arm and task."""
    drawn = np.random.default_rng(SEED).multinomial(count, np.full(count, 1 / count), size=resamples)
    return drawn.astype(np.float64)


def _method(level: float) -> str:
    looked = "" if level == LEVEL else f", taken at {100 * level:g} % because the run ended when it was narrow enough"
    return (
        f"hierarchical bootstrap over blocks, each with all its prompts ({RESAMPLES:,} resamples), at least as wide as "
        f"Student's t over blocks{looked}"
    )


def _ratio(sums: Floats) -> Floats:
    ratio: Floats = sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3])
    return ratio
