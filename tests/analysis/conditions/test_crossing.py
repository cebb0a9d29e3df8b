"""Where the curves cross: only between a level that surely helps and one that surely costs, and never beyond."""

from __future__ import annotations

from math import log

import pytest

from benchctl.analysis.conditions.results import LevelDoubt
from benchctl.analysis.conditions.sweep import Point, find_crossing
from benchctl.analysis.result import Interval


def point(concurrency: int, ratio: float | None, half: float | None = 0.05, doubt: LevelDoubt | None = None) -> Point:
    interval = (
        None if half is None or ratio is None else Interval(low=ratio - half, high=ratio + half, method="by hand")
    )
    return Point(concurrency, ratio, interval, doubt)


def test_crossing_lies_on_the_line_between_the_logarithms() -> None:
    crossing = find_crossing("spec", 0.0, [point(1, 1.5), point(4, 1.2), point(8, 0.8)])
    assert (crossing.outcome, crossing.helps_at, crossing.loses_at, crossing.undecided_at) == (
        "crosses",
        [1, 4],
        [8],
        [],
    )
    assert crossing.at is not None
    share = log(1.2) / (log(1.2) - log(0.8))
    assert log(crossing.at) == pytest.approx(log(4) + share * log(2))


def test_the_crossing_lies_between_where_the_ends_of_the_intervals_pass_1() -> None:
    points = [point(1, 1.5, 0.2), point(4, 1.2, 0.1), point(8, 0.8, 0.1)]
    crossing = find_crossing("spec", 0.0, points)
    assert crossing.at is not None and crossing.at_interval is not None
    ends = [
        find_crossing("spec", 0.0, [point(4, 1.2 + off, 0.01), point(8, 0.8 + off, 0.01)]).at for off in (-0.1, 0.1)
    ]
    assert (crossing.at_interval.low, crossing.at_interval.high) == pytest.approx(ends)
    assert crossing.at_interval.low < crossing.at < crossing.at_interval.high


def test_levels_may_come_in_any_order() -> None:
    points = [point(1, 1.5), point(4, 1.2), point(8, 0.8)]
    assert find_crossing("spec", 0.0, points[::-1]) == find_crossing("spec", 0.0, points)


def test_no_crossing_is_reported_beyond_what_was_measured() -> None:
    helps = find_crossing("spec", 0.0, [point(1, 1.5), point(8, 1.06)])
    assert (helps.outcome, helps.at) == ("always helps", None)
    costs = find_crossing("spec", 0.0, [point(2, 0.9), point(8, 0.5)])
    assert (costs.outcome, costs.at) == ("never helps", None)


def test_an_undecided_level_between_sure_ones_is_named() -> None:
    crossing = find_crossing("spec", 0.0, [point(1, 1.5), point(2, 1.02), point(4, 0.99), point(8, 0.8)])
    assert (crossing.outcome, crossing.undecided_at) == ("crosses", [2, 4])
    assert crossing.at is not None
    assert 2 < crossing.at < 4


def test_values_that_pass_1_several_times_give_no_place() -> None:
    crossing = find_crossing("spec", 0.0, [point(1, 1.5), point(2, 0.99), point(4, 1.01), point(8, 0.8)])
    assert (crossing.outcome, crossing.at) == ("crosses", None)


@pytest.mark.parametrize(
    ("points", "doubts"),
    [
        ([point(1, 1.5), point(8, 1.01)], {"contains 1": [8]}),
        ([point(1, 1.01), point(8, 0.7)], {"contains 1": [1]}),
        ([point(1, 1.01), point(8, 0.99)], {"contains 1": [1, 8]}),
        ([point(1, 1.5, None), point(8, 0.7, None)], {"no interval": [1, 8]}),
        ([point(1, 1.5, doubt="not drafted"), point(8, 0.7)], {"not drafted": [1]}),
        ([point(1, None, None, "not compared"), point(8, 1.4)], {"not compared": [1]}),
        ([point(level, 1.5, doubt="not drafted") for level in (1, 2, 4)], {"not drafted": [1, 2, 4]}),
    ],
)  # fmt: skip
def test_an_undetermined_crossing_has_its_reason(points: list[Point], doubts: dict[str, list[int]]) -> None:
    crossing = find_crossing("spec", 0.0, points)
    assert (crossing.outcome, crossing.at, crossing.doubts) == ("cannot be said", None, doubts)


def test_the_other_way_round_is_no_crossing() -> None:
    crossing = find_crossing("spec", 0.0, [point(1, 0.8), point(4, 1.3), point(8, 0.9)])
    assert (crossing.outcome, crossing.at) == ("otherwise", None)


def test_one_level_is_no_curve() -> None:
    crossing = find_crossing("spec", 0.0, [point(8, 1.57)])
    assert (crossing.outcome, crossing.at) == ("cannot be said", None)


def test_a_doubtful_level_is_no_place_to_cross_at() -> None:
    points = [point(1, 1.5), point(2, 0.9, doubt="not drafted"), point(4, 1.2), point(8, 0.8)]
    crossing = find_crossing("spec", 0.0, points)
    assert (crossing.helps_at, crossing.loses_at, crossing.undecided_at) == ([1, 4], [8], [2])
    assert crossing.at == find_crossing("spec", 0.0, [points[0], *points[2:]]).at


def test_an_interval_that_touches_1_decides_nothing() -> None:
    crossing = find_crossing("spec", 0.0, [point(1, 1.05), point(8, 0.95)])
    assert (crossing.outcome, crossing.undecided_at) == ("cannot be said", [1, 8])
