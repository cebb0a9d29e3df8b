"""Every condition is analysed for itself, and what depends on the condition recomputes from the records."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.analysis.conditions.sweep import check_levels
from benchctl.analysis.precision import half_widths
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.data.store import open_run
from benchctl.errors import UsageError
from benchctl.lossless.judge.run import analyse_run
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep
from tests.oracle.reading import Reading, quantile, student_ends
from tests.resealed import reseal

GAINS = {1: 1.6, 2: 1.4, 4: 1.1, 8: 0.8}
SWEEP = Sweep(concurrency=(1, 2, 4, 8), prompts=24)
SERVER = Server(gain=lambda arm, concurrency, temperature: GAINS[concurrency])


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Reading, Analysis]:
    folder = tmp_path_factory.mktemp("sweep") / "run"
    write_sweep(folder, SWEEP, SERVER)
    return Reading(folder), analyse_run(open_run(folder))


def test_every_level_recomputes(swept: tuple[Reading, Analysis]) -> None:
    reading, analysis = swept
    assert analysis.sweep is not None
    assert [row.arm for row in analysis.sweep.levels] == [
        f"{arm}-c{level}" for level in (1, 2, 4, 8) for arm in ("baseline", "spec_d4")
    ]
    for row in analysis.sweep.levels:
        for key, expected in reading.load(row.arm).items():
            assert getattr(row, key) == pytest.approx(expected), (row.arm, key)
        for name, values in reading.latencies(row.arm).items():
            quantiles = getattr(row, name)
            assert quantiles.median == pytest.approx(quantile(values, 0.5))
            assert quantiles.p95 == pytest.approx(quantile(values, 0.95))
            assert quantiles.p99 is None  # 72 requests are too few for it
        assert (row.requests, row.planned) == (72, 72)
        if row.is_baseline:
            assert (row.throughput_speedup, row.latency_speedup) == (None, None)
            continue
        throughput, latency = reading.load_speedup(row.arm), reading.latency_speedup(row.arm)
        assert (row.throughput_speedup, row.latency_speedup) == pytest.approx((throughput[0], latency[0]))
        # that of throughput holds for the arms of all conditions together
        for (middle, by_block), ends, claims in (
            (throughput, row.throughput_interval, len(GAINS)),
            (latency, row.latency_interval, 1),
        ):
            assert ends is not None
            assert (ends.low, ends.high) == pytest.approx(student_ends(middle, by_block, 1 - 0.05 / claims))


def test_arms_are_compared_with_the_baseline_of_their_own_condition(
    swept: tuple[Reading, Analysis],
) -> None:
    _, analysis = swept
    assert analysis.baseline == "baseline"
    assert analysis.baselines == {f"baseline-c{level}" for level in GAINS}
    assert analysis.settings == ["baseline", "spec_d4"]
    speeds = {row.arm: row.pooled for row in analysis.speedups if row.task == "all"}
    assert speeds == {f"spec_d4-c{level}": pytest.approx(gain, rel=0.05) for level, gain in GAINS.items()}
    assert [verdict.speed for verdict in analysis.verdicts] == ["faster", "faster", "faster", "slower"]


def test_the_crossing_is_between_the_levels_where_it_is(swept: tuple[Reading, Analysis]) -> None:
    _, analysis = swept
    assert analysis.sweep is not None
    (crossing,) = analysis.sweep.crossings
    assert (crossing.arm, crossing.outcome, crossing.helps_at, crossing.loses_at) == (
        "spec_d4",
        "crosses",
        [1, 2, 4],
        [8],
    )
    assert crossing.at is not None
    assert 4 < crossing.at < 8


def test_a_run_without_conditions_has_no_sweep(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep())
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is None
    assert "sweep" not in analysis.model_dump(by_alias=True)
    assert analysis.baselines == {"baseline"}
    assert analysis.settings == analysis.arms


def test_one_baseline_for_all_conditions_may_be_named_by_any(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4)), Server(gain=lambda *_: 1.5))
    run = open_run(tmp_path / "run")
    by_name, by_condition = analyse_run(run, baseline="spec_d4"), analyse_run(run, baseline="spec_d4-c4")
    assert by_name == by_condition
    assert {row.arm for row in by_name.speedups} == {"baseline-c1", "baseline-c4"}
    with pytest.raises(UsageError, match="'spec_d8'"):
        analyse_run(run, baseline="spec_d8")


def in_two_processes(record: dict[str, Any]) -> None:
    """The first block was broken off after eight answers, and resumed."""
    if record["block"] == 0 and record["prompt_idx"] >= 8:
        record["attempt"] = 1
        record["sent_s"] -= 3.0  # its clock began anew


def test_overlapping_requests_of_a_resumed_cell_had_too_little_company_to_count(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(4,)), edit=in_two_processes)
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    reading = Reading(tmp_path / "run")
    for row in analysis.sweep.levels:
        assert row.throughput == pytest.approx(reading.load(row.arm, [1, 2])["throughput"])
    assert len(analysis.sweep.levels[1].throughput_by_block) == 2


def test_one_request_at_a_time_may_be_resumed(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4)), edit=in_two_processes)
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    assert [len(row.throughput_by_block) for row in analysis.sweep.levels if not row.is_baseline] == [3, 2]


def test_what_passes_between_two_requests_alone_is_not_the_engines(tmp_path: Path) -> None:
    def rest(record: dict[str, Any]) -> None:
        record["sent_s"] += 0.7 * record["prompt_idx"]  # rendering, counters; or the turns of other arms

    write_sweep(tmp_path / "busy", Sweep(temperature=(0.0, 0.8)))
    write_sweep(tmp_path / "idle", Sweep(temperature=(0.0, 0.8)), edit=rest)
    analysis = analyse_run(open_run(tmp_path / "idle"))
    assert analysis.sweep is not None
    for row in analysis.sweep.levels:
        assert row.throughput == pytest.approx(Reading(tmp_path / "busy").load(row.arm)["throughput"])
        assert row.in_flight == pytest.approx(1)
        if not row.is_baseline:
            assert row.throughput_speedup == pytest.approx(row.latency_speedup)


def test_cells_that_answered_other_prompts_are_other_work(tmp_path: Path) -> None:
    def fail(record: dict[str, Any]) -> None:
        if (record["label"], record["block"], record["prompt_idx"]) == ("spec_d4", 1, 3):
            record["error"] = {"kind": "http", "message": "HTTP 500"}

    write_sweep(tmp_path / "run", Sweep(concurrency=(4,)), edit=fail)
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    arm = analysis.sweep.levels[1]
    assert arm.throughput_speedup == pytest.approx(Reading(tmp_path / "run").load_speedup("spec_d4", [0, 2])[0])
    assert (len(arm.throughput_by_block), arm.throughput_interval) == (2, None)


def test_a_cell_with_an_unknown_time_has_no_throughput(tmp_path: Path) -> None:
    def forget(record: dict[str, Any]) -> None:
        if (record["label"], record["block"], record["prompt_idx"]) == ("spec_d4", 0, 3):
            record["sent_s"] = None

    write_sweep(tmp_path / "run", Sweep(concurrency=(4,)), edit=forget)
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    baseline, arm = analysis.sweep.levels
    reading = Reading(tmp_path / "run")
    assert arm.throughput == pytest.approx(reading.load("spec_d4", [1, 2])["throughput"])
    assert arm.throughput_speedup == pytest.approx(reading.load_speedup("spec_d4", [1, 2])[0])
    assert len(arm.throughput_by_block) == 2
    assert arm.throughput_interval is None
    assert baseline.throughput == pytest.approx(reading.load("baseline")["throughput"])


def test_quantiles_need_requests_beyond_them(tmp_path: Path) -> None:
    write_sweep(tmp_path / "few", Sweep(concurrency=(2,), prompts=13))
    write_sweep(tmp_path / "many", Sweep(concurrency=(2,), prompts=67))
    few, many = (analyse_run(open_run(tmp_path / name)).sweep for name in ("few", "many"))
    assert few is not None
    assert many is not None
    assert (few.levels[0].requests, few.levels[0].e2e.p95) == (39, None)
    assert many.levels[0].requests == 201
    assert many.levels[0].e2e.p99 is not None


def test_slots_that_are_not_filled_are_named(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(8,), prompts=10))
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert {"not-filled"} == {warning.id for warning in analysis.warnings}
    assert {warning.where for warning in analysis.warnings} == {"baseline", "spec_d4"}
    assert analysis.sweep is not None
    write_sweep(tmp_path / "batch", Sweep(concurrency=(10,), prompts=10))
    batch = analyse_run(open_run(tmp_path / "batch"))
    assert batch.sweep is not None
    slowest = [row.model_copy(update={"in_flight": 5.0}) for row in batch.sweep.levels]
    assert not list(check_levels(slowest)), "a batch waits for its longest answer"
    early = [row.model_copy(update={"in_flight": 1.0, "planned": row.planned // 3}) for row in analysis.sweep.levels]
    assert len(list(check_levels(early))) == 2, "decided after one of three blocks, each of 10 prompts"


def test_temperature_is_a_condition(tmp_path: Path) -> None:
    server = Server(
        gain=lambda arm, concurrency, temperature: 1.5 - 0.5 * temperature,
        accepted=lambda arm, temperature: 0.7 - 0.3 * temperature,
    )
    write_sweep(tmp_path / "run", Sweep(temperature=(0.0, 0.8)), server)
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    assert analysis.sweep.dimensions == ["temperature"]
    assert analysis.sweep.crossings == []
    rates = {row.arm: row.rate for row in analysis.acceptance if row.task == "all"}
    assert rates["spec_d4-t0"] > rates["spec_d4-t0.8"] > 0  # type: ignore[operator]
    outcomes = {row_of_arm.arm: row_of_arm.verdict for row_of_arm in analysis.losslessness}
    assert outcomes == {"spec_d4-t0": "identical", "spec_d4-t0.8": "not judged"}


def test_auto_blocks_look_at_the_arms_of_every_condition(tmp_path: Path) -> None:
    """The widths are those of the intervals that are shown, of whole answers where requests overlap."""
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4)))
    widths, analysis = half_widths(open_run(tmp_path / "run")), analyse_run(open_run(tmp_path / "run"))
    assert widths == {row.arm: pytest.approx(share(row.interval, row.speedup)) for row in analysis.verdicts}
    assert list(widths) == ["spec_d4-c1", "spec_d4-c4"]


def share(interval: Interval | None, middle: float | None) -> float:
    assert interval is not None
    assert middle is not None
    return (interval.high - interval.low) / 2 / middle


def test_the_order_of_the_lines_means_nothing(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), rate=(None, 2.0)))
    before = analyse_run(open_run(tmp_path / "run"))
    file = tmp_path / "run" / "records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    random.Random(7).shuffle(lines)
    file.write_text("".join(lines))
    assert analyse_run(open_run(reseal(tmp_path / "run"))) == before


def test_faster_decoding_that_makes_others_wait_is_no_gain(tmp_path: Path) -> None:
    def wait(record: dict[str, Any]) -> None:
        if record["label"] == "spec_d4":
            record["ttft_s"] += 2.0
            record["e2e_s"] += 2.0

    write_sweep(tmp_path / "run", Sweep(concurrency=(4,)), Server(gain=lambda *_: 1.3), edit=wait)
    analysis = analyse_run(open_run(tmp_path / "run"))
    (verdict,) = analysis.verdicts
    assert analysis.sweep is not None
    assert next(row.pooled for row in analysis.speedups if row.task == "all") == pytest.approx(1.3, rel=0.02)
    assert (verdict.speed, verdict.speedup) == ("slower", analysis.sweep.levels[1].latency_speedup)
    assert verdict.whole_answers


def test_claims_hold_together_where_requests_overlap(tmp_path: Path) -> None:
    """Of many equal arms some are far off by chance: each alone would be called faster or slower."""
    arms = {"baseline": None, **{f"spec_{number}": {"type": "draft-simple", "max": 4} for number in range(40)}}
    write_sweep(tmp_path / "run", Sweep(concurrency=(4,), arms=arms, prompts=6), Server(block_noise=0.06))
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert [row.arm for row in analysis.speedups if row.pointwise and row.pointwise.excludes_one]
    assert {verdict.speed for verdict in analysis.verdicts} <= {"undecided", "within"}
    assert all(verdict.interval and not verdict.interval.excludes_one for verdict in analysis.verdicts)
    assert all(verdict.interval and "40 claims" in verdict.interval.method for verdict in analysis.verdicts)


def test_the_drain_is_no_part_of_the_throughput(tmp_path: Path) -> None:
    """Alone a request is answered four times as fast: over the makespan the drain would count as a gain."""
    write_sweep(tmp_path / "run", Sweep(concurrency=(8,), prompts=16))
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    row = analysis.sweep.levels[0]
    expected = Reading(tmp_path / "run").load(row.arm)
    assert row.drain_share == pytest.approx(expected["drain_share"])
    assert 0.2 < expected["drain_share"] < 0.8
    assert row.throughput == pytest.approx(expected["throughput"])
    assert expected["throughput"] > 1.1 * expected["tokens"] / expected["makespan_s"]


def test_too_few_requests_never_fill_the_slots(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(8,), prompts=7))
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    assert [(row.throughput, row.throughput_speedup, row.drain_share) for row in analysis.sweep.levels] == [
        (None, None, 1.0),
        (None, None, 1.0),
    ]


def test_goodput_counts_the_requests_that_keep_the_limits(tmp_path: Path) -> None:
    records = write_sweep(tmp_path / "run", Sweep(concurrency=(1, 2)), SERVER)
    run = open_run(tmp_path / "run")
    assert run.manifest is not None
    middle = sorted(record["ttft_s"] for record in records)[len(records) // 2]
    limits = {"ttft_s": middle, "tpot_s": None}
    recipe = {**run.manifest.recipe, "goodput": limits}
    limited = replace(run, manifest=run.manifest.model_copy(update={"recipe": recipe}))
    plain, limited_sweep = analyse_run(run).sweep, analyse_run(limited).sweep
    assert plain is not None and limited_sweep is not None
    assert all(row.goodput is None for row in plain.levels)
    for row in limited_sweep.levels:
        within_limits = sum(record["label"] == row.arm and record["ttft_s"] <= middle for record in records)
        assert row.goodput == pytest.approx(within_limits / (row.makespan_s or 0))
