"""What changed an answer: engine, precision or speculation, worked out on answers made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.manifest import EngineIdentity, ModelIdentity
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.scores import ScoredAnswer, TargetScores
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.lossless.judge.reference import Cause, compare_with_references, precision_of
from tests.analysis.conftest import build_manifest, build_record

TOKENS = {"x": [1, 2, 3, 4], "y": [1, 2, 9, 4], "z": [1, 7, 3, 4]}


def engine(kind: str) -> EngineIdentity:
    return EngineIdentity(
        kind=kind, binary=None, found_in="PATH", version="1", build=None, commit=None, speculation_types=[]
    )


def run(
    name: str,
    answers: Mapping[str, Sequence[str]],
    *,
    kind: str = "llama.cpp",
    types: Mapping[str, int] | None = None,
    **fields: Any,
) -> RunData:
    """A run whose arms give, prompt by prompt, an answer of `TOKENS`."""
    facts = {"tensor_types": {name: {"count": 1, "bytes": size} for name, size in (types or {"q8_0": 100}).items()}}
    model = ModelIdentity(source="m", path="m", files=[], facts=facts)
    manifest = build_manifest(
        {arm: None if arm == "baseline" else {"type": "draft-simple"} for arm in answers},
        len(next(iter(answers.values()))),
        1,
        **{"run": name, "engine": engine(kind), "target": model, "recipe": {"sampling": {"temperature": 0}}} | fields,
    )
    records = [
        build_record(arm, number, text=text, ids=TOKENS[text])
        for arm, texts in answers.items()
        for number, text in enumerate(texts)
        if text
    ]
    return RunData(folder=Path(name), manifest=manifest, records=records, damaged=[])


def test_every_prompt_has_its_cause() -> None:
    judged = run("a", {"baseline": "xxyyx", "spec": "xyyxx"})
    reference = run("b", {"baseline": "xxxxz"}, kind="transformers", types={"f32": 100})
    result = compare_with_references(judged, [reference])
    (arm,) = result.arms
    expected: dict[Cause, int] = {
        "none": 1,
        "speculation": 1,
        "baseline": 2,
        "undone": 1,
        "both": 0,
        "undetermined": 0,
    }
    assert arm.counts == expected
    assert [(comparison.prompt_idx, comparison.cause, comparison.index) for comparison in arm.differing] == [
        (1, "speculation", 2),
        (2, "baseline", 2),
        (4, "baseline", 1),
    ]
    (pair,) = result.baselines
    assert pair.differs_in == ["engine", "precision"]
    assert (pair.same, [comparison.prompt_idx for comparison in pair.differing]) == (2, [2, 3, 4])
    assert not result.identical
    three = compare_with_references(run("a", {"baseline": "y", "spec": "z"}), [run("b", {"baseline": "x"})])
    assert three.arms[0].counts["both"] == 1


def test_a_third_run_separates_quantization_from_engine() -> None:
    judged = run("q8", {"baseline": "yx"})
    middle = run("f32", {"baseline": "xx"}, types={"f32": 100})
    reference = run("hf", {"baseline": "xz"}, kind="transformers", types={"f32": 100})
    pairs = {pair.runs: pair for pair in compare_with_references(judged, [middle, reference]).baselines}
    assert (pairs["q8", "f32"].differs_in, len(pairs["q8", "f32"].differing)) == (["precision"], 1)
    assert (pairs["f32", "hf"].differs_in, len(pairs["f32", "hf"].differing)) == (["engine"], 1)
    assert pairs["q8", "hf"].differs_in == ["engine", "precision"]


def test_nothing_is_equal_by_absence() -> None:
    reference = run("b", {"baseline": "xx"}, kind="vllm")
    lacking = run("a", {"baseline": ["x", ""], "spec": ["x", "x"]})
    result = compare_with_references(lacking, [reference])
    assert result.baselines[0].undetermined == ["code/1"]
    assert result.arms[0].counts["undetermined"] == 1
    assert not result.identical
    other_text = run("a", {"baseline": "xx"})
    other_text.records[0] = build_record(text="x", ids=TOKENS["x"], prompt_sha=sha256_text("another template"))
    assert compare_with_references(other_text, [reference]).baselines[0].undetermined == ["code/0"]
    assert compare_with_references(run("c", {"baseline": "xx", "spec": "xx"}), [reference]).identical


def test_margins_come_from_what_was_scored() -> None:
    judged = run("a", {"baseline": "y"})
    assert judged.manifest is not None
    scored = ScoredAnswer(
        task="code",
        prompt_idx=0,
        prompt_sha=judged.records[0].prompt_sha,
        token_sha=sha256_tokens(TOKENS["y"]),
        margins=[3.0, 2.0, 0.25, 1.0],
    )
    audit = TargetScores(
        run="a",
        benchctl_version="0",
        made_at="",
        baseline="baseline",
        command=[],
        engine_sha256=None,
        model=[],
        answers=[scored],
    )
    result = compare_with_references(replace(judged, scores=audit), [run("b", {"baseline": "x"})])
    assert result.baselines[0].differing[0].margins == [0.25, None]
    other_engine = audit.model_copy(update={"engine_sha256": "f" * 64})
    result = compare_with_references(replace(judged, scores=other_engine), [run("b", {"baseline": "x"})])
    assert result.baselines[0].differing[0].margins == [None, None]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"recipe": {"sampling": {"temperature": 0, "max_tokens": 9}}}, "sampling.max_tokens"),
        ({"recipe": {"sampling": {"temperature": 0.8}}}, "sampling.temperature"),
        (
            {"target": ModelIdentity(source="m", path="m", files=[], facts={"layers": 3, "vocab_size": 9})},
            "the target's layers: 2 and 3",
        ),
    ],
)
def test_other_questions_are_refused(changed: dict[str, Any], message: str) -> None:
    target = ModelIdentity(source="m", path="m", files=[], facts={"layers": 2})
    with pytest.raises(UsageError, match=message):
        compare_with_references(run("a", {"baseline": "x"}, target=target), [run("b", {"baseline": "x"}, **changed)])


def test_sampled_answers_and_the_same_run_are_refused() -> None:
    hot = {"sampling": {"temperature": 0.8, "top_k": 0}}
    with pytest.raises(UsageError, match="by chance"):
        compare_with_references(run("a", {"baseline": "x"}, recipe=hot), [run("b", {"baseline": "x"}, recipe=hot)])
    with pytest.raises(UsageError, match="its own reference"):
        compare_with_references(run("a", {"baseline": "x"}), [run("a", {"baseline": "x"})])
    with pytest.raises(UsageError, match="The arms are: spec"):
        compare_with_references(run("a", {"baseline": "x", "spec": "x"}), [run("b", {"baseline": "x"})], arms=["sepc"])


def test_the_precision_of_a_run() -> None:
    def precision(facts: dict[str, Any], **recipe: Any) -> str:
        model = ModelIdentity(source="m", path="m", files=[], facts=facts)
        return precision_of(build_manifest({"baseline": None}, 1, 1, target=model, recipe={"engine": recipe}))

    mixed = {"q4_k": {"bytes": 700}, "q6_k": {"bytes": 300}, "f32": {"bytes": 5}}
    assert precision({"tensor_types": mixed}) == "q4_k + q6_k"
    assert precision({"parameters_by_dtype": {"bf16": 10}}) == precision({}, dtype="bfloat16") == "bfloat16"
    assert precision({"parameters_by_dtype": {"bf16": 10}}, dtype="float32") == "float32"
    assert precision({"parameters_by_dtype": {"bf16": 10}}, dtype="auto") == "bfloat16"
    assert precision({}) == "not recorded"
