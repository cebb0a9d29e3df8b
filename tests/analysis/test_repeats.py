"""A drafter that remembers must not be asked the same twice in one process; other drafters may."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.lossless.judge.run import analyse_run
from benchctl.recipes.adapters import remembers
from benchctl.words.warnings import seen


def warned(make_record: Any, make_run: Any, make_manifest: Any, kind: Any, **second: Any) -> list[tuple[str, str, str]]:
    arms = {"baseline": None, "spec": {"type": kind}}
    records = [
        make_record(arm, index, block=block, **({"prompt_sha": "a" * 64} | second if index < 2 else {}))
        if index != 1
        else make_record(arm, index, block=block, prompt_sha="a" * 64)
        for block in range(3)
        for arm in arms
        for index in range(3)
    ]
    analysis = analyse_run(make_run(records, make_manifest(arms, 3, 3)))
    return [(warning.id, warning.where, seen(warning)) for warning in analysis.warnings]


@pytest.mark.parametrize("kind", ["ngram-cache", "ngram-mod", ["ngram-mod", "draft-simple"]])
def test_a_repeated_prompt_of_a_drafter_that_remembers_is_reported(
    make_record: Any, make_run: Any, make_manifest: Any, kind: Any
) -> None:
    warnings = warned(make_record, make_run, make_manifest, kind)
    assert [(caution, where) for caution, where, _ in warnings] == [("repeated-prompts", "spec")]
    assert warnings[0][2].startswith("Sent before to the same process: 3 records (block 1, spec, code/1;")


def test_other_drafters_start_each_request_anew(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    assert warned(make_record, make_run, make_manifest, "ngram-simple") == []


def test_the_same_prompt_in_another_process_is_no_repetition(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    assert warned(make_record, make_run, make_manifest, "ngram-cache", attempt=1) == []
    assert warned(make_record, make_run, make_manifest, "ngram-cache", prompt_sha="b" * 64) == []


def test_a_warm_up_is_a_request_of_the_process_too(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}}
    warm_up = make_record("spec", 0, task="warmup", phase="warmup", prompt_sha="a" * 64)
    records = [make_record(arm, prompt_sha="a" * 64, block=block) for block in range(3) for arm in arms]
    analysis = analyse_run(make_run([warm_up, *records], make_manifest(arms, 1, 3)))
    assert [(warning.id, seen(warning)) for warning in analysis.warnings] == [
        ("repeated-prompts", "Sent before to the same process: 1 record (block 1, spec, code/0).")
    ]


def test_acceptance_of_new_and_repeated_prompts_is_reported(
    make_record: Any, make_run: Any, make_manifest: Any
) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}}
    counts = [(8, 2), (8, 7)]  # the second time it copies its own answer
    records = [make_record("baseline", index, prompt_sha="a" * 64) for index in range(2)]
    records += [
        make_record("spec", index, prompt_sha="a" * 64, draft_n=drafted, draft_n_accepted=accepted, rate=10 + 5 * index)
        for index, (drafted, accepted) in enumerate(counts)
    ]
    analysis = analyse_run(make_run(records, make_manifest(arms, 2, 1)))
    (message,) = [seen(warning) for warning in analysis.warnings if warning.id == "repeated-prompts"]
    new, repeated = "25.0 % at 10 tok/s where a prompt was new", "87.5 % at 15 tok/s where it was repeated"
    assert message.endswith(f"Accepted: {new}, {repeated}.")


def test_the_engine_declares_which_types_remember(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    """The same type looks up its own request on one engine, and every earlier one on another."""
    assert [remembers(kind, ["ngram-simple"]) for kind in ("llama.cpp", "vllm", "sglang", "openai")] == [
        False,
        False,
        True,
        True,
    ]
    assert remembers("sglang", ["NGRAM"])
    assert remembers("llama.cpp", ["ngram-map-k4v", "draft-simple"])
    for remembered, ids in ((True, ["repeated-prompts"]), (False, [])):
        manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-simple"}}, 2, 3)
        manifest.arms[1].remembers = remembered
        records = [
            make_record(arm, index, block=block, prompt_sha="a" * 64)
            for block in range(3)
            for arm in ("baseline", "spec")
            for index in range(2)
        ]
        assert [warning.id for warning in analyse_run(make_run(records, manifest)).warnings] == ids


def test_blocks_of_an_endpoint_ask_the_same_process_again(make_record: Any, make_run: Any, make_manifest: Any) -> None:
    arms = {"baseline": None, "spec": {"type": "ngram-mod"}}
    manifest = make_manifest(arms, 1, 3)
    for arm in manifest.arms:
        arm.url = "http://127.0.0.1:8080/v1"
    records = [
        make_record(arm, prompt_sha="a" * 64, block=block, draft_n=8, draft_n_accepted=7 if block else 2, rounds=2)
        for block in range(3)
        for arm in arms
    ]
    (warning,) = [
        caution for caution in analyse_run(make_run(records, manifest)).warnings if caution.id == "repeated-prompts"
    ]
    assert "2 records (block 2, spec, code/0; block 3, spec, code/0)" in seen(warning)
    assert "25.0 %" in seen(warning)
    assert "87.5 %" in seen(warning)
