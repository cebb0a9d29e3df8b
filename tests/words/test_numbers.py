"""One number, one spelling."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Interval
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.words import numbers
from benchctl.words.verdict import explanation
from tests.reports.handmade import build_analysis


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        (numbers.ratio(0.574), "0.57×"),
        (numbers.ratio(12.3), "12.30×"),
        (numbers.ratio(None), "–"),
        (numbers.percent(0.7704), "77.0 %"),
        (numbers.rate(2.354), "2.35"),
        (numbers.rate(9.996), "10.0"),
        (numbers.rate(118.44), "118.4"),
        (numbers.count(1543714304), "1\u202f543\u202f714\u202f304"),
        (numbers.count(None), "–"),
        (numbers.seconds(0.0354), "35 ms"),
        (numbers.seconds(0.9996), "1.00 s"),
        (numbers.seconds(61.5), "61.5 s"),
        (numbers.seconds(200), "3 min 20 s"),
        (numbers.seconds(7260), "2 h 1 min"),
        (numbers.size(0), "0 B"),
        (numbers.size(1117320736), "1.0 GiB"),
        (numbers.size(3 * 2**41), "6.0 TiB"),
        (numbers.interval(Interval(low=0.554, high=1.1, method="m")), "0.55 to 1.10×"),
        (numbers.interval(None), "–"),
        (numbers.moment("2026-11-21T11:05:59+00:00"), "2026-11-21 11:05 UTC"),
        (numbers.moment("2026-11-21T11:05:59+09:00"), "2026-11-21 11:05 +0900"),
        (numbers.moment("yesterday"), "yesterday"),
    ],
)
def test_written(written: str, wanted: str) -> None:
    assert written == wanted


def test_why_there_is_no_interval() -> None:
    texts = [numbers.no_interval(build_analysis(["baseline", "spec_d4"], blocks)) for blocks in (1, 2, 3)]
    assert texts == ["one block: no interval", "2 blocks: no interval", "too few complete blocks: no interval"]


@pytest.mark.integration
def test_an_acceptance_reads_the_same_in_a_table_and_in_a_sentence() -> None:
    folder = Path(__file__).parents[2] / "results" / "qwen2.5-coder" / "20261122-191218-f263"
    analysis = analyse_run(open_run(folder))
    reasons = {verdict.arm: explanation(analysis, verdict) for verdict in analysis.verdicts if verdict.acceptance}
    assert len(reasons) > 3
    for row in analysis.acceptance:
        if row.task == ALL_TASKS and row.arm in reasons:
            assert f"{numbers.percent(row.rate)} of its draft tokens were accepted" in reasons[row.arm]
