"""`benchctl runs` on the runs that the project keeps, and on folders that are none."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from tests.benchctl_process import benchctl
from tests.kept_runs import ROOT

KEPT = ROOT / "results"
RUN = "20260101-000000-abcd"


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (source,) = (KEPT / "vllm-control").glob("*/manifest.json")
    for recipe in ("a", "b"):
        folder = tmp_path / recipe / RUN
        folder.mkdir(parents=True)
        shutil.copy(source, folder)
        (folder / "records.jsonl").write_text("")
        (folder / "logs").mkdir()
    return tmp_path


def test_list_names_every_kept_run_newest_first() -> None:
    result = json.loads(benchctl("runs", "list", "--results", KEPT, "--json").stdout)
    folders = {str(file.parent) for file in KEPT.glob("*/*/manifest.json")}
    assert {row["folder"] for row in result} >= folders
    assert all(row["status"] == "finished" and row["problem"] is None for row in result)
    names = [row["run"] for row in result]
    assert names == sorted(names, reverse=True)
    text = benchctl("runs", "list", "--results", KEPT).stdout
    assert text.splitlines()[0].split() == ["recipe", "run", "status", "result", "engine", "cells", "size"]
    assert "vllm-control" in text


def test_list_shows_the_result_and_filters_by_it() -> None:
    rows = json.loads(benchctl("runs", "list", "--results", KEPT, "--only", "result=violation", "--json").stdout)
    assert rows and all(row["verdict"] == "violation" for row in rows)
    assert all(row["result"] == f"{row['result'].split()[0]} {row['speedup']:.2f}×, violation" for row in rows)
    refused = benchctl("runs", "list", "--results", KEPT, "--only", "colour=red")
    assert refused.returncode == 2 and "workload" in refused.stderr


def test_a_manifest_that_cannot_be_read_is_listed_as_such(results: Path) -> None:
    (results / "a" / RUN / "manifest.json").write_text("{")
    rows = {row["recipe"]: row for row in json.loads(benchctl("runs", "list", "--results", results, "--json").stdout)}
    assert (rows["a"]["status"], rows["a"]["engine"]) == (None, None)
    assert rows["a"]["problem"]
    assert "unreadable" in benchctl("runs", "list", "--results", results).stdout


def test_show_tells_what_a_run_is() -> None:
    done = benchctl("runs", "show", "vllm-control", "--results", KEPT, COLUMNS="100")
    assert done.returncode == 0, done.stderr
    for word in ("vllm-control", "engine", "target", "machine", "finished", "baseline"):
        assert word in done.stdout
    document = json.loads(benchctl("runs", "show", "vllm-control", "--results", KEPT, "--json").stdout)
    assert document["recipe_name"] == "vllm-control"


def test_rm_takes_away_what_was_named_and_nothing_else(results: Path) -> None:
    refused = benchctl("runs", "rm", "a", "--results", results)
    assert refused.returncode == 2 and "Add --yes" in refused.stderr
    done = benchctl("runs", "rm", "a", "--results", results, "--yes")
    assert (done.returncode, done.stdout) == (0, "Deleted 1 run.\n")
    assert not (results / "a" / RUN).exists()
    assert (results / "b" / RUN / "manifest.json").exists()


def test_rm_takes_what_benchctl_itself_put_into_the_run(results: Path) -> None:
    for name in (
        "sampling/20260102-000000-abcd",
        "diagnosis/20260102-000000-abcd",
        "stress/20260102-000000-abcd",
        "logs",
    ):
        (results / "a" / RUN / name).mkdir(parents=True, exist_ok=True)
    for name in ("audit.json", "audit-kv_f16.json", "replays.json", "costs.json", "recipe.yaml", ".lock", ".summary"):
        (results / "a" / RUN / name).write_text("{}")
    done = benchctl("runs", "rm", "a", "--results", results, "--yes")
    assert done.returncode == 0, done.stderr
    assert not (results / "a" / RUN).exists()


def test_rm_refuses_what_is_no_run_before_it_deletes_anything(results: Path) -> None:
    (results / "b" / RUN / "photos").mkdir()
    done = benchctl("runs", "rm", results / "a" / RUN, results / "b" / RUN, "--yes")
    assert done.returncode == 2
    assert "photos" in done.stderr
    assert (results / "a" / RUN / "manifest.json").exists()
    assert benchctl("runs", "rm", "nowhere", "--results", results, "--yes").returncode == 2


def test_rm_leaves_a_run_alone_that_is_being_written(results: Path) -> None:
    lock = os.open(results / "a" / RUN / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = benchctl("runs", "rm", "a", "--results", results, "--yes")
    finally:
        os.close(lock)
    assert done.returncode == 4
    assert (results / "a" / RUN / "records.jsonl").exists()
