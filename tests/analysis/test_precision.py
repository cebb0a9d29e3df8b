"""How narrow intervals are, and what `blocks: auto` came to, recomputed from the records."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from msgspec.structs import replace

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.precision import half_widths
from benchctl.analysis.speed_results import SpeedUp
from benchctl.analysis.statistics import SEQUENTIAL_LEVEL
from benchctl.data.manifest import Stopped
from benchctl.lossless.judge.run import analyse_run
from benchctl.words import stopping


def records(make_record: Any, blocks: int, spread: float = 0.02) -> list[Any]:
    rng = random.Random(4)
    return [
        make_record(label, index, block=block, rate=10 * speed * factor)
        for block in range(blocks)
        for label, speed in (("baseline", 1.0), ("spec", 0.8))
        for factor in [math.exp(rng.gauss(0, spread))]
        for index in range(3)
    ]


def overall(run: Any) -> SpeedUp:
    return next(row for row in analyse_run(run).speedups if row.task == ALL_TASKS)


def test_half_a_width_is_a_share_of_the_speed_up(make_record: Any, make_run: Any) -> None:
    run = make_run(records(make_record, 4))
    row = overall(run)
    assert row.interval is not None
    assert row.pooled is not None
    assert half_widths(run) == {"spec": pytest.approx((row.interval.high - row.interval.low) / 2 / row.pooled)}


def test_the_width_is_that_of_the_interval_that_is_shown(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    """Of several arms: wide enough for all of them together."""
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}, "other": {"type": "ngram-simple"}}
    second_arm = [replace(record, label="other") for record in records(make_record, 6, 0.04) if record.label == "spec"]
    manifest = make_manifest(arms, 3, 6, recipe={"blocks": {"half_width": 0.05, "max": 20}})
    run = make_run([*records(make_record, 6), *second_arm], manifest)
    analysis = analyse_run(run)
    shown = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    assert analysis.stopping is not None
    assert analysis.stopping.half_widths == half_widths(run)
    for arm, width in half_widths(run).items():
        row = shown[arm]
        assert row.interval is not None and row.pooled is not None
        assert width == pytest.approx((row.interval.high - row.interval.low) / 2 / row.pooled)
    widest = max(width for width in half_widths(run).values() if width is not None)
    assert f"The widest interval is ±{100 * widest:.1f} %" in stopping.sentence(analysis.stopping)


def test_an_arm_without_answers_is_not_waited_for_and_one_without_an_interval_is(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}, "dead": {"type": "ngram-simple"}}
    manifest = make_manifest(arms, prompts=3, blocks=2)
    assert half_widths(make_run(records(make_record, 2), manifest)) == {"spec": None}


def test_a_run_that_was_monitored_has_wider_intervals(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}}
    rule = {"half_width": 0.02, "max": 20, "budget_min": None}
    fixed = overall(make_run(records(make_record, 6), make_manifest(arms, prompts=3, blocks=6)))
    sequential = overall(make_run(records(make_record, 6), make_manifest(arms, 3, 6, recipe={"blocks": rule})))
    assert fixed.interval is not None
    assert sequential.interval is not None
    # Student's t with 5 degrees of freedom: 2.571 at 95 %, 3.003 at 97 % (tables).
    widened = math.log(sequential.interval.high / sequential.interval.low) / math.log(
        fixed.interval.high / fixed.interval.low
    )
    assert widened == pytest.approx(3.003 / 2.571, abs=0.002)
    assert f"{100 * SEQUENTIAL_LEVEL:g} %" in sequential.interval.method
    assert "97 %" not in fixed.interval.method


def test_what_auto_came_to_is_recomputed(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}}
    rule = {"half_width": 0.05, "max": 20, "budget_min": 30.0}
    stored = Stopped(reason="reached", half_widths={"spec": 0.5})  # what the run wrote down is not believed
    manifest = make_manifest(arms, 3, 6, recipe={"blocks": rule}, stopped=stored, spent_s=120.0)
    run = make_run(records(make_record, 6), manifest)
    result = analyse_run(run).stopping
    assert result is not None
    assert result.half_widths == half_widths(run)
    assert (result.reason, result.blocks, result.max_blocks, result.budget_min) == ("reached", 6, 20, 30.0)
    assert result.half_width == 0.05
    assert analyse_run(run, baseline="spec").stopping is None, "the run did not stop by what other baselines show"


def test_an_unfinished_run_says_so_and_a_fixed_run_has_no_stopping(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}}
    unfinished = make_manifest(arms, 3, 2, recipe={"blocks": {"max": 9}})
    result = analyse_run(make_run(records(make_record, 2), unfinished)).stopping
    assert result is not None
    assert (result.reason, result.half_widths) == (None, {"spec": None})
    assert analyse_run(make_run(records(make_record, 2))).stopping is None
    assert (
        analyse_run(make_run(records(make_record, 2), make_manifest(arms, 3, 2, recipe={"blocks": 2}))).stopping is None
    )
