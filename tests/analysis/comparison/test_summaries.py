"""Summaries beside runs: kept as long as nothing of the run changes, and never a reason to fail."""

from __future__ import annotations

from pathlib import Path

from benchctl.analysis.comparison.summary import SUMMARY, keep_summary, kept_summary


def test_a_summary_is_of_the_run_as_it_is(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    records.write_text("{}\n")
    assert kept_summary(tmp_path, "1") is None
    assert keep_summary(tmp_path, "1", lambda: b"made\n\x00") == b"made\n\x00"
    assert kept_summary(tmp_path, "1") == b"made\n\x00"
    assert kept_summary(tmp_path, "2") is None
    records.write_text("{}\n{}\n")
    assert kept_summary(tmp_path, "1") is None
    keep_summary(tmp_path, "1", lambda: b"again")
    (tmp_path / "replays-kv_q8_0.json").write_text("{}")
    assert kept_summary(tmp_path, "1") is None, "what was scored changes verdicts"
    assert not list(tmp_path.glob(f"{SUMMARY}.*"))


def test_a_folder_that_cannot_be_written_costs_the_summary_alone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    assert keep_summary(gone, "1", lambda: b"made") == b"made"
    assert kept_summary(gone, "1") is None
    assert list(tmp_path.iterdir()) == []
