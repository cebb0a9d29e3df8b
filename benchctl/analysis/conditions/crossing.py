"""Where the curves of total throughput with and without speculation cross, as concurrency grows.

Speculation fills idle compute: with more requests in flight there is less of it, so what helps one request can cost
all of them together. The crossing is the concurrency at which `throughput_speedup` falls through 1, interpolated
between two neighbouring measured levels: logarithm of the ratio against logarithm of the concurrency. It is given only
between a level whose interval lies above 1 and a later one whose interval lies below, and never beyond the measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import exp, log
from typing import NamedTuple

from benchctl.analysis.conditions.results import Crossing
from benchctl.analysis.result import Interval
from benchctl.text import listed


class Point(NamedTuple):
    """An arm at one level."""

    concurrency: int
    ratio: float | None
    """`Level.throughput_speedup`."""
    interval: Interval | None
    doubt: str | None = None
    """Why this ratio does not show the effect of speculation, as the end of a sentence."""

    @property
    def sign(self) -> int:
        """1 where speculation helps beyond noise, -1 where it loses beyond noise, else 0."""
        if self.doubt or self.interval is None:
            return 0
        return int(self.interval.low > 1) - int(self.interval.high < 1)


def find_crossing(arm: str, temperature: float, points: Sequence[Point]) -> Crossing:
    """Conclude from an arm's levels; `arm` is the recipe's."""
    points = sorted(points, key=lambda point: point.concurrency)
    helps, loses, open_ = (
        [point.concurrency for point in points if point.sign == sign] for sign in (1, -1, 0)
    )  # fmt: skip
    at = None
    outcome = "cannot be said"
    if helps and loses and max(helps) < min(loses):
        outcome, at = "crosses", _where(points, max(helps), min(loses))
    elif helps and loses:
        outcome = "otherwise"
    elif helps and not open_ and len(points) > 1:
        outcome = "always helps"
    elif loses and not open_ and len(points) > 1:
        outcome = "never helps"
    found = Crossing.model_validate(
        {
            "arm": arm,
            "temperature": temperature,
            "outcome": outcome,
            "at": at,
            "helps_at": helps,
            "loses_at": loses,
            "undecided_at": open_,
            "sentence": "",
        }
    )
    return found.model_copy(update={"sentence": _sentence(found, points)})


def _where(points: Sequence[Point], low: int, high: int) -> float | None:
    """Interpolate between the neighbouring levels where the values pass 1; `None` where they do so several times."""
    sound = [p for p in points if low <= p.concurrency <= high and not p.doubt]
    known = [(log(p.concurrency), log(p.ratio)) for p in sound if p.ratio]
    passes = [(a, b) for a, b in pairwise(known) if (a[1] > 0) != (b[1] > 0)]
    if len(passes) != 1:
        return None
    (x, y), (next_x, next_y) = passes[0]
    return exp(x + (next_x - x) * y / (y - next_y))


def _sentence(found: Crossing, points: Sequence[Point]) -> str:
    name, last = found.arm, points[-1].concurrency
    helps, loses = found.helps_at, found.loses_at
    undecided = _undecided([point for point in points if not point.sign])
    if len(points) == 1:
        value, doubt = points[0].ratio, points[0].doubt
        there = "is not known" if value is None else f"is {value:.2f}× that without speculation"
        there += f", but {doubt}" if doubt and value is not None else ""
        return f"Only concurrency {last} was measured, so no crossing can be found; total throughput of {name} {there}."
    if found.outcome == "crosses":
        where = f"at about {found.at:.1f}" if found.at else "somewhere between"
        between = f" {undecided[0].upper()}{undecided[1:]}." if undecided else ""
        return (
            f"{name} helps total throughput up to concurrency {max(helps)} and costs throughput from {min(loses)} on: "
            f"the curves cross {where}.{between}"
        )
    if found.outcome == "always helps":
        return f"{name} helps total throughput at every concurrency measured: no crossing up to {last}."
    if found.outcome == "never helps":
        first = points[0].concurrency
        return f"{name} already costs total throughput at concurrency {first}, and at all others up to {last}."
    if found.outcome == "otherwise":
        return (
            f"{name} helps total throughput at concurrency {listed(helps)} and costs throughput at {listed(loses)}: "
            f"there is no one crossing.{f' {undecided[0].upper()}{undecided[1:]}.' if undecided else ''}"
        )
    if helps:
        return (
            f"{name} helps total throughput at concurrency {listed(helps)}; where it stops is undetermined: "
            f"{undecided}."
        )
    if loses:
        return (
            f"{name} costs total throughput at concurrency {listed(loses)}; whether it helps elsewhere is "
            f"undetermined: {undecided}."
        )
    return f"Up to which concurrency {name} helps total throughput is undetermined: {undecided}.{_by_values(points)}"


def _undecided(points: Sequence[Point]) -> str:
    """Why levels are undecided, as a clause: `the intervals of levels 2 and 4 contain 1`."""
    parts = []
    within = [point.concurrency for point in points if not point.doubt and point.interval]
    without = [point.concurrency for point in points if not point.doubt and not point.interval]
    if within:
        many = len(within) > 1
        parts.append(
            f"the {'intervals' if many else 'interval'} of {_levels(within)} {'contain' if many else 'contains'} 1"
        )
    if without:
        parts.append(f"{_levels(without)} {'have' if len(without) > 1 else 'has'} too few whole blocks for an interval")
    for doubt in dict.fromkeys(point.doubt for point in points if point.doubt):
        parts.append(f"at {_levels([point.concurrency for point in points if point.doubt == doubt])} {doubt}")
    return ", and ".join(parts)


def _by_values(points: Sequence[Point]) -> str:
    """Where the point estimates cross 1, when no level has an interval."""
    known = [point for point in points if point.ratio and not point.doubt]
    passes = [(a, b) for a, b in pairwise(known) if ((a.ratio or 0) > 1) != ((b.ratio or 0) > 1)]
    if any(point.interval for point in points) or len(passes) != 1:
        return ""
    (low, high), word = passes[0], "fall" if (passes[0][0].ratio or 0) > 1 else "rise"
    return f" The point estimates {word} through 1 between {low.concurrency} and {high.concurrency}."


def _levels(levels: Sequence[int]) -> str:
    return f"{'levels' if len(levels) > 1 else 'level'} {listed(levels)}"
