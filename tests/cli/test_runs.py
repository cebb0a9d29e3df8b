"""`benchctl runs` on the runs that the project keeps, and on folders that are none."""

from __future__ import annotations

import json
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
