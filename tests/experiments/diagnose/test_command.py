"""`benchctl diagnose` as a user calls it, on the real engines and the bundled models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchctl.cli.app import app
from benchctl.errors import BenchctlError, EngineError, StorageError, UsageError
from benchctl.experiments.diagnose import session
from benchctl.experiments.diagnose.stored import read_diagnosis
from tests.cli.calls import answer, call

pytestmark = pytest.mark.slow

PAIR = """\
name: pair
engine: {device: cpu, context: 1024, threads: 1}
models:
  target: {source: "bundled:tiny-hybrid"}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [translation_en_ja, code], limit: 2}
arms:
  - name: baseline
  - name: spec_d{depth}
    speculation: {type: draft-simple, max: "{depth}"}
    matrix: {depth: [2, 4]}
  - name: ngram
    speculation: {type: ngram-simple, max: 8}
"""
AXES = """\
name: axes
engine: {device: cpu, context: 1024, threads: 1}
models: {target: {source: "bundled:tiny-hybrid"}}
prompts: {suite: tiny.json, tasks: [translation_en_ja], limit: 1}
matrix:
  models.target: {hybrid: {source: "bundled:tiny-hybrid"}, small: {source: "bundled:tiny-hybrid-draft"}}
  models.draft: {hybrid: {source: "bundled:tiny-hybrid"}, small: {source: "bundled:tiny-hybrid-draft"}}
arms:
  - name: baseline
  - name: spec
    speculation: {type: draft-simple, max: 2}
"""
PART = """\
name: part
engine: {kind: transformers, device: cpu, dtype: float32, context: 1024, threads: 1}
models: {target: {source: "bundled:tiny-sequential"}}
prompts: {suite: tiny.json, tasks: [code], limit: 2}
arms:
  - name: baseline
  - name: linear
    speculation: {type: self-linear, max: 4}
  - name: skip
    speculation: {type: self-layerskip, max: 4, options: {skip: 0.25}}
  - name: searching
    speculation: {type: self-clasp, max: 4}
