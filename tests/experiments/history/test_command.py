"""`benchctl runs history` on written runs whose truth is known."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks.history import write_runs
from tests.benchctl_process import benchctl

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight builds of three runs each, the sixth 10 % slower in one arm, a run without records, a folder of none."""
    folder = tmp_path_factory.mktemp("history") / "results"
    write_runs(folder, 24, repeats=3, slower=5)
    (folder / "empty").mkdir()
    shutil.copy(sorted(folder.rglob("manifest.json"))[0], folder / "empty")
    broken = folder / "part0" / "broken"
    broken.mkdir()
    (broken / "manifest.json").write_text("{}")
    return folder


def test_a_step_is_told_with_its_build(results: Path) -> None:
    done = benchctl("runs", "history", "--results", results, COLUMNS="200")
    assert done.returncode == 0, done.stderr
    assert "25 runs of 8 builds" in done.stdout
    lines = done.stdout.splitlines()
    (told,) = [line for line in lines if "slower" in line]
    assert told.startswith("spec_d4") and "b7005" in told
    assert any(line.startswith("ngram <b>: no step") for line in lines)
    assert any("broken" in line for line in lines)
    assert (next(results.rglob("records.jsonl")).parent / ".summary").is_file()


def test_the_json_has_every_row_and_the_evidence(results: Path) -> None:
    found = json.loads(benchctl("runs", "history", "--results", results, "--json", "--arm", "spec_d4").stdout)
    assert len(found["rows"]) == 25
    assert {row["arm"] for row in found["rows"]} == {"spec_d4"}
    (series,) = found["series"]
    (step,) = series["steps"]
    assert step["engine"] == "llama.cpp b7005" and step["before_engine"] == "llama.cpp b7004" and step["new_build"]
    assert step["low"] < 0.9 < step["high"] < 1 and step["p"] < 0.05 and step["runs_after"] == 9
    assert series["repeated"] == 16 and 0 < series["noise"] < 0.05 and series["seen"] > 0
    assert list(found["unreadable"]) == [str(results / "part0" / "broken")]
    assert Path(found["rows"][0]["folder"]).is_dir()


def test_one_run_of_each_build_shows_no_step_and_says_why(tmp_path: Path) -> None:
    write_runs(tmp_path / "results", 3, repeats=1, slower=2)
    done = benchctl("runs", "history", cwd=tmp_path)
    assert "slower" not in done.stdout and "measure some" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arm", "nothing"), "spec_d4"),
        (("--recipe", "nothing"), "many"),
        (("--workload", "ff"), "000000000000"),
        (("--results", "nowhere"), "no such folder"),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(results: Path, words: tuple[str, ...], said: str) -> None:
    done = benchctl("runs", "history", *words, cwd=results.parent)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
