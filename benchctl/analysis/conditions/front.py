"""Speed of a request against total throughput: the front, and the speeds of two arms that serve equally much.

More requests at a time raise total throughput and slow down each request. Of two arms, each measured at several
concurrencies, the better one gives its users more speed at the same total throughput (DSpark's measure). Between two
measured levels a curve is a line in logarithms; beyond its highest throughput it has no value, and below its lowest it
keeps the speed of that level, which serves more than is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import exp, log

import numpy as np

from benchctl.analysis.conditions.results import EqualThroughput, Level
from benchctl.analysis.statistics import LEVEL, block_variance, ratio_interval

Curve = Sequence[tuple[float, float]]
"""(total throughput, speed of a request), tokens per second, one a level."""


def pareto(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the points that no other beats in both values, by rising first value."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, key=lambda values: (-values[0], -values[1])):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def speed_at(curve: Curve, throughput: float) -> float | None:
    """Return the speed of a request at a total throughput on the front of a curve; `None` beyond its end."""
    front = pareto(curve)
    if not front or throughput > front[-1][0]:
        return None
    if throughput <= front[0][0]:
        return front[0][1]
    for (low, low_speed), (high, high_speed) in pairwise(front):
        if throughput <= high:
            share = log(throughput / low) / log(high / low)
            return exp(log(low_speed) + share * (log(high_speed) - log(low_speed)))
    return None


def curves(levels: Iterable[Level]) -> dict[tuple[str, ...], list[Level]]:
    """Return the levels of the closed loop by what their curve is of: arm, temperature and labels."""
    by_curve: dict[tuple[str, ...], list[Level]] = {}
    for row in levels:
        if row.rate is None:
            key = (
                row.of,
                f"{row.temperature:g}",
                str(row.context_length or ""),
                str(row.max_tokens or ""),
                *row.axes.values(),
            )
            by_curve.setdefault(key, []).append(row)
    return by_curve


def equal_throughput(levels: Sequence[Level]) -> Iterator[EqualThroughput]:
    """Yield every arm's speed at the throughput that its baseline has at each concurrency, beside the baseline's.

    A concurrency at which the baseline has less of both than at another is left out: nobody would serve so. The
    interval is Student's t over the logarithms of the blocks' own ratios, each at that block's own throughput; `None`
    where the arm serves less in any of them.
    """
    by_group: dict[tuple[object, ...], list[Level]] = {}
    for row in levels:
        if row.is_baseline and row.rate is None:
            by_group.setdefault(row.work, []).append(row)
    for rows in curves(row for row in levels if not row.is_baseline).values():
        first = rows[0]
        theirs = by_group.get(first.work, [])
        if len(rows) < 2 or len(theirs) < 2:
            continue
        for level in on_front(theirs):
            assert level.throughput is not None and level.request_rate is not None
            speed = speed_at(_curve(rows), level.throughput)
            blocks = [block for block in sorted(level.by_block) if _measured([*rows, *theirs], block)]
            ratios = [_ratio(rows, theirs, level.by_block[block][0], block) for block in blocks]
            by_block = [ratio for ratio in ratios if ratio is not None]
            whole = speed is not None and len(by_block) == len(ratios)  # in every block it serves as much
            variance = block_variance(np.array(by_block)) if whole else None
            ratio = None if speed is None else speed / level.request_rate
            yield EqualThroughput(
                arm=first.of,
                labels=list(first.axes.values()),
                temperature=first.temperature,
                concurrency=level.concurrency,
                throughput=level.throughput,
                baseline_speed=level.request_rate,
                speed=speed,
                ratio=ratio,
                interval=None
                if variance is None or ratio is None
                else ratio_interval(ratio, variance.of_mean(len(by_block)), LEVEL, "Student's t over blocks"),
            )


def _curve(rows: Sequence[Level]) -> Curve:
    return [(row.throughput, row.request_rate) for row in rows if row.throughput and row.request_rate]


def _measured(rows: Sequence[Level], block: int) -> bool:
    return all(block in row.by_block for row in rows)


def _ratio(rows: Sequence[Level], theirs: Sequence[Level], throughput: float, block: int) -> float | None:
    """Return the arm's speed over the baseline's at a throughput that the baseline has in that block."""
    speed, alone = (speed_at([row.by_block[block] for row in levels], throughput) for levels in (rows, theirs))
    return None if speed is None or alone is None else speed / alone


def on_front(levels: Sequence[Level]) -> list[Level]:
    """Return the levels that no other beats in total throughput and in the speed of a request, by rising throughput."""
    measured: Mapping[tuple[float, float], Level] = {
        (row.throughput, row.request_rate): row for row in levels if row.throughput and row.request_rate
    }
    return [measured[point] for point in pareto(measured)]
