"""The run and the analysis of `handmade`, for every test of the reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.analysis.results import Analysis
from benchctl.data.record import Record
from benchctl.data.store import RunData
from tests.reports.handmade import ARMS, HOSTILE, build_analysis, build_manifest


@pytest.fixture
def analysis() -> Analysis:
    """Seven arms, three tasks, three blocks."""
    return build_analysis(list(ARMS))


@pytest.fixture
def run_data(analysis: Analysis, tmp_path: Path) -> RunData:
    """The run of `analysis`, with one record of hostile text."""
    record = Record(label="spec_d4", task="code", prompt_idx=1, rep=0, content=HOSTILE)
    return RunData(tmp_path, build_manifest(analysis), [record], ["records.jsonl:9 is cut off and was left out."])
