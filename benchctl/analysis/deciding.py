"""`blocks: auto`: which arms are decided after a block, so that the time goes to those that are not.

An arm is decided when its interval is wholly above 1, wholly below 1, or shown to lie within ±5 % of it. A faster arm
goes on while it may be the best: until it is separated from the fastest, or shown to be within 5 % of it. Every
interval of a look holds for all arms together and pays for the other looks (`LOOK_LEVEL`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import Literal, Protocol

import numpy as np

from benchctl.analysis.result import Interval
from benchctl.analysis.statistics import LOOK_LEVEL, Variance, ratio_interval, shared_variances

NEAR = 0.05
"""Two rates that differ by less are as good as equal."""
Decided = Literal["faster", "slower", "within"]


class Ratio(Protocol):
    """An arm's rate over its baseline's, as after one block; `benchctl.analysis.results.SpeedUp` is one."""

    @property
    def pooled(self) -> float | None:
        """Over all blocks."""

    @property
    def by_block(self) -> Sequence[float]:
        """Of each block, in order."""

    @property
    def simultaneous(self) -> Interval | None:
        """Over all claims; `None` below three blocks."""

    @property
    def within(self) -> float | None:
        """The smallest x for which the ratio is shown to lie in 1 - x to 1 + x."""


def decided_arms(arms: Mapping[str, Ratio], level: float = LOOK_LEVEL) -> dict[str, Decided]:
    """Return what is decided, of those arms of one group that need no further block. `level`: of one look."""
    words = {name: word for name, ratio in arms.items() if (word := _word(ratio)) is not None}
    faster = [name for name, word in words.items() if word == "faster"]
    rivals = [name for name in arms if name in faster or name not in words]
    if not faster:
        return words
    best = max(faster, key=lambda name: arms[name].pooled or 0.0)
    near = _not_separated(arms, best, [name for name in rivals if name != best], 1 - (1 - level) / len(arms))
    return {name: word for name, word in words.items() if name not in near and not (near and name == best)}


def _word(ratio: Ratio) -> Decided | None:
    if ratio.within is not None and ratio.within <= NEAR:
        return "within"
    if ratio.simultaneous is None or not ratio.simultaneous.excludes_one:
        return None
    return "faster" if ratio.simultaneous.low > 1 else "slower"


def _not_separated(arms: Mapping[str, Ratio], best: str, rivals: Sequence[str], level: float) -> set[str]:
    """Return the rivals that may be as fast as the best arm, and are not shown to be within 5 % of it.

    Both are compared with the same baseline, which cancels out: in the blocks that both have.
    """
    logs = [
        np.log([ours / theirs for ours, theirs in zip(arms[rival].by_block, arms[best].by_block, strict=False)])
        for rival in rivals
    ]
    variances = shared_variances([Variance(float(row.var(ddof=1)), len(row) - 1) for row in logs])
    near = set()
    for rival, row, variance in zip(rivals, logs, variances, strict=True):
        assert variance is not None
        ends = ratio_interval(exp(float(row.mean())), Variance(variance.value / len(row), variance.freedom), level)
        if ends.high >= 1 and not (abs(log(ends.low)) < NEAR and abs(log(ends.high)) < NEAR):
            near.add(rival)
    return near
