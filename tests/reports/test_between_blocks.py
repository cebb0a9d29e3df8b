"""How far fresh processes differ, and what `blocks: auto` came to, stand beside every interval, in every form."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from benchctl.analysis.results import Analysis
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.reports.run_summary import print_summary
from benchctl.reports.write import ReportFiles, write_report
from tests.reports.made_run import write_run
from tests.reports.page_text import PageText
from tests.resealed import reseal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, ReportFiles]:
    folder = tmp_path_factory.mktemp("run") / "20261121-110500-3fa9"
    write_run(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["recipe"]["schedule"] = "interleaved"
    manifest["recipe"]["blocks"] = {"half_width": 0.01, "max": 20, "budget_min": 3}
    manifest |= {"spent_s": 150.0, "stopped": {"reason": "budget", "half_widths": {}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    reseal(folder)
    run = open_run(folder)
    analysis = analyse_run(run)
    return analysis, write_report(run, analysis, folder.parent / "report", figures=False)


def test_in_the_terminal(made: tuple[Analysis, ReportFiles]) -> None:
    analysis, _ = made
    stream = io.StringIO()
    print_summary(Console(file=stream, width=160, color_system=None), analysis, "results/a/b", verbose=True)
    assert "budget of 3 min" in stream.getvalue()


def test_in_files(made: tuple[Analysis, ReportFiles]) -> None:
    analysis, files = made
    text = PageText(files.page.read_text()).text
    for row in analysis.speedups:
        assert " ".join(f"{value:.2f}×" for value in row.by_block) in text
    for shown in (text, files.markdown.read_text().replace("\\", "")):
        assert "Stopped after 3 repetitions" in shown
        assert "blocks (arms interleaved)" in shown


def test_in_the_tables_for_programs(made: tuple[Analysis, ReportFiles]) -> None:
    analysis, files = made
    table = next(Path(file) for file in files.tables if Path(file).name == "speedup.csv")
    rows = {(row["arm"], row["task"]): row for row in csv.DictReader(table.read_text().splitlines())}
    for speedup in analysis.speedups:
        row = rows[speedup.arm, speedup.task]
        shown = float(row["lowest_block"]), float(row["highest_block"])
        assert shown == (min(speedup.by_block), max(speedup.by_block))


def test_medians_and_gaps_are_a_table_for_programs(made: tuple[Analysis, ReportFiles]) -> None:
    analysis, files = made
    table = next(Path(file) for file in files.tables if Path(file).name == "throughput-medians.csv")
    rows = {(row["arm"], row["task"]): row for row in csv.DictReader(table.read_text().splitlines())}
    assert rows.keys() == {(row.arm, row.task) for row in analysis.throughput}
    assert "burst_gap_p95_s" in next(iter(rows.values()))
    for throughput in analysis.throughput:
        assert rows[throughput.arm, throughput.task]["tok_per_sec_median"] == str(throughput.median or "")
