"""Speed of a request against total throughput, and at equal throughput."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.analysis.conditions.front import equal_throughput, on_front, pareto, speed_at
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep


def test_the_front_holds_what_nothing_beats_in_both() -> None:
    assert pareto([(1, 9), (2, 9), (3, 5), (2.5, 4), (4, 1)]) == [(2, 9), (3, 5), (4, 1)]


@pytest.mark.parametrize(("throughput", "speed"), [(5, 10), (10, 10), (20, 50**0.5), (40, 5), (41, None)])
def test_a_curve_is_a_line_of_logarithms_and_ends_where_it_was_measured(throughput: float, speed: float | None) -> None:
    assert speed_at([(10, 10), (40, 5), (30, 2)], throughput) == (None if speed is None else pytest.approx(speed))


def test_an_arm_is_compared_where_it_serves_as_much_as_its_baseline(tmp_path: Path) -> None:
    """An arm that is 1.5 times as fast alone, and no faster with 8: the truth is known of the simulated server."""
    gains = {1: 1.5, 2: 1.4, 4: 1.2, 8: 0.9}
    server = Server(gain=lambda arm, concurrency, temperature: gains[concurrency])
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 2, 4, 8), prompts=24), server)
    sweep = analyse_run(open_run(tmp_path / "run")).sweep
    assert sweep is not None
    rows = {row.concurrency: row for row in sweep.equal_throughput}
    assert list(rows) == [1, 2, 4, 8]
    assert rows[1].ratio == pytest.approx(1.5, rel=0.05)
    assert rows[1].interval is not None and rows[1].interval.low < 1.5 < rows[1].interval.high
    assert (rows[8].speed, rows[8].ratio, rows[8].interval) == (None, None, None)  # it serves less at 8, and less at 4
    rates = {row.concurrency: row.request_rate or 0 for row in sweep.levels if not row.is_baseline}
    assert rates[2] < (rows[2].speed or 0) < rates[1]  # the baseline with 2 serves what the arm does with fewer
    front = [row.arm for row in on_front(sweep.levels)]
    assert front[0] == "spec_d4-c1" and front[-1] == "baseline-c8"


def test_a_load_at_which_the_baseline_is_worse_in_both_is_no_comparison(tmp_path: Path) -> None:
    """Beside it any arm would win; in a single block it counts as what the baseline can do at another load."""
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 2, 4), prompts=24))
    sweep = analyse_run(open_run(tmp_path / "run")).sweep
    assert sweep is not None
    first, *_ = rows = [row for row in sweep.levels if row.is_baseline]
    slow = [
        row.model_copy(update={"throughput": 0.9 * (first.throughput or 0)}) for row in rows if row.concurrency == 2
    ]
    arm = [row for row in sweep.levels if not row.is_baseline]
    assert [row.concurrency for row in equal_throughput([first, *slow, rows[2], *arm])] == [1, 4]
    in_a_block = rows[1].model_copy(update={"by_block": {**rows[1].by_block, 0: (first.by_block[0][0], 1.0)}})
    equal = {row.concurrency: row for row in equal_throughput([first, in_a_block, rows[2], *arm])}
    interval = equal[2].interval
    assert interval is not None and interval.high < 3, "1 token a second in block 0 is not the baseline's best there"


def test_an_arm_that_serves_less_in_a_block_has_no_interval(tmp_path: Path) -> None:
    """The blocks that are left were selected by what they show."""
    server = Server(gain=lambda arm, concurrency, temperature: 1.5)
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), prompts=24, blocks=4), server)
    sweep = analyse_run(open_run(tmp_path / "run")).sweep
    assert sweep is not None
    assert all(row.interval for row in equal_throughput(sweep.levels))
    fast = sweep.levels[0].model_copy(update={"by_block": sweep.levels[0].by_block | {0: (1e6, 1.0)}})
    assert fast.is_baseline and fast.concurrency == 1
    rows = {row.concurrency: row for row in equal_throughput([fast, *sweep.levels[1:]])}
    assert rows[1].ratio is not None and rows[1].interval is None and rows[4].interval is not None
