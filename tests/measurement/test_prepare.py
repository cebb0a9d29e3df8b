"""What is settled before an engine starts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.digests import canonical_sha256
from benchctl.data.identity import workload_sha256
from benchctl.data.manifest import PromptIdentity
from benchctl.engines.base import Capabilities
from benchctl.errors import UsageError
from benchctl.measurement.manifest import new_manifest
from benchctl.measurement.prepare import _sendable, prepare
from benchctl.prompts.answers import Answer
from benchctl.prompts.rules import Rules
from benchctl.prompts.suite import Message, Prompt, PromptItem
from benchctl.recipes.load import load_recipe
from benchctl.recipes.schema import CONSTRAINTS, Recipe, Sampling


@pytest.mark.engine
def test_a_lossy_arm_is_told_before_it_runs(llama_server: Path, tmp_path: Path) -> None:
    recipe = Recipe.model_validate(
        {
            "name": "try",
            "engine": {"binary": str(llama_server)},
            "models": {
                "target": {"source": "bundled:tiny-hybrid"},
                "draft": {"source": "bundled:tiny-hybrid-draft"},
            },
            "prompts": {"suite": "tiny.json", "limit": 1},
            "arms": [
                {"name": "baseline"},
                {"name": "exact", "speculation": {"type": "draft-simple", "max": 2}},
                {
                    "name": "faked",
                    "speculation": {"type": "draft-simple", "max": 2},
                    "args": ["--spec-synth-len", "2"],
                },
            ],
        }
    )
    warnings = prepare(recipe, recipe_folder=tmp_path, trusted=True).warnings
    assert warnings == ["Arm faked is lossy by design (synthetic acceptance): its text is not the target's."]


def test_a_single_build_is_not_put_in_place_of_several(tmp_path: Path) -> None:
    file = tmp_path / "builds.yaml"
    file.write_text(
        "name: builds\nengine: {kind: llama.cpp, binary: [/opt/a/server, /opt/b/server]}\n"
        'models: {target: {source: "bundled:tiny-hybrid"}}\nprompts: {suite: tiny.json}\narms: [{name: baseline}]\n'
    )
    with pytest.raises(UsageError) as refused:
        prepare(load_recipe(file), recipe_folder=tmp_path, binary="/opt/a/server")
    assert refused.value.where == "--engine-binary"
    assert "/opt/b/server" in (refused.value.fix or "")


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.engine
def test_what_an_engine_is_not_sent_is_refused_with_its_line_and_the_rest_is_said(
    llama_server: Path, tmp_path: Path
) -> None:
    recipe = Recipe.model_validate(
        {
            "name": "try",
            "engine": {"binary": str(llama_server)},
            "models": {"target": {"source": "bundled:tiny-hybrid"}},
            "prompts": {"suite": "mine.jsonl"},
            "arms": [{"name": "baseline"}],
        }
    )
    rows: list[dict[str, Any]] = [
        {"prompt": "hello", "max_tokens": 5},
        {"prompt": "hello", "tools": [WEATHER]},
        {"prompt": "hello", "response_format": {"type": "json_object"}, "answer": {"kind": "numeric", "value": "4"}},
        {"prompt": "hello", "tools": [WEATHER], "tool_choice": "required", "stop": "x"},
        {"prompt": "hello", "grammar": "root ::= [a]", "regex": "a", "seed": 3},
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prepared = prepare(recipe, recipe_folder=tmp_path)
    (warning,) = prepared.warnings
    assert warning.startswith("mine.jsonl: In 1 of 5 prompts keys are not sent (max_tokens)")
    manifest = new_manifest(prepared, ["benchctl"])
    assert [prompt.constrained for prompt in manifest.prompts] == [None, None, "response_format", "tools", "grammar"]
    assert [bool(prompt.rules) for prompt in manifest.prompts] == [False, True, True, True, True]
    assert len({prompt.sha256 for prompt in manifest.prompts}) == 5
    assert [prompt.answer and prompt.answer.value for prompt in manifest.prompts] == [None, None, "4", None, None]
    for key, value, shown in (("tool_choice", "none", "`tool_choice: none`"), ("regex", "a", "`regex: a`")):
        changed = [rows[0], rows[1] | {key: value}]
        (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, changed)))
        with pytest.raises(UsageError) as refused:
            prepare(recipe, recipe_folder=tmp_path)
        assert refused.value.where == "mine.jsonl:2"
        assert shown in refused.value.what
        assert "llama.cpp" in refused.value.what


def test_calls_of_tools_need_an_engine_that_takes_tools() -> None:
    calls = ({"type": "function", "function": {"name": "weather", "arguments": "{}"}},)
    prompt = Prompt(messages=(Message(role="assistant", tool_calls=calls), Message(role="tool", content="x")))
    items = [PromptItem(task="a", prompt_idx=0, prompt=prompt, where="mine.jsonl:1")]
    none = Capabilities(
        kind="x", binary=None, found_in="PATH", version=None, build=None, commit=None, speculation_types=()
    )
    with pytest.raises(UsageError, match=r"mine\.jsonl:1: `tool_calls` cannot be sent to this engine"):
        _sendable(items, none)
    assert _sendable(items, replace(none, request_fields=frozenset({"tools"}))) == tuple(items)


def test_the_workload_is_that_of_runs_before_requests_had_fields() -> None:
    sampling = Sampling()
    recipe = Recipe.model_construct(sampling=sampling)
    answer = Answer(kind="exact", value="x")
    prompt = PromptIdentity(
        task="code", prompt_idx=0, sha256="0" * 64, constrained="tools", answer=answer, rules=Rules()
    )
    before = {"prompts": [{"task": "code", "prompt_idx": 0, "sha256": "0" * 64}], "models": []}
    assert workload_sha256(recipe, [prompt]) == canonical_sha256(
        before | {"sampling": sampling.model_dump(exclude={*CONSTRAINTS})}
    )


@pytest.mark.engine
def test_a_manifest_does_not_tell_whose_home_the_models_lie_in(
    llama_server: Path, tiny_target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    mine = tmp_path / "models" / "mine.gguf"
    mine.parent.mkdir()
    mine.write_bytes(tiny_target.read_bytes())
    recipe = Recipe.model_validate(
        {
            "name": "try",
            "models": {"target": {"source": str(mine)}},
            "prompts": {"suite": "tiny.json", "limit": 1},
            "arms": [{"name": "baseline"}],
        }
    )
    manifest = new_manifest(
        prepare(recipe, recipe_folder=tmp_path, binary=str(llama_server)), ["benchctl", "run", "try.yaml"]
    )
    assert manifest.target.source == manifest.recipe["models"]["target"]["source"] == "~/models/mine.gguf"
    second = prepare(Recipe.model_validate(manifest.recipe), recipe_folder=tmp_path, binary=str(llama_server))
    assert second.of_baseline.models.target.path == mine
