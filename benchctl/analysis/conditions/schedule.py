"""The draft depth by the number of requests in flight, as measured levels say: off where no depth is shown to help.

A depth counts at a measured concurrency where its interval lies above 1, and between two measured ones where it counts
at the lower; there its gain is on a line, logarithm of the ratio against logarithm of the concurrency. Of the depths
that count, the one with the largest gain is taken. Beyond an arm's measured concurrencies it is off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from benchctl.analysis.conditions.results import Level
from benchctl.analysis.result import Interval
from benchctl.analysis.statistics import LEVEL, block_variance, ratio_interval


@dataclass(frozen=True)
class LoadStep:
    """The best depth for `first` to `last` requests in flight."""

    first: int
    last: int
    depth: int
    """0: no speculation."""
    arm: str | None
    """The recipe's arm; `None`: no speculation."""
    gain: float | None
    """Its total throughput over no speculation at `first`; `None` without speculation."""


def find_schedule(levels: Sequence[Level], depths: Mapping[str, int]) -> list[LoadStep]:
    """Return the steps from 1 request to the most that were measured; `depths`: of the recipe's arms that may be taken.

    `levels`: of a closed loop under one other condition.
    """
    by_arm = {
        arm: sorted((row for row in levels if row.of == arm and not row.is_baseline), key=lambda row: row.concurrency)
        for arm in depths
    }
    most = max((row.concurrency for row in levels), default=0)
    steps: list[LoadStep] = []
    for requests in range(1, most + 1):
        gains = {arm: gain for arm, rows in by_arm.items() if (gain := _gain(rows, requests)) is not None}
        best = max(gains, key=lambda arm: gains[arm], default=None)
        depth = 0 if best is None else depths[best]
        if steps and steps[-1].depth == depth:
            last = steps.pop()
            steps.append(LoadStep(last.first, requests, depth, last.arm, last.gain))
        else:
            steps.append(LoadStep(requests, requests, depth, best, None if best is None else gains[best]))
    return steps


def _gain(rows: Sequence[Level], requests: int) -> float | None:
    """Return an arm's throughput over the baseline's with so many requests; `None` where it is not shown to help."""
    below = [row for row in rows if row.concurrency <= requests]
    measured = [row for row in rows if row.throughput_speedup]
    if not below or not _helps(below[-1]) or requests > measured[-1].concurrency:
        return None
    loads = [log(row.concurrency) for row in measured]
    gain = float(np.exp(np.interp(log(requests), loads, [log(row.throughput_speedup or 1) for row in measured])))
    return gain if gain > 1 else None


def _helps(row: Level) -> bool:
    return row.throughput_interval is not None and row.throughput_interval.low > 1


@dataclass(frozen=True)
class MixedLoad:
    """An arm against another where each measured concurrency has as many tokens to serve."""

    arm: str
    against: str
    """Both are the recipe's arms."""
    concurrencies: tuple[int, ...]
    ratio: float
    """The other arm's seconds over the arm's: a ratio of harmonic means of total throughput."""
    interval: Interval | None


def mixed_load(levels: Sequence[Level], arm: str, against: str) -> MixedLoad | None:
    """Compare two of the recipe's arms over all concurrencies together; `None` where either lacks one."""
    ours, theirs = ({row.concurrency: row for row in levels if row.of == name} for name in (arm, against))
    if not ours or ours.keys() != theirs.keys():
        return None
    pairs = [(ours[concurrency], theirs[concurrency]) for concurrency in sorted(ours)]
    ratio = _time_ratio([(a.throughput, b.throughput) for a, b in pairs])
    blocks = set.intersection(*(set(row.by_block) for pair in pairs for row in pair))
    by_block = [
        value
        for block in sorted(blocks)
        if (value := _time_ratio([(a.by_block[block][0], b.by_block[block][0]) for a, b in pairs])) is not None
    ]
    if ratio is None:
        return None
    variance = block_variance(np.array(by_block))
    return MixedLoad(
        arm,
        against,
        tuple(sorted(ours)),
        ratio,
        None if variance is None else ratio_interval(ratio, variance.of_mean(len(by_block)), LEVEL),
    )


def _time_ratio(rates: Sequence[tuple[float | None, float | None]]) -> float | None:
    ours, theirs = (sum(1 / rate for rate in column if rate) for column in zip(*rates, strict=True))
    return theirs / ours if all(a and b for a, b in rates) else None
