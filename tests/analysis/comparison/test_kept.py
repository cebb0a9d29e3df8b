"""A kept baseline: it stands in for the run that it is of, and its gates find what was planted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.comparison import kept as kept_baseline
from benchctl.analysis.comparison.changes import Doubt
from benchctl.analysis.comparison.compare import compare_runs
from benchctl.analysis.comparison.gates import GateFailure, check_gates, parse_gate
from benchctl.analysis.comparison.kept import Kept, read_kept, write_kept
from benchctl.analysis.comparison.workload import Change
from benchctl.data.cell import Cell, MemoryRecord, WatchRecord
from benchctl.data.store import RunData
from benchctl.errors import StorageError, UsageError
from benchctl.lossless.judge.run import judge
from tests.analysis.comparison.test_compare import WOBBLE, Runs, arm

keep = partial(kept_baseline.keep, judge=judge)
against_kept = partial(kept_baseline.against_kept, judge=judge, where="baseline.json")
GATES = ("slower:5%", "slower-absolute:5%", "acceptance:5%", "ttft:20%", "memory:5%", "energy:10%", "lossy")


@pytest.fixture
def runs(make_record: Any, make_manifest: Any) -> Runs:
    return Runs(make_record, make_manifest)


def whole(run: RunData, *, ttft: float = 1.0, memory: float = 1.0, energy: float = 1.0, rounds: int = 4) -> RunData:
    """Give a run what gates watch beside speed, each block a little different."""
    assert run.manifest is not None
    records = [
        record.changed(
            ttft_s=0.5 * ttft * (1 + 0.01 * record.block),
            **({"draft_n": 16, "draft_n_accepted": 10 - rounds, "rounds": rounds} if record.label == "spec" else {}),
        )
        for record in run.records
    ]
    cells = [
        Cell(
            block=block,
            arm=planned.name,
            order=0,
            status="finished",
            started_at="2026-11-21T11:05:00+00:00",
            wall_s=1.0,
            log="",
            watch=WatchRecord(wall_s=1.0, energy_j={"processor": 100.0 * energy * (1 + 0.01 * block)}),
            memory=MemoryRecord(resident=int(1e9 * memory) + block),
        )
        for block in range(run.manifest.blocks)
        for planned in run.manifest.arms
    ]
    return replace(run, records=records, manifest=run.manifest.model_copy(update={"cells": cells}))


def failed(baseline: Kept, run: RunData, *gates: str) -> dict[str, GateFailure]:
    """By gate that failed, its first failure."""
    results = check_gates([parse_gate(gate) for gate in gates or GATES], against_kept(baseline, [run]))
    return {result.gate.word: result.failures[0] for result in results if not result.passed}


def stored(run: RunData, folder: Path) -> Kept:
    write_kept(keep([run]), folder / "baseline.json")
    return read_kept(folder / "baseline.json")


def test_it_says_of_a_run_what_the_run_that_it_is_of_would(runs: Runs, tmp_path: Path) -> None:
    a, b = whole(runs("a", blocks=4)), whole(runs("b", blocks=4, factor=0.9, only="spec"), ttft=1.2)
    direct, by_file = compare_runs(a, b, judge=judge), against_kept(stored(a, tmp_path), [b])
    for expected, row in zip(direct.arms, by_file.arms, strict=True):
        assert (expected.arm, expected.change, expected.doubt, expected.prompts) == (
            row.arm,
            row.change,
            row.doubt,
            row.prompts,
        )
        assert expected.watched.keys() == row.watched.keys() >= {"ttft", "memory", "energy"}
        for ratio_of_run, ratio_of_file in (
            (expected.rate, row.rate),
            (expected.speedup, row.speedup),
            *zip(expected.watched.values(), row.watched.values(), strict=True),
        ):
            assert (ratio_of_run.interval is None) == (ratio_of_file.interval is None)
            if ratio_of_run.interval and ratio_of_file.interval:
                assert ratio_of_run.ratio == pytest.approx(ratio_of_file.ratio, rel=1e-5)
                assert ratio_of_run.interval.low == pytest.approx(ratio_of_file.interval.low, rel=1e-4)
    assert arm(by_file, "spec").watched["acceptance code"].a == pytest.approx(2.5)


def test_an_unchanged_run_passes_and_every_planted_change_fails_its_own_gate_alone(runs: Runs, tmp_path: Path) -> None:
    baseline = stored(whole(runs("a", blocks=4)), tmp_path)
    assert failed(baseline, whole(runs("b", blocks=4))) == {}
    slower = failed(baseline, whole(runs("b", blocks=4, factor=0.7, only="spec")))
    assert slower.keys() == {"slower", "slower-absolute"} and slower["slower"].code == "worse"
    assert failed(baseline, whole(runs("b", blocks=4), ttft=1.6)).keys() == {"ttft"}
    assert failed(baseline, whole(runs("b", blocks=4), memory=1.2)).keys() == {"memory"}
    assert failed(baseline, whole(runs("b", blocks=4), energy=1.4)).keys() == {"energy"}
    lost = failed(baseline, whole(runs("b", blocks=4), rounds=5))
    assert lost.keys() == {"acceptance"} and lost["acceptance"].arm == "spec, code"
    assert lost["acceptance"].change is not None and lost["acceptance"].change.ratio == pytest.approx(0.8)

    def other(record: Any) -> Any:
        return record.changed(content="x", token_ids=[1] * 11) if record.label == "spec" else record

    assert failed(baseline, whole(runs("b", blocks=4, change=other))).keys() == {"lossy"}
    assert failed(baseline, whole(runs("b", blocks=4), rounds=3, ttft=0.5, memory=0.5, energy=0.5)) == {}, (
        "better is not worse"
    )


@pytest.mark.parametrize(
    ("spread", "factor", "code"), [(0.01, 1.0, None), (0.1, 1.0, "cannot tell"), (0.1, 0.7, "cannot tell")]
)
def test_a_gate_that_cannot_see_a_large_change_does_not_pass(
    runs: Runs, monkeypatch: pytest.MonkeyPatch, spread: float, factor: float, code: str | None
) -> None:
    monkeypatch.setitem(WOBBLE, "spec", (1.0, 1 + spread, 1 - spread, 1.0))
    result = failed(keep([runs("a")]), runs("b", factor=factor, only="spec"), "slower:10%")
    assert {gate: failure.code for gate, failure in result.items()} == ({} if code is None else {"slower": code})


def test_what_is_not_reported_is_undetermined_and_fails(runs: Runs) -> None:
    baseline = keep([whole(runs("a"))])
    result = failed(baseline, runs("b"))
    assert {gate: failure.code for gate, failure in result.items()} == dict.fromkeys(
        ("acceptance", "memory", "energy"), "undetermined"
    )
    bare = keep([runs("a")])
    assert failed(bare, whole(runs("b")), "memory:5%") == {"memory": GateFailure("not reported")}
    gone = failed(
        baseline, whole(runs("b", change=lambda record: None if record.prompt_idx == 3 else record)), "slower:5%"
    )
    assert gone["slower"].doubt == Doubt(code="prompts missing", counts=(1, 4))


def test_another_machine_is_held_to_ratios_alone(runs: Runs) -> None:
    baseline = keep([whole(runs("a", machine={"cpu": "one"}))])
    b = whole(runs("b", factor=0.5, machine={"cpu": "two"}), ttft=3, memory=2, energy=3)
    results = check_gates([parse_gate(gate) for gate in GATES], against_kept(baseline, [b]))
    assert {result.gate.word for result in results if result.skipped} == {"slower-absolute", "ttft", "memory", "energy"}
    changed = (Change(what="machine cpu", a="one", b="two"),)
    assert all(result.other_machine == changed for result in results if result.skipped)
    assert all(result.passed for result in results), "its baseline is as much slower"
    slower = whole(runs("b", factor=0.5, only="spec", machine={"cpu": "two"}))
    assert failed(baseline, slower).keys() == {"slower"}


def test_kept_runs_show_what_changes_from_run_to_run(runs: Runs) -> None:
    b = whole(runs("b", factor=0.8, only="spec"))
    single = keep([whole(runs("a"))])
    apart = keep([whole(runs(name, factor=factor, only="spec")) for name, factor in (("a", 1.0), ("c", 0.75))])
    assert failed(single, b, "slower:5%")["slower"].code == "worse"
    assert failed(apart, b, "slower:5%")["slower"].code == "cannot tell"
    with pytest.raises(UsageError, match="no repetition"):
        keep([runs("a"), runs("b", recipe={"engine": {"threads": 4}})])


def test_answers_of_other_lengths_count_where_they_are_equal(runs: Runs) -> None:
    def shorter(record: Any) -> Any:
        return record.changed(n_predicted=6, token_ids=[1] * 6) if record.prompt_idx == 1 else record

    baseline = keep([runs("a")])
    spec = arm(against_kept(baseline, [runs("b", factor=0.8, only="spec", change=shorter)]), "spec")
    assert spec.change == "slower" and spec.rate_length_matched == pytest.approx(0.8)
    cut_off = arm(
        against_kept(
            baseline, [runs("b", factor=0.8, only="spec", change=lambda record: record.changed(finish_reason="length"))]
        ),
        "spec",
    )
    assert cut_off.change == "unknown" and cut_off.doubt == Doubt(code="no equal answer")


def test_what_is_no_baseline_or_other_work_is_refused(runs: Runs, tmp_path: Path) -> None:
    for run, message in ((runs("a", blocks=2), "fewer than 3 blocks"), (replace(runs("a"), manifest=None), "manifest")):
        with pytest.raises(UsageError, match=message):
            keep([run])
    with pytest.raises(UsageError, match="other work"):
        against_kept(keep([runs("a")]), [runs("b", workload_sha256="1" * 64)])
    with pytest.raises(UsageError, match="no such baseline"):
        read_kept(tmp_path / "none.json")
    file = tmp_path / "baseline.json"
    for text in ("[]", '{"schema": 99}', '{"schema": 1}', "{"):
        file.write_text(text)
        with pytest.raises(StorageError):
            read_kept(file)


def test_the_file_is_small_and_the_same_every_time(runs: Runs, tmp_path: Path) -> None:
    baseline = stored(whole(runs("a")), tmp_path)
    text = (tmp_path / "baseline.json").read_text()
    write_kept(baseline, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == text
    assert len(text.splitlines()) < 80 and str(tmp_path) not in text
