from __future__ import annotations

from typing import Any

import pytest

from benchctl.engines.llama_cpp.attest import Observed, attest
from benchctl.engines.llama_cpp.speculation import Asked

ENGAGED = (
    "0.0 I spec common_specu: adding speculative implementation 'draft-simple'",
    "0.0 I srv load_model: speculative decoding context initialized",
)
DRAFT, NGRAM, NOTHING = Asked(("draft-simple",), False), Asked(("ngram-simple",), False), Asked((), False)


def seen(asked: Asked, **more: Any) -> Observed:
    facts: dict[str, Any] = {
        "slots": (bool(asked.types),),
        "total_slots": 1,
        "model_path": "/m.gguf",
        "asked_model": "/m.gguf",
        "drafted": None,
        "longest_answer": 0,
        "log": ENGAGED if asked.types else (),
    }
    return Observed(asked=asked, **facts | more)


@pytest.mark.parametrize(
    ("observed", "state"),
    [
        (seen(NOTHING), "off"),
        (seen(NOTHING, drafted=0, longest_answer=99), "off"),
        (seen(NOTHING, slots=None), "off"),
        (seen(NOTHING, slots=(None,)), "off"),
        (seen(NOTHING, drafted=3), "failed"),
        (seen(NOTHING, slots=(True,)), "failed"),
        (seen(NOTHING, slots=None, log=ENGAGED), "failed"),
        (seen(DRAFT), "idle"),
        (seen(DRAFT, drafted=40, longest_answer=64), "active"),
        (seen(DRAFT, drafted=0, longest_answer=64), "failed"),
        (seen(DRAFT, drafted=0, longest_answer=2), "idle"),
        (seen(Asked(("draft-simple",), True), drafted=0, longest_answer=64), "idle"),
        (seen(DRAFT, slots=(False,)), "failed"),
        (seen(DRAFT, slots=(True, True), total_slots=2, asked_slots=2), "idle"),
        (seen(DRAFT, slots=(True, False), total_slots=2, asked_slots=2), "failed"),
        (seen(DRAFT, slots=(True, True), total_slots=2), "failed"),
        (seen(NOTHING, slots=(False, True), total_slots=2, asked_slots=2), "failed"),
        (seen(DRAFT, slots=(False,), drafted=5), "failed"),
        (seen(DRAFT, slots=None), "idle"),
        (seen(DRAFT, slots=None, log=()), "failed"),
        (seen(DRAFT, slots=(None,), log=()), "failed"),
        (seen(DRAFT, slots=None, log=(), drafted=5), "active"),
        (seen(NGRAM, drafted=0, longest_answer=64), "idle"),
        (seen(NGRAM, drafted=7, longest_answer=64), "active"),
        (seen(Asked(("ngram-simple", "draft-simple"), False), drafted=0, longest_answer=64), "failed"),
        (seen(NOTHING, total_slots=4), "failed"),
        (seen(NOTHING, total_slots=None), "failed"),
        (seen(NOTHING, slots=(False, False)), "failed"),
        (seen(NOTHING, model_path="/other.gguf"), "failed"),
        (seen(NOTHING, log=("using config file: /etc/llama.cpp/config.ini",)), "failed"),
    ],
)
def test_the_judgement(observed: Observed, state: str) -> None:
    attestation = attest(observed)
    assert attestation.state == state
    assert attestation.evidence
    assert (attestation.reason is not None) == (attestation.remedy is not None) == (state == "failed")


@pytest.mark.parametrize(
    ("line", "reason", "remedy"),
    [
        ("E draft model vocab type must match target model to use speculation", "vocabulary", "tokenizer"),
        ("E failed: draft model is not eagle3 (expected 3 extract layers, got 0)", "draft-eagle3", "EAGLE-3"),
        ("E failed to initialize x: draft-simple requires a draft context", "without a draft model", "models.draft"),
        ("W speculative decoding not supported by this context", "cannot take tokens back", "target"),
        ("E failed to initialize speculative decoding context: odd", "odd", "log"),
        ("I no implementations specified for speculative decoding", "nothing to speculate with", "--spec-type"),
        ("nothing of interest", "Nothing shows", "models.draft"),
    ],
)
def test_the_reason_and_the_remedy_of_silence(line: str, reason: str, remedy: str) -> None:
    attestation = attest(seen(DRAFT, slots=(False,), log=("first", line)))
    assert reason in str(attestation.reason)
    assert remedy in str(attestation.remedy)
