"""Which arms are asked more, and which prompts: without an engine. `tests/cli/test_replay.py` asks a real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.analysis.output_results import Losslessness
from benchctl.data.manifest import FurtherPrompts
from benchctl.data.record import RecordError
from benchctl.data.store import RunData
from benchctl.lossless.score import asking
from benchctl.lossless.score.asking import open_arms
from benchctl.prompts.load import load_suite, prompt_sha256
from tests.analysis.conftest import build_manifest, build_record


def verdict(arm: str, word: str, *outcomes: str) -> Losslessness:
    comparisons = [SimpleNamespace(outcome=outcome) for outcome in outcomes]
    return Losslessness.model_construct(arm=arm, verdict=word, comparisons=comparisons)


def test_undetermined_arms_are_asked_more_and_named_ones_until_a_violation() -> None:
    rows = [
        verdict("same", "identical", "identical"),
        verdict("near", "undetermined", "identical", "near-tie"),
        verdict("failed", "undetermined", "near-tie", "undetermined"),
        verdict("crowded", "undetermined"),
        verdict("wrong", "violation", "violation"),
    ]
    assert open_arms(rows, named=False) == ["near"]
    assert open_arms(rows, named=True) == ["same", "near", "failed"]


@pytest.fixture
def prepared() -> Any:
    """A run of the first two `code` prompts of the suite tiny."""
    prompts = SimpleNamespace(suite="tiny", tasks=["code"])
    suite = load_suite("tiny", recipe_folder=Path())
    return SimpleNamespace(recipe=SimpleNamespace(prompts=prompts), recipe_folder=Path(), suite=suite)


def manifest_of(prepared: Any, **more: Any) -> Any:
    manifest = build_manifest({"baseline": None, "spec": None}, 2, 1, suite={"kind": "chat"}, **more)
    for prompt in manifest.prompts:
        prompt.sha256 = prompt_sha256(prepared.suite.tasks["code"][prompt.prompt_idx])
    return manifest


def test_prompts_are_those_that_the_run_left_out_then_other_suites_then_those_of_a_file(
    prepared: Any, tmp_path: Path
) -> None:
    manifest = manifest_of(prepared)
    offered = list(asking._prompts(prepared, manifest, None))
    assert [prompt.key for prompt in offered[:2]] == [("code", 2), ("code", 3)]
    others = offered[2:]
    assert {prompt.identity.suite_task for prompt in others} == {"code"}
    assert others[0].identity.suite != "tiny" and ("many:code", 0) in {prompt.key for prompt in others}
    shas = [prompt.identity.sha256 for prompt in offered]
    assert len(set(shas)) == len(shas) and not {prompt.sha256 for prompt in manifest.prompts} & set(shas)

    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "Say one."}\n{"prompt": "Say two."}\n{"prompt": "Say one."}\n', "utf-8")
    manifest.further = FurtherPrompts(prompts=[offered[0].identity])
    mine = list(asking._prompts(prepared, manifest, str(file)))
    assert [prompt.key for prompt in mine[:1]] == [("code", 2)], "what was asked before comes first, for other arms"
    assert [prompt.identity.suite for prompt in mine[1:]] == [str(file)] * 2


def test_asking_goes_on_with_what_each_arm_lacks(prepared: Any) -> None:
    asker = asking._Asker.__new__(asking._Asker)
    asker.baseline_of = {"baseline": "baseline", "spec": "baseline"}
    asker.prompts = list(asking._prompts(prepared, manifest_of(prepared), None))[:4]
    first, second, third, fourth = asker.prompts
    refusal = RecordError(kind="http", message="too long")

    def answered(label: str, prompt: Any, **more: Any) -> Any:
        return build_record(label, prompt.key[1], task=prompt.key[0], **more)

    further = [
        *(answered("baseline", prompt) for prompt in (first, second)), answered("baseline", third, error=refusal),
        answered("spec", first),
    ]  # fmt: skip
    run = RunData(Path(), manifest_of(prepared), [], [], further=further)
    assert asker.lacking(run, ["spec"]) == [second, fourth]
    answers = asking._by_arm(further)
    assert asker.left(answers, "baseline", asker.prompts) == [fourth]
    assert asker.left(answers, "spec", asker.prompts) == [second, fourth]
