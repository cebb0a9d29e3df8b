from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchctl.engines.llama_cpp.attest import LlamaObserved, attest
from benchctl.engines.llama_cpp.spec_flags import RequestedSpeculation

ENGAGED = (
    "0.0 I spec common_specu: adding speculative implementation 'draft-simple'",
    "0.0 I srv load_model: speculative decoding context initialized",
)
DRAFT, NGRAM, NOTHING = (
    RequestedSpeculation(("draft-simple",), False),
    RequestedSpeculation(("ngram-simple",), False),
    RequestedSpeculation((), False),
)


def observed(requested: RequestedSpeculation, **fields: Any) -> LlamaObserved:
    facts: dict[str, Any] = {
        "slots": (bool(requested.types),),
        "total_slots": 1,
        "model_path": "/m.gguf",
        "requested_model": "/m.gguf",
        "drafted": None,
        "longest_answer": 0,
        "log": ENGAGED if requested.types else (),
    }
    return LlamaObserved(requested=requested, **facts | fields)


@pytest.mark.parametrize(
    ("observed", "state"),
    [
        (observed(NOTHING), "off"),
        (observed(NOTHING, drafted=0, longest_answer=99), "off"),
        (observed(NOTHING, slots=None), "off"),
        (observed(NOTHING, slots=(None,)), "off"),
        (observed(NOTHING, drafted=3), "failed"),
        (observed(NOTHING, slots=(True,)), "failed"),
        (observed(NOTHING, slots=None, log=ENGAGED), "failed"),
        (observed(DRAFT), "idle"),
        (observed(DRAFT, drafted=40, longest_answer=64), "active"),
        (observed(DRAFT, drafted=0, longest_answer=64), "failed"),
        (observed(DRAFT, drafted=0, longest_answer=2), "idle"),
        (observed(RequestedSpeculation(("draft-simple",), True), drafted=0, longest_answer=64), "idle"),
        (observed(DRAFT, slots=(False,)), "failed"),
        (observed(DRAFT, slots=(True, True), total_slots=2, requested_slots=2), "idle"),
        (observed(DRAFT, slots=(True, False), total_slots=2, requested_slots=2), "failed"),
        (observed(DRAFT, slots=(True, True), total_slots=2), "failed"),
        (observed(NOTHING, slots=(False, True), total_slots=2, requested_slots=2), "failed"),
        (observed(DRAFT, slots=(False,), drafted=5), "failed"),
        (observed(DRAFT, slots=None), "idle"),
        (observed(DRAFT, slots=None, log=()), "failed"),
        (observed(DRAFT, slots=(None,), log=()), "failed"),
        (observed(DRAFT, slots=None, log=(), drafted=5), "active"),
        (observed(NGRAM, drafted=0, longest_answer=64), "idle"),
        (observed(NGRAM, drafted=7, longest_answer=64), "active"),
        (
            observed(RequestedSpeculation(("ngram-simple", "draft-simple"), False), drafted=0, longest_answer=64),
            "failed",
        ),
        (observed(NOTHING, total_slots=4), "failed"),
        (observed(NOTHING, total_slots=None), "failed"),
        (observed(NOTHING, slots=(False, False)), "failed"),
        (observed(NOTHING, model_path="/other.gguf"), "failed"),
        (observed(NOTHING, log=("using config file: /etc/llama.cpp/config.ini",)), "failed"),
    ],
)
def test_the_attestation(observed: LlamaObserved, state: str) -> None:
    attestation = attest(observed)
    assert attestation.state == state
    assert attestation.evidence
    assert (attestation.reason is not None) == (attestation.remedy is not None) == (state == "failed")


def test_a_type_that_benchctl_does_not_know_is_attested_by_its_name_in_the_log() -> None:
    requested = RequestedSpeculation(("draft-mtp-adaptive",), False)
    other_type = attest(observed(requested, drafted=9, longest_answer=64))
    assert (other_type.state, "draft-simple" in (other_type.reason or "")) == ("failed", True)
    log = ["0.0 I spec common_specu: adding speculative implementation 'draft-mtp-adaptive'"]
    assert attest(observed(requested, drafted=9, longest_answer=64, log=log)).state == "active"
    assert attest(observed(requested, drafted=9, longest_answer=64, log=[])).state == "active", "a log of few words"


@pytest.mark.parametrize(
    ("device", "buffer", "state"),
    [
        ("vulkan", "CPU_Mapped", "failed"),
        ("vulkan", "Vulkan_Host", "failed"),
        ("vulkan", "Vulkan0", "off"),
        ("rpc", "RPC0[127.0.0.1:50052]", "off"),
        ("auto", "CPU", "off"),
    ],
)
def test_the_device_is_attested_by_what_it_holds(device: str, buffer: str, state: str) -> None:
    log = [f"load_tensors: {buffer} model buffer size =    12.50 MiB"]
    result = attest(observed(NOTHING, device=device, log=log))
    assert result.state == state
    assert any(buffer in line for line in result.evidence)


def test_answers_that_count_more_drafts_than_the_log_contradict_it() -> None:
    """Of a build whose counters have none."""
    line = "statistics ngram-simple: #calls(b,g,a) = 1 9 4, #gen drafts = 4, #gen tokens = 12, #acc tokens = 5"
    observation = observed(NGRAM, drafted=12, longest_answer=64, slots=(None,), log=[*ENGAGED, line])
    assert attest(replace(observation, answers=12)).state == "active"
    assert attest(replace(observation, answers=13)).state == "failed"


@pytest.mark.parametrize(
    ("line", "reason", "remedy"),
    [
        ("E draft model vocab type must match target model to use speculation", "vocabulary", "tokenizer"),
        ("E failed: draft model is not eagle3 (expected 3 extract layers, got 0)", "draft-eagle3", "EAGLE-3"),
        ("E failed to initialize x: draft-simple requires a draft context", "without a draft model", "models.draft"),
        ("W speculative decoding not supported by this context", "cannot roll back", "target"),
        ("E failed to initialize speculative decoding context: odd", "odd", "log"),
        ("I no implementations specified for speculative decoding", "nothing to speculate with", "--spec-type"),
        ("nothing of interest", "There is no evidence", "models.draft"),
    ],
)
def test_the_reason_and_the_remedy_of_silence(line: str, reason: str, remedy: str) -> None:
    attestation = attest(observed(DRAFT, slots=(False,), log=("first", line)))
    assert reason in str(attestation.reason)
    assert remedy in str(attestation.remedy)
