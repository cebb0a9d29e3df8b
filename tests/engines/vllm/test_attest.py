"""What counts as evidence that a vLLM ran as it was asked to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import Tally
from benchctl.engines.vllm.attest import VllmObserved, attest

STARTED = (
    "(EngineCore pid=11951) INFO 11-21 17:12:00 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
    "model='/m', speculative_config={}, tokenizer='/m', seed=0, enable_prefix_caching=False, pooler_config=None"
)
NGRAM = STARTED.format("SpeculativeConfig(method='ngram', model=None, num_spec_tokens=4)")
ALONE = STARTED.format("None")
SPEAKING = VllmObserved(
    method="ngram",
    model_path="/m",
    requested_model="/m",
    counters=Ledger(rounds=3, drafted=12, accepted=1),
    tally=Tally(decoded=95, rounds=3, drafted=12, accepted=1, plain_steps=90, longest=96),
    contradictions=(),
    log=("some line", NGRAM),
)
SILENT = replace(SPEAKING, method=None, counters=Ledger(), tally=Tally(longest=96), log=(ALONE,))


def test_an_arm_that_drafted() -> None:
    result = attest(SPEAKING)
    assert result.state == "active"
    assert any("method='ngram'" in line for line in result.evidence)
    assert any("12 draft tokens" in line for line in result.evidence)


def test_an_arm_that_never_found_anything() -> None:
    assert attest(replace(SPEAKING, counters=Ledger(rounds=0, drafted=0, accepted=0))).state == "idle"


def test_a_baseline() -> None:
    assert attest(SILENT).state == "off"


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (replace(SPEAKING, model_path="/other"), "serves /other"),
        (replace(SPEAKING, log=(ALONE,)), "speculates with nothing"),
        (replace(SPEAKING, log=(NGRAM.replace("ngram", "eagle"),)), "speculates with eagle"),
        (replace(SPEAKING, counters=Ledger()), "no counters of speculation"),
        (replace(SPEAKING, contradictions=("3 is 4",)), "contradict each other: 3 is 4"),
        (replace(SPEAKING, log=(NGRAM.replace("caching=False", "caching=True"),)), "Prefix caching is on"),
        (replace(SILENT, log=(NGRAM,)), "requests no speculation"),
        (replace(SILENT, counters=Ledger(rounds=0, drafted=0, accepted=0)), "requests no speculation"),
        (
            replace(
                SPEAKING,
                method="draft_model",
                counters=Ledger(rounds=0, drafted=0, accepted=0),
                log=(NGRAM.replace("ngram", "draft_model"),),
            ),
            "nothing was drafted",
        ),
    ],
)
def test_what_fails(observation: VllmObserved, message: str) -> None:
    result = attest(observation)
    assert result.state == "failed"
    assert message in (result.reason or "")
    assert result.remedy


def test_a_schedule_may_draft_nothing_at_a_load() -> None:
    nothing = replace(SPEAKING, method="draft_model", counters=Ledger(rounds=0, drafted=0, accepted=0),
                      log=(NGRAM.replace("ngram", "draft_model"),))  # fmt: skip
    assert attest(replace(nothing, may_hold_back=True)).state == "idle"
    assert attest(nothing).state == "failed"


def test_prefix_caching_must_be_as_requested() -> None:
    on = NGRAM.replace("caching=False", "caching=True")
    assert attest(replace(SPEAKING, log=(on,), prefix_caching=True)).state == "active"
    refused = attest(replace(SPEAKING, prefix_caching=True))
    assert refused.state == "failed"
    assert "engine.prefix_caching" in (refused.reason or "")
