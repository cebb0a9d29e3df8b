"""Open-loop arrival: what was asked, sent and finished, and whether the server kept up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchctl.analysis.conditions.load import latency_growth
from benchctl.analysis.results import Analysis
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.warnings import seen
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep
from tests.oracle.reading import Reading


def analysed(folder: Path, sweep: Sweep, server: Server | None = None) -> Analysis:
    write_sweep(folder, sweep, server)
    return analyse_run(open_run(folder))


def test_numbers_recompute(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(rate=(0.5, 2.0), prompts=24, late_s=0.02), Server(slots=1))
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    reading = Reading(tmp_path / "run")
    for row in analysis.sweep.levels:
        cells = reading.cells(row.arm)
        starts = [[r["sent_s"] + r["late_s"] for r in cell] for cell in cells]
        ends = [[r["sent_s"] + r["e2e_s"] for r in cell] for cell in cells]
        arrival = row.arrival
        assert arrival is not None
        for reported, times in ((arrival.sent_rate, starts), (arrival.finished_rate, ends)):
            assert reported == pytest.approx(3 * 23 / sum(max(time) - min(time) for time in times))
        assert arrival.late_p95_s == pytest.approx(0.02)
        assert row.throughput == pytest.approx(reading.load(row.arm)["throughput"])


def test_a_server_that_falls_behind_is_reported(tmp_path: Path) -> None:
    result = analysed(tmp_path / "run", Sweep(rate=(0.5, 4.0), prompts=24), Server(gain=lambda *_: 2.0, slots=1))
    assert result.sweep is not None
    kept_up = {row.arm: row.arrival.kept_up for row in result.sweep.levels if row.arrival}
    assert kept_up == {"baseline-r0.5": True, "spec_d4-r0.5": True, "baseline-r4": False, "spec_d4-r4": False}
    behind = [warning for warning in result.warnings if warning.id == "rate-not-kept"]
    assert [warning.where for warning in behind] == ["baseline-r4", "spec_d4-r4"]
    assert "did not keep up" in seen(behind[0])
    assert result.sweep.crossings == []


def test_too_few_requests_tell_nothing(tmp_path: Path) -> None:
    result = analysed(tmp_path / "run", Sweep(rate=(4.0,), prompts=8), Server(slots=1))
    assert result.sweep is not None
    assert [row.arrival.kept_up for row in result.sweep.levels if row.arrival] == [None, None]


def test_requests_that_were_given_up_are_longer_than_all_others(tmp_path: Path) -> None:
    def give_up(record: dict[str, Any]) -> None:
        if record["prompt_idx"] % 2:
            record |= dict.fromkeys(("e2e_s", "ttft_s", "client_tok_per_sec", "content", "token_ids"))
            record["error"] = {"kind": "timeout", "message": "The engine sent nothing for 1 s."}

    write_sweep(tmp_path / "run", Sweep(rate=(0.5,), prompts=33), Server(slots=1), edit=give_up)
    analysis = analyse_run(open_run(tmp_path / "run"))
    assert analysis.sweep is not None
    row = analysis.sweep.levels[0]
    assert row.arrival is not None
    assert (row.requests, row.planned, row.arrival.given_up) == (51, 99, 48)
    assert row.arrival.sent_rate == pytest.approx(0.5), "what was never answered was sent all the same"
    assert row.arrival.finished_rate == pytest.approx(0.25, rel=0.02)
    assert row.arrival.kept_up is False, "although those that were answered never waited"
    assert row.e2e.median is not None
    assert (row.e2e.p95, row.ttft.p95) == (None, None)
    (message, _) = [seen(warning) for warning in analysis.warnings if warning.id == "rate-not-kept"]
    assert "48 of 99 timed out" in message


@pytest.mark.parametrize(("late_s", "warned"), [(0.0, False), (0.004, False), (0.05, True)])
def test_a_late_client_is_reported(tmp_path: Path, late_s: float, *, warned: bool) -> None:
    result = analysed(tmp_path / "run", Sweep(rate=(0.2,), late_s=late_s), Server(slots=1))
    assert any(warning.id == "late-client" for warning in result.warnings) == warned


def test_one_slot_is_assessed_at_any_rate(tmp_path: Path) -> None:
    result = analysed(tmp_path / "run", Sweep(rate=(0.5, 2.0)), Server(slots=1))
    assert {row.verdict for row in result.losslessness} == {"identical"}
    assert result.sweep is not None
    assert result.sweep.unjudged is None


def test_a_trend_that_few_cells_cannot_tell_is_not_known(tmp_path: Path) -> None:
    result = analysed(tmp_path / "run", Sweep(rate=(0.5, 4.0), prompts=24, blocks=2), Server(slots=1))
    assert result.sweep is not None
    assert [row.arrival.kept_up for row in result.sweep.levels if row.arrival] == [None] * 4
    assert [row.arrival.growth for row in result.sweep.levels if row.arrival] == [None] * 4


def test_answers_that_grow_longer_are_no_server_that_falls_behind() -> None:
    sent = np.arange(40.0)
    tokens = np.arange(10.0, 50.0)
    assert latency_growth(sent, 0.1 * tokens + 0.3 * sent, np.full(40, 10.0)) == pytest.approx(0.4)
    shuffled = np.random.default_rng(3).permutation(tokens)
    assert latency_growth(sent, 0.1 * shuffled + 0.3 * sent, shuffled) == pytest.approx(0.3)
    assert latency_growth(sent, 0.1 * shuffled, shuffled) == pytest.approx(0.0)
