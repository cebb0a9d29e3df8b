"""Losslessness is judged one request at a time; what is broken in itself counts everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchctl.analysis.output_results import Losslessness
from benchctl.cli.app import app
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.store import open_run
from benchctl.lossless.judge.run import OutputComparison, analyse_run
from benchctl.words.sweep import crossings
from tests.analysis.conditions.simulated import Server, Sweep, write_sweep
from tests.lossless.replayed import codes
from tests.resealed import reseal

BOTH = Sweep(concurrency=(1, 4))


def judged(folder: Path) -> dict[str, Losslessness]:
    return {row.arm: row for row in analyse_run(open_run(folder)).losslessness}


def verify(folder: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, ["verify-lossless", str(folder), "--offline", "--json", *options])
    return result.exit_code, json.loads(result.stdout)


def test_concurrent_answers_make_a_run_neither_lossless_nor_not(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", BOTH)
    result = judged(tmp_path / "run")
    assert (result["spec_d4-c1"].verdict, result["spec_d4-c4"].verdict) == ("identical", "not judged")
    assert result["spec_d4-c4"].comparisons == []
    assert codes(result["spec_d4-c4"]) == ["judged-elsewhere"]
    code, document = verify(tmp_path / "run")
    assert (code, document["lossless"]) == (0, True)
    assert document["unjudged"].startswith("Answers are compared one request at a time, not at concurrency 4:")
    kinds = {warning.id for warning in analyse_run(open_run(tmp_path / "run")).warnings}
    assert not kinds & {"baseline-not-reproducible", "drift"}


def test_what_is_not_judged_shows_nothing_by_itself(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", BOTH)
    assert verify(tmp_path / "run", "--arm", "spec_d4-c4")[0] == 1
    code, document = verify(tmp_path / "run", "--arm", "spec_d4")  # under every condition
    assert (code, [arm["arm"] for arm in document["arms"]]) == (0, ["spec_d4-c1", "spec_d4-c4"])


def test_a_difference_at_concurrency_1_is_one(tmp_path: Path) -> None:
    def differ(record: dict[str, Any]) -> None:
        if (record["label"], record["prompt_idx"]) == ("spec_d4-c1", 0):
            ids = [*record["token_ids"][:-1], 7]
            record |= {
                "token_ids": ids,
                "token_sha": sha256_tokens(ids),
                "content": "x",
                "content_sha": sha256_text("x"),
            }

    write_sweep(tmp_path / "run", BOTH, edit=differ)
    result = judged(tmp_path / "run")
    assert (result["spec_d4-c1"].verdict, result["spec_d4-c4"].verdict) == ("undetermined", "not judged")
    assert verify(tmp_path / "run")[0] == 1


def test_without_one_at_a_time_nothing_is_judged(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(4, 8), prompts=40))
    result = judged(tmp_path / "run")
    assert {row.verdict for row in result.values()} == {"undetermined"}
    code, document = verify(tmp_path / "run")
    assert (code, document["lossless"]) == (1, False)
    assert "concurrency: [1, …]" in document["unjudged"]


def failed(record: dict[str, Any]) -> None:
    record |= {"error": {"kind": "http", "message": "HTTP 500"}, "content": None, "token_ids": None}


def empty(record: dict[str, Any]) -> None:
    record |= {
        "content": "",
        "content_sha": sha256_text(""),
        "token_ids": [],
        "token_sha": sha256_tokens([]),
        "n_predicted": 0,
    }


@pytest.mark.parametrize(("harm", "code"), [(failed, "unfit-answers"), (empty, "degenerate-answers")])
def test_flawed_answers_are_listed(tmp_path: Path, harm: Any, code: str) -> None:
    def edit(record: dict[str, Any]) -> None:
        if (record["label"], record["block"], record["prompt_idx"]) == ("spec_d4-c4", 1, 3):
            harm(record)

    write_sweep(tmp_path / "run", BOTH, edit=edit)
    result = judged(tmp_path / "run")
    assert result["spec_d4-c1"].verdict == "identical"
    assert result["spec_d4-c4"].verdict == "undetermined"
    flaw = result["spec_d4-c4"].reasons[-1]
    assert (flaw.code, str(flaw.values["first"])[:15]) == (code, "block 2, code/3")
    assert verify(tmp_path / "run")[0] == 1


def test_a_target_that_is_broken_everywhere_is_not_the_arms_fault(tmp_path: Path) -> None:
    def edit(record: dict[str, Any]) -> None:
        if record["prompt_idx"] == 3 and "-c4" in record["label"]:
            empty(record)

    write_sweep(tmp_path / "run", BOTH, edit=edit)
    assert judged(tmp_path / "run")["spec_d4-c4"].verdict == "not judged"


def test_an_endpoint_at_a_rate_may_work_on_several(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(rate=(0.5,)))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    for arm in manifest["arms"]:
        arm["url"] = "http://127.0.0.1:8000/v1"
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    reseal(tmp_path / "run")
    assert {row.verdict for row in judged(tmp_path / "run").values()} == {"undetermined"}


def test_divergences_are_scored_of_the_greedy_condition_alone(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), temperature=(0.0, 0.8)))
    outputs = OutputComparison(open_run(tmp_path / "run"))
    assert outputs.frame.arms == ("baseline-c1-t0", "spec_d4-c1-t0")
    assert outputs.baseline == "baseline"
    verdicts = {verdict.arm: verdict.verdict for verdict in outputs.verdicts()}
    assert verdicts == {
        "spec_d4-c1-t0": "identical",
        "spec_d4-c4-t0": "not judged",
        "spec_d4-c1-t0.8": "not judged",
        "spec_d4-c4-t0.8": "not judged",
    }


def test_sampled_answers_are_not_compared_where_greedy_ones_are(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(temperature=(0.0, 0.8)))
    result = judged(tmp_path / "run")
    assert (result["spec_d4-t0"].verdict, result["spec_d4-t0.8"].verdict) == ("identical", "not judged")
    code, document = verify(tmp_path / "run")
    assert (code, document["lossless"]) == (0, True)
    assert document["unjudged"].startswith(
        "Losslessness is not assessed at temperature 0.8. Single sampled answers cannot be compared"
    )
    assert "verify-sampling" in document["unjudged"]
    assert verify(tmp_path / "run", "--arm", "spec_d4-t0.8")[0] == 1


def test_a_run_that_only_samples_shows_nothing_by_its_text(tmp_path: Path) -> None:
    def repeat(record: dict[str, Any]) -> None:
        ids = [len(record["label"]), record["prompt_idx"], *range(300, 320)]
        text = " ".join(map(str, ids))
        record |= {"token_ids": ids, "token_sha": sha256_tokens(ids), "n_predicted": len(ids)}
        record |= {"content": text, "content_sha": sha256_text(text)}

    write_sweep(tmp_path / "run", Sweep(temperature=(0.5, 0.8)), edit=repeat)
    result = judged(tmp_path / "run")
    assert {row.verdict for row in result.values()} == {"undetermined"}
    assert all(codes(arm.comparisons[0]) == ["sampled"] for arm in result.values())
    assert verify(tmp_path / "run")[0] == 1


def test_a_baseline_that_did_not_run_as_requested_decides_no_level(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), blocks=4), Server(gain=lambda *_: 1.5))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    refused = next(cell for cell in manifest["cells"] if cell["arm"] == "baseline-c4")
    refused["attestation"] = {"state": "failed", "reason": "It drafted.", "evidence": []}
    (tmp_path / "run" / "manifest.json").write_text(json.dumps(manifest))
    reseal(tmp_path / "run")
    sweep = analyse_run(open_run(tmp_path / "run")).sweep
    assert sweep is not None
    (crossing,) = sweep.crossings
    assert (crossing.helps_at, crossing.undecided_at) == ([1], [4])
    assert crossing.doubts == {"baseline refused": [4]}


def test_each_temperature_has_its_own_sentence(tmp_path: Path) -> None:
    write_sweep(tmp_path / "run", Sweep(concurrency=(1, 4), temperature=(0.0, 0.8)), Server(block_noise=0.2))
    sweep = analyse_run(open_run(tmp_path / "run")).sweep
    assert sweep is not None
    assert [sentence.partition(", ")[0] for sentence in crossings(sweep)] == ["At temperature 0", "At temperature 0.8"]
