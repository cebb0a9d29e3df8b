"""Summaries in the user's cache: found by the content of a run's files, and never a reason to fail."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from benchctl.analysis.comparison import summary
from benchctl.analysis.comparison.summary import summaries_of
from benchctl.data import summary as stored
from benchctl.data.summary import RunSummary, content_digest
from benchctl.lossless.judge.run import judge

KEPT = Path(__file__).parents[2] / "data" / "kept" / "run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    return shutil.copytree(KEPT, tmp_path / "results" / "kept" / "20261123-063549-f5e2")


def cached(run: Path) -> Path:
    (file,) = (run.parents[2] / "cache" / "summaries").iterdir()
    return file


def without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> RunSummary:
        pytest.fail("a summary was made that the cache holds")

    monkeypatch.setattr(summary, "summarise", fail)


def test_a_summary_is_found_by_content_wherever_the_run_lies(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(run.rglob("*"))
    (first_summary,) = summaries_of([run], judge)
    assert sorted(run.rglob("*")) == before, "nothing is written into a run's folder"
    moved = run.rename(run.with_name("moved"))
    for file in moved.iterdir():
        os.utime(file, (0, 0))
    without_work(monkeypatch)
    (second_summary,) = summaries_of([moved], judge)
    assert second_summary == msgspec.structs.replace(first_summary, folder=str(moved))


def test_a_change_of_any_file_or_of_the_code_is_another_digest(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {content_digest(run)}
    for name in ("records.jsonl", "manifest.json", "scores-kv_q8_0.json"):
        file, stamp = run / name, (run / "records.jsonl").stat()
        file.write_bytes((file.read_bytes() if file.is_file() else b"{}").replace(b"1", b"2") + b" ")
        os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        digests.add(content_digest(run))
    monkeypatch.setattr(stored, "package_sha256", lambda: "another")
    digests.add(content_digest(run))
    assert len(digests) == 5


def test_a_forged_summary_in_the_folder_of_a_run_is_not_read(run: Path) -> None:
    (first_summary,) = summaries_of([run], judge)
    content = msgspec.msgpack.encode(msgspec.structs.replace(first_summary, recipe="forged"))
    shutil.rmtree(cached(run).parent)
    (run / ".summary").write_bytes(hashlib.sha256(content).digest() + content)
    assert summaries_of([run], judge) == [first_summary]


@pytest.mark.parametrize("shape", ["garbage", "cut", "another type", "short array", "empty"])
def test_what_is_damaged_in_the_cache_is_made_again(run: Path, shape: str) -> None:
    (first_summary,) = summaries_of([run], judge)
    file = cached(run)
    intact = file.read_bytes()
    short = msgspec.to_builtins(first_summary, builtin_types=(bytes,))
    short["arms"][0]["tokens"] = first_summary.arms[0].tokens[:-1]
    payload = {
        "garbage": b"\xc1" * 40,
        "another type": json.dumps([1]).encode(),
        "short array": msgspec.msgpack.encode(short),
    }.get(shape)
    file.write_bytes(intact[:-9] if shape == "cut" else hashlib.sha256(payload).digest() + payload if payload else b"")
    assert summaries_of([run], judge) == [first_summary]
    assert file.read_bytes() == intact


def test_a_cache_that_cannot_be_written_costs_the_summary_alone(run: Path) -> None:
    (run.parents[2] / "cache").write_text("a file")
    assert summaries_of([run], judge)[0].arms