"""


@pytest.fixture(autouse=True)
def folder(empty_folder: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))


def written(recipe: str, old: str = "", new: str = "") -> str:
    Path("r.yaml").write_text(recipe.replace(old, new))
    return "r.yaml"


def refused(*words: str) -> BenchctlError:
    error = call(app, "diagnose", *words).exception
    assert isinstance(error, BenchctlError)
    return error


@pytest.mark.engine
def test_over_axes_every_draft_is_scored_with_its_own_target() -> None:
    """A draft that is the target itself is always accepted, any other is not: nothing else tells whose was read."""
    document: dict[str, Any] = json.loads(answer(app, "diagnose", written(AXES), "--tokens", "24", "--json"))
    accepted = {
        draft["arms"][0]: row["per_token"]["value"]
        for draft in document["drafts"]
        for row in draft["acceptance"]
        if (row["task"], row["temperature"]) == ("all", 0.6)
    }
    names = [f"spec-t_{target}-d_{draft}" for target in ("hybrid", "small") for draft in ("hybrid", "small")]
    assert accepted.keys() == set(names), accepted
    assert [accepted[name] > 0.99 for name in names] == [True, False, False, True], accepted
    assert len({draft["draft"] for draft in document["drafts"]}) == 4


@pytest.mark.engine
def test_a_pair_on_llama_cpp(empty_folder: Path) -> None:
    document: dict[str, Any] = json.loads(answer(app, "diagnose", written(PAIR), "--tokens", "24", "--json"))
    (draft,) = document["drafts"]
    assert draft["arms"] == ["spec_d2", "spec_d4"]
    assert document["not_reached"].keys() == {"ngram"}
    rows = {(row["task"], row["temperature"]): row for row in draft["acceptance"]}
    assert rows.keys() == {(task, heat) for task in ("all", "code", "translation_en_ja") for heat in (0, 0.6)}
    for row in rows.values():
        chances = [row["per_token"], *row["all_tokens"].values()]
        values = [chance["value"] for chance in chances]
        assert all(0 <= value <= 1 for value in values)
        assert values[1] >= values[2] >= values[3], "α falls with depth"
        assert all(chance["interval"]["low"] <= chance["value"] <= chance["interval"]["high"] for chance in chances)
    assert rows["all", 0]["prompts"] == 4
    assert draft["cost"] > 0
    assert draft["cost_flops"] == pytest.approx(0.22, abs=0.03)
    assert draft["perplexity_ratio"] is None, "a pair has no part to remove"
    assert (draft["exact"], draft["truncated"] < 0.01) == (False, True)
    diagnosis_folder = Path(document["folder"])
    assert diagnosis_folder.parent == Path("results/pair/diagnosis")
    judged_again = json.loads(answer(app, "diagnose", str(diagnosis_folder), "--offline", "--json"))
    assert judged_again["drafts"] == document["drafts"]
    shown = answer(app, "diagnose", str(diagnosis_folder), "--offline")
    assert "α(8)" in shown
    assert "ngram is not diagnosed" in shown
    assert "100 likeliest" in shown


@pytest.mark.engine
def test_what_is_predicted_of_greedy_acceptance_is_what_a_run_measures(empty_folder: Path) -> None:
    """The bundled models are in 16 bits, in which batch width changes nothing: the run drafts what was read."""
    recipe = written(PAIR, "limit: 2}", "limit: 2}\nsampling: {temperature: 0, max_tokens: 32}")
    (draft,) = json.loads(answer(app, "diagnose", recipe, "--tokens", "32", "--json"))["drafts"]
    predicted = {row["depth"]: row["measured_tokens"] for row in draft["payoff"] if row["temperature"] == 0}
    run = json.loads(answer(app, "run", recipe, "--blocks", "1", "--json"))
    lengths = {row["arm"]: row["acceptance_length"] for row in run["analysis"]["acceptance"] if row["task"] == "all"}
    for depth in (2, 4):
        assert lengths[f"spec_d{depth}"] == pytest.approx(predicted[depth], rel=0.15)


@pytest.mark.torch
def test_parts_of_a_model_on_transformers(empty_folder: Path) -> None:
    pytest.importorskip("torch")
    Path("text.txt").write_text("def count(items):\n    return len(items)\n" * 100, "utf-8")
    words = (written(PART), "--tokens", "24", "-k", "linear", "-k", "sk*", "-k", "searching", "--corpus", "text.txt")
    result = json.loads(answer(app, "diagnose", *words, "--json"))
    linear, skip = result["drafts"]
    assert result["not_reached"].keys() == {"searching"}
    assert linear["what"]["left_out"]
    for draft in (linear, skip):
        assert (draft["kind"], draft["exact"], draft["error"]) == ("part", True, None)
        assert draft["perplexity_ratio"] > 1
        assert draft["perplexity_verdict"] in ("viable", "between", "not viable")
        assert 0 < draft["cost_flops"] < 1
        assert {row["depth"] for row in draft["payoff"]} == set(range(1, 17))
        assert all(row["check"] >= 1 for row in draft["payoff"])
    assert linear["acceptance"][0]["per_token"]["value"] > 0
    shown = answer(app, "diagnose", result["folder"], "--offline")
    assert "without it" in shown
    assert "By the ratio" in shown
    read = read_diagnosis(Path(result["folder"])).drafts[0].answers
    assert sum(answer_read.scored for answer_read in read if not answer_read.starts) > 1000
    assert isinstance(refused(written(PART), "--corpus", "gone.txt"), UsageError)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('type: draft-simple, max: "{depth}"}\n    matrix: {depth: [2, 4]}', "type: ngram-mod}", "can be diagnosed"),
        ("device: cpu, context", "kind: vllm, context", "vllm"),
        ("bundled:tiny-hybrid-draft", "gone.gguf", "gone.gguf"),
    ],
)
def test_what_cannot_be_diagnosed_is_one_message(old: str, new: str, message: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("BENCHCTL_VLLM", "/nowhere/vllm")
    text = PAIR.replace("spec_d{depth}", "spec") if "ngram-mod" in new else PAIR
    error = refused(written(text, old, new))
    assert message in f"{error.what} {error.where}"
    assert not Path("results").exists()


def test_there_is_nothing_to_judge_in_another_folder(tmp_path: Path) -> None:
    assert isinstance(refused(str(tmp_path), "--offline"), UsageError)
    (tmp_path / "diagnosis.json").write_text('{"schema": 1}')
    assert isinstance(refused(str(tmp_path), "--offline"), StorageError)
    (tmp_path / "diagnosis.json").write_text('{"schema": 9}')
    assert "newer benchctl" in refused(str(tmp_path), "--offline").what


def test_too_short_answers_are_a_wrong_command_line() -> None:
    assert call(app, "diagnose", "r.yaml", "--tokens", "3").exit_code == 2


@pytest.mark.engine
@pytest.mark.parametrize(
    ("fault", "status"), [(EngineError("it broke", kind="crash"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_what_breaks_while_reading_is_kept_as_such(
    fault: BaseException, status: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise fault

    monkeypatch.setattr(session, "scores_of", broken)
    result = call(app, "diagnose", written(PAIR), "--tokens", "10", "--count", "1")
    if isinstance(fault, EngineError):
        assert isinstance(result.exception, EngineError)
        assert "it broke" in result.exception.what
        assert "it broke" in result.stdout
    else:
        assert result.exit_code in (1, 130)
    (file,) = empty_folder.glob("results/pair/diagnosis/*/diagnosis.json")
    diagnosis = read_diagnosis(file.parent)
    assert diagnosis.status == status
    assert [draft.error for draft in diagnosis.drafts] == (["it broke"] if status == "failed" else [])
