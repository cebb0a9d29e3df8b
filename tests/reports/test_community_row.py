"""A run as rows of other people's tables: what they ask for, and a dash for what was not reported."""

from __future__ import annotations

from pathlib import Path

from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData, open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.community_row import rows
from tests.analysis.conditions.simulated import Sweep, write_sweep
from tests.kept_runs import REPOSITORY


def table(text: str) -> list[dict[str, str]]:
    head, _, *lines = [line.strip("| ").split(" | ") for line in text.splitlines()]
    return [dict(zip(head, line, strict=True)) for line in lines]


def test_an_arm_is_a_row_with_what_such_tables_ask_for() -> None:
    run = open_run(REPOSITORY / "results/padded-cuda/20261127-204443-ee1d")
    by_depth = {row["Depth"]: row for row in table(rows(run, analyse_run(run)))}
    row = by_depth["16"]
    assert row["Card"] == "NVIDIA H100 80GB HBM3, 700 W, PCIe 5 x16"
    assert (row["tok/s alone"], row["tok/s with"], row["Speed-up"]) == ("160.2", "671.1", "4.19×")
    assert row["Accepted"] == "70.2 %, length 11.85" and row["Memory"] == "12.0 GiB → 12.1 GiB"
    assert (row["OS"], row["Backend"], row["KV"]) == ("Ubuntu 24.04.3 LTS", "CUDA", "engine's own")
    assert "code 160.5 → 1317.1" in row["By task, tok/s"] and row["Context"] == "2048"
    assert by_depth["–"]["Type"] == "ngram-simple", "the depth of n-grams is not known"


def test_settings_of_the_engine_and_no_memory_that_it_reserves() -> None:
    run = open_run(REPOSITORY / "results/vllm-gpu/20261126-203918-4fb8")
    (row,) = table(rows(run, analyse_run(run)))
    assert (row["Settings"], row["Memory"]) == ("in bfloat16, with --enforce-eager", "–")


def test_requests_in_flight_are_told_apart(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), prompts=12))
    run = open_run(tmp_path / "run")
    assert [row["In flight"] for row in table(rows(run, analyse_run(run)))] == ["–", "4"]


def test_what_was_not_reported_is_a_dash(run_data: RunData, analysis: Analysis) -> None:
    shown = table(rows(run_data, analysis))
    assert [row["Arm"] for row in shown] == [f"`{verdict.arm}`" for verdict in analysis.verdicts if verdict.acceptance]
    assert {row["Memory"] for row in shown} == {"–"} and "0" not in {row["Prefill tok/s"] for row in shown}
