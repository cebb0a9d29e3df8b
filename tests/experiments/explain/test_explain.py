"""`benchctl explain` as a user runs it, on the real engine and the bundled pair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchctl_process import benchctl
from tests.reports.made_run import write_run
from tests.resealed import reseal

pytestmark = pytest.mark.slow

RECIPE = """
name: tiny
engine: {device: cpu, context: 1024, threads: 1}
models: {target: {source: "bundled:tiny-hybrid"}, draft: {source: "bundled:tiny-hybrid-draft"}}
prompts: {suite: tiny.json, tasks: [code], limit: 2}
sampling: {max_tokens: 24}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - name: spec_d{depth}
    speculation: {type: draft-simple, max: "{depth}"}
    matrix: {depth: [2, 4]}
"""


@pytest.mark.engine
def test_a_run_is_explained_once_and_the_report_uses_it(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    ran = benchctl("run", "tiny.yaml", "--quiet", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    before = json.loads(benchctl("explain", "--offline", "--json", cwd=tmp_path).stdout)
    splits = {row["arm"]: row for row in before["rounds"]["splits"] if row["task"] == "all"}
    assert set(splits["spec_d4"]["parts"]) >= {"draft", "verify and left over"}, "llama-server tells what drafting took"

    shown = benchctl("explain", "--tokens", "16", "--count", "2", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "passes of spec_d4" in shown.stderr
    for word in (
        "draft step",
        "checkpoint",
        "timed separately, every pass",
        "Left over",
        "Its time is estimated, not measured in this run.",
    ):
        assert word in shown.stdout, word
    folder = next((tmp_path / "results" / "tiny").glob("2*"))
    costs = json.loads((folder / "costs.json").read_text())
    assert [arm["arm"] for arm in costs["arms"]] == ["baseline", "spec_d2", "spec_d4"]
    assert costs["draft_alone"]["tokens"] > 0
    assert all("-lv" in arm["command"] for arm in costs["arms"])

    second = benchctl("explain", "--tokens", "16", "--count", "2", cwd=tmp_path)
    assert "timing the" not in second.stderr, "what is timed is not timed twice; unsteady widths are tried again"
    done = benchctl("report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = next((tmp_path / "reports" / "tiny").glob("2*"))
    assert "<caption>Where a round&#39;s time goes" in (report / "index.html").read_text()
    assert (report / "figures" / "rounds.png").is_file()
    assert (report / "rounds.csv").read_text().startswith("arm,task,rounds,round_s,draft_s,verify_s,")


def test_a_run_that_cannot_be_launched_again_is_explained_by_its_records(tmp_path: Path) -> None:
    write_run(tmp_path / "results" / "tiny" / "20261121-110500-3fa9")
    done = benchctl("explain", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "timed separately" in done.stdout
    assert "Traceback" not in done.stderr


def test_counters_that_are_not_there(tmp_path: Path) -> None:
    write_run(tmp_path / "results" / "tiny" / "20261121-110500-3fa9")
    records = (tmp_path / "results" / "tiny" / "20261121-110500-3fa9" / "records.jsonl").read_text().splitlines()
    keys = ("label", "task", "prompt_idx", "rep", "tok_per_sec", "n_predicted", "content_sha", "content")
    study = [{key: json.loads(line).get(key) for key in keys} for line in records]
    (tmp_path / "study.jsonl").write_text("".join(json.dumps(line) + "\n" for line in study if line["content"]))
    done = benchctl("explain", "study.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "report its rounds" in done.stdout
    assert "no manifest" in done.stdout


def test_no_such_run(tmp_path: Path) -> None:
    done = benchctl("explain", "nowhere", cwd=tmp_path)
    assert (done.returncode, "There is no such run" in done.stderr) == (2, True)


def test_a_damaged_costs_file_is_one_message(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "tiny" / "20261121-110500-3fa9"
    write_run(folder)
    (folder / "costs.json").write_text('{"schema": 1, "run": 3}')
    ignored = benchctl("explain", "--offline", cwd=tmp_path)
    assert ignored.returncode == 0 and "costs.json" in ignored.stdout, "it is not what was written, so it is not used"
    reseal(folder)
    done = benchctl("explain", "--offline", cwd=tmp_path)
    assert done.returncode == 4
    assert "The costs file is damaged" in done.stderr
