"""Speed-up, its interval, and what must not change it: worked out by hand."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from benchctl.analysis import statistics
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import SpeedUp
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.warnings import seen


def row(analysis: Analysis, arm: str, task: str = ALL_TASKS) -> SpeedUp:
    return next(row for row in analysis.speedups if (row.arm, row.task) == (arm, task))


def test_pooled_weighs_by_time_and_median_by_prompt(make_record: Any, make_run: Any) -> None:
    # Ten decoded tokens each. Baseline: 1 s + 2 s. Arm: 0.5 s + 4 s. Pooled 3 / 4.5, paired ratios 2 and 0.5.
    records = [
        make_record("baseline", 0, rate=10),
        make_record("baseline", 1, rate=5),
        make_record("spec", 0, rate=20),
        make_record("spec", 1, rate=2.5),
    ]
    result = row(analyse_run(make_run(records)), "spec")
    assert result.pooled == pytest.approx(3 / 4.5)
    assert result.median == pytest.approx(1.25)
    assert result.by_block == pytest.approx([3 / 4.5])
    assert result.end_to_end == pytest.approx((22 / 5.5) / (22 / 4.0))
    assert result.interval is None
    assert (result.pairs, result.pairs_unequal, result.pairs_missing) == (2, 0, 0)


def test_pairs_are_made_within_a_block(make_record: Any, make_run: Any) -> None:
    records = [make_record("baseline", block=0, rate=10), make_record("baseline", block=1, rate=40)]
    records += [make_record("spec", block=0, rate=20), make_record("spec", block=1, rate=20)]
    result = row(analyse_run(make_run(records)), "spec")
    assert result.by_block == pytest.approx([2.0, 0.5])
    assert result.median == pytest.approx(1.25)


def test_unequal_work_is_counted_and_cut_to_the_common_length(make_record: Any, make_run: Any) -> None:
    long = list(range(21))
    records = [
        make_record("baseline", 0, rate=10),
        make_record("baseline", 1, rate=10),
        make_record("spec", 0, rate=20),
        make_record("spec", 1, rate=5, ids=long),  # twenty decoded tokens in four seconds
    ]
    analysis = analyse_run(make_run(records))
    result = row(analysis, "spec")
    assert result.pairs_unequal == 1
    assert result.length_matched == pytest.approx((1 + 1) / (0.5 + 2)), "ten tokens of each: 1 + 1 s against 0.5 + 2 s"
    assert result.pooled == pytest.approx((30 / 4.5) / (20 / 2))
    assert "unequal-work" in {warning.id for warning in analysis.warnings}


def test_an_answer_of_one_token_has_no_rate(make_record: Any, make_run: Any) -> None:
    records = [make_record("baseline", 0), make_record("baseline", 1)]
    records += [make_record("spec", 0, rate=20), make_record("spec", 1, ids=[2], rate=1e9)]
    analysis = analyse_run(make_run(records))
    result = row(analysis, "spec")
    assert result.pooled == pytest.approx(2.0)
    assert (result.pairs, result.pairs_missing) == (1, 0)
    assert "empty-answer" in {warning.id for warning in analysis.warnings}


def test_failed_and_missing_prompts_are_counted(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    error = {"kind": "crash", "message": "gone"}
    records = [make_record("baseline", index) for index in range(4)]
    records += [make_record("spec", 0, rate=20), make_record("spec", 1, error=error)]
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple"}}, prompts=5, blocks=1)
    analysis = analyse_run(make_run(records, manifest))
    result = row(analysis, "spec")
    assert (result.pairs, result.pairs_missing) == (1, 4)
    missing = {warning.where: seen(warning) for warning in analysis.warnings if warning.id == "missing-records"}
    assert missing == {
        "baseline": "1 of 5 answers are missing or failed.",
        "spec": "4 of 5 answers are missing or failed.",
    }


def noisy(make_record: Any, seed: int, blocks: int, prompts: int = 6, factor: float = 0.8) -> list[Any]:
    rng = random.Random(seed)
    return [
        make_record(label, index, block=block, rate=10 * speed * rng.uniform(0.95, 1.05))
        for block in range(blocks)
        for label, speed in (("baseline", 1.0), ("spec", factor))
        for index in range(prompts)
    ]


@pytest.mark.parametrize("blocks", [1, 2])
def test_below_three_blocks_there_is_no_interval(make_record: Any, make_run: Any, blocks: int) -> None:
    analysis = analyse_run(make_run(noisy(make_record, 1, blocks)))
    assert row(analysis, "spec").interval is None
    assert analysis.verdicts[0].speed == "unknown"
    assert "few-blocks" in {warning.id for warning in analysis.warnings}


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_the_estimate_and_excludes_what_is_far(make_record: Any, make_run: Any, seed: int) -> None:
    result = row(analyse_run(make_run(noisy(make_record, seed, 4))), "spec")
    assert result.interval is not None and result.pooled is not None
    assert 0.75 < result.interval.low <= result.pooled <= result.interval.high < 0.85


def test_the_interval_of_equal_blocks_is_a_point(make_record: Any, make_run: Any) -> None:
    records = [make_record(arm, block=b, rate=r) for b in range(3) for arm, r in (("baseline", 10), ("spec", 5))]
    interval = row(analyse_run(make_run(records)), "spec").interval
    assert interval is not None
    assert (interval.low, interval.high) == pytest.approx((0.5, 0.5))


def test_prompts_that_differ_do_not_widen_the_interval(make_record: Any, make_run: Any) -> None:
    """Every block was asked the same prompts, so that they are fast or slow is not chance."""

    def interval(gain: float) -> tuple[float, float]:
        rng = random.Random(2)
        records = [
            make_record(label, index, block=block, rate=10 * speed * rng.uniform(0.98, 1.02))
            for block in range(4)
            for index in range(2)
            for label, speed in (("baseline", 1.0), ("spec", gain if index else 1 / gain))
        ]
        result = row(analyse_run(make_run(records)), "spec")
        assert result.interval is not None and result.pooled is not None
        return result.interval.low / result.pooled, result.interval.high / result.pooled

    alike, unlike = interval(1.0), interval(1.5)
    assert unlike == pytest.approx(alike, abs=0.01)


def test_the_ends_of_the_blocks_stand_beside_the_interval(make_record: Any, make_run: Any) -> None:
    records = [
        make_record(arm, block=block, rate=10 * factor if arm == "spec" else 10)
        for block, factor in enumerate((0.5, 0.8, 0.6))
        for arm in ("baseline", "spec")
    ]
    result = row(analyse_run(make_run(records)), "spec")
    assert (result.lowest_block, result.highest_block) == pytest.approx((0.5, 0.8))
    single = row(analyse_run(make_run(records[:2])), "spec")
    assert (single.lowest_block, single.highest_block) == (None, None)


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_records_changes_nothing(make_record: Any, make_run: Any, seed: int) -> None:
    records = noisy(make_record, seed, 3)
    shuffled = random.Random(seed).sample(records, len(records))
    assert analyse_run(make_run(shuffled)) == analyse_run(make_run(records))


def test_a_machine_twice_as_slow_changes_no_speed_up(make_record: Any, make_run: Any) -> None:
    records = noisy(make_record, 3, 3)
    halves = {"tok_per_sec": 0.5, "client_tok_per_sec": 0.5, "e2e_s": 2.0}
    slowed = [record.changed(**{key: by * getattr(record, key) for key, by in halves.items()}) for record in records]
    fast, slow = row(analyse_run(make_run(records)), "spec"), row(analyse_run(make_run(slowed)), "spec")
    assert slow.by_block == pytest.approx(fast.by_block)
    assert slow.end_to_end == pytest.approx(fast.end_to_end)
    assert slow.interval is not None and fast.interval is not None
    assert slow.interval.low == pytest.approx(fast.interval.low)


def test_an_arm_against_itself_is_one(make_record: Any, make_run: Any) -> None:
    records = [make_record("baseline", i, block=b, rate=5 + i) for i in range(4) for b in range(3)]
    records += [record.changed(label="same") for record in records]
    result = row(analyse_run(make_run(records)), "same")
    assert (result.pooled, result.median, result.end_to_end) == pytest.approx((1.0, 1.0, 1.0))


def test_the_client_clock_counts_before_the_engine_clock(make_record: Any, make_run: Any) -> None:
    records = [make_record("baseline"), make_record("spec", rate=20, tok_per_sec=99.0)]
    analysis = analyse_run(make_run(records))
    assert row(analysis, "spec").pooled == pytest.approx(2.0)
    assert [warning.where for warning in analysis.warnings if warning.id == "clock-mismatch"] == ["spec"]


def test_warm_ups_do_not_count(make_record: Any, make_run: Any) -> None:
    records = [make_record("baseline"), make_record("spec"), make_record("spec", 9, rate=1, phase="warmup")]
    analysis = analyse_run(make_run(records))
    assert analysis.records == 2
    assert row(analysis, "spec").pooled == pytest.approx(1.0)


def test_another_baseline_can_be_named_but_must_exist(make_record: Any, make_run: Any) -> None:
    run = make_run([make_record("a", rate=10), make_record("b", rate=20)])
    assert row(analyse_run(run, baseline="a"), "b").pooled == pytest.approx(2.0)
    with pytest.raises(UsageError, match="'baseline'"):
        analyse_run(run)


@pytest.mark.parametrize("blocks", [3, 5])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(blocks: int) -> None:
    """Blocks that differ by 5 %, prompts by 2 %."""
    rng = np.random.default_rng(3)
    block, covered = np.repeat(np.arange(blocks), 6), 0
    for _ in range(200):
        seconds = np.exp(rng.normal(0, 0.05, (2, blocks))[:, block] + rng.normal(0, 0.02, (2, len(block))))
        sums = np.stack([np.ones(len(block)), seconds[0], np.ones(len(block)), seconds[1]], axis=1)
        interval = statistics.pooled_interval(sums, block)
        covered += interval is not None and interval.low <= 1 <= interval.high
    assert covered >= 180


def test_p_values_step_down() -> None:
    assert statistics.holm([]) == []
    assert statistics.holm([0.01, 0.04, 0.02]) == pytest.approx([0.03, 0.04, 0.04])
    assert statistics.holm([0.03, 0.03]) == pytest.approx([0.06, 0.06])


def test_the_uncorrected_probability_is_where_the_interval_touches_one() -> None:
    rng = np.random.default_rng(4)
    seconds = np.exp(rng.normal(0.2, 0.05, 5))
    sums = np.stack([np.ones(5), np.ones(5), np.ones(5), seconds], axis=1)
    block, zero = np.arange(5), np.zeros(5, dtype=np.int64)
    p = statistics.pooled_spread(sums, block, zero, zero)["p"]
    assert p is not None and 0 < p < 0.01
    touching = statistics.pooled_interval(sums, block, level=1 - p)
    assert touching is not None and touching.low == pytest.approx(1, abs=1e-9)
