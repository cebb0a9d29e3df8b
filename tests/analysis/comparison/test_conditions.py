"""Comparing runs never mixes conditions."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.comparison import compare
from benchctl.analysis.comparison.gates import GateFailure, check_gates, parse_gate
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import judge
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep

compare_runs = partial(compare.compare_runs, judge=judge)


def server(gains: dict[int, float]) -> Server:
    return Server(gain=lambda arm, concurrency, temperature: gains[concurrency])


def test_arms_are_matched_under_the_same_condition(tmp_path: Path) -> None:
    for name, gains in (("a", {1: 1.3, 4: 1.6}), ("b", {1: 1.3, 4: 1.2})):
        write_sweep(tmp_path / name, Sweep(concurrency=(1, 4)), server(gains))
    result = compare_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    speeds = {arm.arm: arm.rate.ratio for arm in result.arms}
    assert speeds["spec_d4-c1"] == pytest.approx(1.0)
    assert speeds["spec_d4-c4"] == pytest.approx(1.2 / 1.6, rel=0.02)
    assert {arm.arm for arm in result.arms if arm.is_baseline} == {"baseline-c1", "baseline-c4"}
    assert check_gates([parse_gate("lossy")], result)[0].passed  # judged at concurrency 1 alone


def test_one_name_under_two_conditions_is_refused(tmp_path: Path) -> None:
    write_sweep(tmp_path / "a", Sweep(concurrency=(4,)))
    write_sweep(tmp_path / "b", Sweep(concurrency=(1,)))
    with pytest.raises(UsageError) as refused:
        compare_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    assert refused.value.what.splitlines()[1:] == [
        "  concurrency of arm baseline: 4 and 1",
        "  concurrency of arm spec_d4: 4 and 1",
    ]


def test_a_gate_cannot_pass_where_nothing_was_assessed(tmp_path: Path) -> None:
    for name, gain in (("a", 1.1), ("b", 1.2)):
        write_sweep(tmp_path / name, Sweep(concurrency=(1, 4)), server({1: gain, 4: gain}))
    result = compare_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"), arms=["spec_d4-c4"])
    failures = check_gates([parse_gate("lossy")], result)[0].failures
    assert failures == (GateFailure("not judged", overlapping=True),)


def test_other_answers_of_overlapping_requests_are_no_change(tmp_path: Path) -> None:
    def other(record: dict[str, Any]) -> None:
        ids = [*record["token_ids"][:-1], 7]
        record |= {"token_ids": ids, "token_sha": sha256_tokens(ids), "content": "x", "content_sha": sha256_text("x")}

    def same(record: dict[str, Any]) -> None:
        record |= {"content": "y", "content_sha": sha256_text("y"), "token_ids": None, "token_sha": None}

    write_sweep(tmp_path / "a", Sweep(concurrency=(1, 4)), edit=same)
    write_sweep(tmp_path / "b", Sweep(concurrency=(1, 4)), edit=other)
    result = compare_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"))
    differ = {arm.arm: (len(arm.outputs.differing), len(arm.outputs.undetermined)) for arm in result.arms}
    assert differ["spec_d4-c1"] == (12, 0)
    assert differ["spec_d4-c4"] == (0, 12)
