"""`benchctl report` as a user runs it: a run, a study's file, and what may go wrong."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.benchctl_process import benchctl
from tests.reports.made_run import write_run

STUDY_KEYS = (
    *("label", "task", "prompt_idx", "rep", "tok_per_sec", "n_predicted", "draft_n", "draft_n_accepted"),
    *("prompt_per_sec", "content_sha", "content"),
)


report = partial(benchctl, "report")


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A folder with one run below `results/`."""
    write_run(tmp_path / "results" / "tiny" / "20261121-110500-3fa9")
    return tmp_path


def test_the_latest_run(workplace: Path) -> None:
    done = report(cwd=workplace)
    assert done.returncode == 0, done.stderr
    folder = workplace / "reports" / "tiny" / "20261121-110500-3fa9"
    assert {"index.html", "report.md", "analysis.json", "figures", "speedup.csv"} <= {p.name for p in folder.iterdir()}
    assert "spec_d4" in done.stdout
    assert "reports/tiny/20261121-110500-3fa9/index.html" in done.stdout


def test_json_and_another_baseline(workplace: Path) -> None:
    done = report("tiny", "--json", "--no-figures", "--baseline", "ngram", "--output", "elsewhere", cwd=workplace)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["analysis"]["baseline"] == "ngram"
    assert answer["files"]["figures"] == []
    assert (workplace / answer["files"]["page"]).is_file()


def test_a_study_file_of_eleven_keys(workplace: Path) -> None:
    records = (workplace / "results" / "tiny" / "20261121-110500-3fa9" / "records.jsonl").read_text().splitlines()
    study = [{key: json.loads(line).get(key) for key in STUDY_KEYS} for line in records]
    (workplace / "study.jsonl").write_text("".join(json.dumps(line) + "\n" for line in study if line["content"]))
    done = report("study.jsonl", "--no-figures", cwd=workplace)
    assert done.returncode == 0, done.stderr
    text = (workplace / "reports" / "study" / "study.jsonl" / "report.md").read_text()
    assert text.startswith("# study\n")
    assert "without a manifest" in text


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nothing-here",), 2, "There is no such run"),
        (("tiny", "--baseline", "nobody"), 2, "No arm is called 'nobody'"),
        (("tiny", "--output", "blocked"), 4, "could not be written"),
        (("tiny", "--arm", "spec_d4"), 2, "needs --format issue"),
    ],
)
def test_errors(workplace: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    blocked = workplace / "blocked"
    blocked.mkdir()
    (blocked / "tiny").write_text("a file where a folder should be")
    done = report(*arguments, "--no-figures", cwd=workplace)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
