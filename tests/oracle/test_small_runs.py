"""What no kept run has: an arm that never drafted, missing cells and answers, a study's bare file, endpoints."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchctl.cli.app import app
from tests.cli.calls import answer
from tests.engines.openai.fake_endpoint import WORDS, Script, serving
from tests.engines.openai.test_real_endpoint import benchctl
from tests.oracle.checks import ACCEPTANCE, SPEED, THROUGHPUT
from tests.oracle.reading import Reading
from tests.oracle.render import kept, rendered
from tests.reports import made_run
from tests.resealed import reseal

Row = dict[str, Any]


def copy(
    name: str, into: Path, keep: Callable[[Row], bool], change: Callable[[Row], None] = lambda manifest: None
) -> Path:
    """Copy a kept run with the records that `keep` holds for, without its scores; `change` edits its manifest."""
    run = kept(name)
    folder = into / "run" / run.name
    folder.mkdir(parents=True)
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if keep(record)]
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    manifest = json.loads((run / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return reseal(folder)


def test_an_inactive_arm_has_no_speed_up_anywhere(tmp_path: Path) -> None:
    arms = ("baseline", "spec_d2", "ngram_simple", "ngram_mod")

    def change(manifest: Row) -> None:
        for rows in (manifest["arms"], manifest["recipe"]["arms"]):
            rows[:] = [arm for arm in rows if arm["name"] in arms]
        manifest["cells"] = [cell for cell in manifest["cells"] if cell["arm"] in arms and cell["block"] < 2]
        manifest["blocks"] = 2
        for cell in manifest["cells"]:
            if cell["arm"] == "ngram_mod":
                cell["attestation"].update(state="idle", reason="Nothing was drafted.")

    def keep(record: Row) -> bool:
        if record["label"] == "ngram_mod":
            record.update(draft_n=0, draft_n_accepted=0, rounds=0, accepted_by_position=[], drafted_by_position=[])
        return record["label"] in arms and record["block"] < 2

    report = rendered(copy("qwen2.5-coder/", tmp_path, keep, change), tmp_path / "out")
    assert not report.complaints(), "\n".join(report.complaints())


def test_missing_cells_and_answers(tmp_path: Path) -> None:
    def keep(record: Row) -> bool:
        cell = (record["label"], record["block"])
        answer = (*cell, record["task"])
        return cell != ("baseline-kv_q8_0", 1) and answer not in {
            ("spec_d2-d_q8_0-kv_f16", 0, "code"),
            ("baseline-kv_f16", 2, "ja_chat"),
        }

    def change(manifest: Row) -> None:
        for cell in manifest["cells"]:
            if (cell["arm"], cell["block"]) == ("baseline-kv_q8_0", 1):
                cell.update(status="failed", error={"kind": "engine", "message": "The engine ended."})

    report = rendered(copy("qwen2.5-coder-axes/", tmp_path, keep, change), tmp_path / "out")
    assert not report.complaints(), "\n".join(report.complaints())
    missing = {row["arm"]: row["pairs_missing"] for row in report.analysis["speedups"] if row["task"] == "all"}
    assert missing["spec_d2-d_q4_k_m-kv_f16"] == 1
    assert missing["spec_d2-d_q8_0-kv_f16"] == 2
    assert missing["spec_d2-d_q4_k_m-kv_q8_0"] == 3


def test_a_made_up_run(tmp_path: Path) -> None:
    """Three arms of three blocks, a failed request, one answer that differs; every number that a page has."""
    folder = tmp_path / made_run.RUN
    made_run.write_run(folder)
    report = rendered(folder, tmp_path / "out")
    assert not report.complaints(), "\n".join(report.complaints())
    arms = {"spec_d4", "ngram"}
    for quantity in (
        *SPEED,
        *ACCEPTANCE,
        *THROUGHPUT,
        "tok_per_sec",
        "gaps_ms",
        "headline",
        "comparison",
        "position 1",
    ):
        assert report.looked_at[quantity] >= arms, quantity
    for quantity in ("depth", "alpha", "overhead", "predicted"):
        assert report.looked_at[quantity] == {"spec_d4"}, "of too few drafted rounds nothing is priced"
    analysis = report.analysis
    assert analysis["records"] == 3 * 3 * 6
    assert [len(analysis[name]) for name in ("speedups", "acceptance", "throughput")] == [2 * 3, 2 * 3, 3 * 3]
    outcomes = {row["arm"]: row["counts"] for row in analysis["losslessness"]}
    assert outcomes == {"spec_d4": {"identical": 5, "differs": 1}, "ngram": {"identical": 5, "undetermined": 1}}
    (forked,) = (row["fork"] for arm in analysis["losslessness"] for row in arm["comparisons"] if row["fork"])
    assert (forked["index"], forked["unit"]) == (9, "token")
    for quantity in ("pointwise", "interval", "like_these"):
        assert report.looked_at[quantity] == arms, quantity


@pytest.mark.parametrize("measured_again", [False, True])
def test_a_disturbed_cell(measured_again: bool, tmp_path: Path) -> None:
    """One of six cells at half of its pace is left out of every speed; measured once more, its new times count."""

    def change(manifest: Row) -> None:
        if measured_again:
            (cell,) = (cell for cell in manifest["cells"] if (cell["block"], cell["arm"]) == (2, "layerskip"))
            manifest["cells"].append({**cell, "attempt": 1})

    run = copy("self-speculation-control/20261122-1654", tmp_path, lambda _: True, change)
    records = [json.loads(line) for line in (run / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    repeated = []
    for record in records:
        if (record["label"], record["block"], record["phase"]) == ("layerskip", 2, "measure"):
            repeated.append({**record, "attempt": 1})
            record.update({key: record[key] / 2 for key in ("tok_per_sec", "client_tok_per_sec")})
    records += repeated if measured_again else []
    (run / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    report = rendered(reseal(run), tmp_path / "out")
    assert not report.complaints(), "\n".join(report.complaints())
    assert report.reading.disturbed == (set() if measured_again else {("layerskip", 2)})
    blocks = {row["arm"]: row["blocks"] for row in report.analysis["speedups"] if row["task"] == "all"}
    assert blocks == {"layerskip": [1, 2, 3, 4, 5, 6] if measured_again else [1, 2, 4, 5, 6]}


STUDY = ("task", "prompt_idx", "rep", "tok_per_sec", "n_predicted", "draft_n", "draft_n_accepted", "prompt_per_sec",
         "content_sha", "content")  # fmt: skip


def test_a_studys_file_and_layout(tmp_path: Path) -> None:
    """Eleven keys and no manifest; in the study's layout a median is called one."""
    records = []
    for line in (kept("qwen2.5-coder/") / "records.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["phase"] == "measure" and record["label"] in {"baseline", "spec_d4", "ngram_mod"}:
            records.append({"label": record["label"], **{key: record[key] for key in STUDY}, "rep": record["block"]})
    file = tmp_path / "study.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    report = rendered(file, tmp_path / "out")
    assert not report.complaints(), "\n".join(report.complaints())
    assert report.looked_at["pooled"] >= {"spec_d4", "ngram_mod"}
    shown = answer(app, "report", str(file), "--layout", "plamo2-study", "--json")
    reading = Reading(file)
    rows = [row for row in json.loads(shown)["configurations"] if row["configuration"] != "baseline"]
    assert len(rows) == 2 * (1 + len(reading.tasks))
    for row in rows:
        arm, task = row["configuration"], row["task"]
        assert row["speedup"] == pytest.approx(reading.pooled(arm, task))
        assert row["acceptance"] == (
            pytest.approx(reading.acceptance(arm, task)["rate"]) if row["acceptance"] else None
        )
    layout = answer(app, "report", str(file), "--layout", "plamo2-study")
    assert "median" in layout.lower() and "pooled" in layout.lower(), "median rates stand beside a pooled ratio"


ENDPOINTS = """\
name: endpoints
engine: {{kind: openai, url: "{plain}/v1", context: 512}}
prompts: {{suite: tiny.json, tasks: [code, ja_chat], limit: 2}}
sampling: {{temperature: 0, max_tokens: 24}}
preflight: "off"
blocks: 3
arms:
  - name: baseline
  - name: mtp
    url: "{fast}/v1"
    speculation: {{type: draft-mtp, max: 2}}
  - name: slow
    url: "{slow}/v1"
    speculation: {{type: draft-simple, max: 4}}
"""


@pytest.mark.slow
def test_endpoints_that_tell_nothing_get_one_conclusion(tmp_path: Path) -> None:
    """Three URLs; nothing shows whether they speculate. One conclusion, and a suggestion that is a command."""
    with ExitStack() as stack:
        urls = {
            name: stack.enter_context(serving(Script(ids=True, words=WORDS * 3, pace_s=pace))).url
            for name, pace in (("plain", 0.02), ("fast", 0.004), ("slow", 0.04))
        }
        (tmp_path / "endpoints.yaml").write_text(ENDPOINTS.format(**urls))
        done = benchctl(tmp_path, "run", "endpoints.yaml", "--yes")
        assert done.returncode == 0, done.stderr
        (folder,) = (path for path in (tmp_path / "results" / "endpoints").iterdir() if path.is_dir())
        report = rendered(folder, tmp_path / "out")
        assert not report.complaints(), "\n".join(report.complaints())
        assert report.looked_at["pooled"] == {"mtp", "slow"}
        for command in set(re.findall(r"^ *(benchctl (?:run|tune) .*)$", report.terminal, re.MULTILINE)):
            tried = benchctl(tmp_path, *shlex.split(command)[1:], "--dry-run")
            assert tried.returncode == 0, command + tried.stderr
