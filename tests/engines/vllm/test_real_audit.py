"""An audit on one real vLLM on the CPU: answers by prompt log-probabilities, noise between prefill and decode."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchctl.analysis.audit.conclude import audit_arms
from benchctl.analysis.audit.selection import Answer, ArmAnswers, Selection
from benchctl.data.audits import Audit
from benchctl.data.record import sha256_tokens
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.engine import VllmEngine
from benchctl.engines.vllm.score import VllmScorer
from benchctl.measure.audit.session import read_by_decoding, score
from benchctl.models.resolved import ResolvedModel, ResolvedPair
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Arm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
TOKENS, PROMPTS = 100, 11


@pytest.fixture(scope="module")
def scorer(
    vllm_program: Path, tiny_transformer: ResolvedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[VllmScorer]:
    spec = VllmSpec(kind="vllm", context=512, dtype="float32", env={"VLLM_CPU_KVCACHE_SPACE": "1"})
    engine = VllmEngine(spec, binary=str(vllm_program))
    launch = engine.launch(Arm(name="baseline"), ResolvedPair(tiny_transformer, None))
    started = engine.start_scorer(launch, tmp_path_factory.mktemp("vllm") / "audit.log")
    yield started
    started.stop()


def decoded(scorer: VllmScorer, prompt: tuple[int, ...]) -> tuple[int, ...]:
    """The target's own answer, token by token."""
    answer: list[int] = []
    scores = scorer.read_prompt(prompt, 5)
    while True:
        answer.append(scores.likeliest)
        if len(answer) == TOKENS:
            return tuple(answer)
        scores = scorer.read_on([*prompt, *answer], 5)


def test_sound_answers_are_consistent_and_a_token_of_another_is_not(scorer: VllmScorer) -> None:
    answers, passes, scored = [], [], []
    for number in range(PROMPTS):
        prompt = tuple(scorer.render(Prompt(prompt=f"{number} boats lay in the harbour, and")).token_ids)
        ids = decoded(scorer, prompt)
        own = Answer("code", number, "sha", len(prompt), ids, sha256_tokens(list(ids)))
        reading = score(scorer, prompt, own)
        assert len(reading.scored.margins) == TOKENS
        answers.append(own)
        scored.append(reading.scored)
        passes.append(read_by_decoding(scorer, prompt, own, reading))
        if not number:
            other = (*ids[:50], (ids[50] + 1) % 4000, *ids[51:])
            forged = Answer("code", number, "sha", len(prompt), other, sha256_tokens(list(other)))
            scored.append(score(scorer, prompt, forged).scored)
    assert sum(len(one.places) for one in passes) >= 1_000
    audit = Audit.model_construct(shape="prefill", answers=scored, passes=passes)
    found = audit_arms(audit, Selection((_arm("sound", answers), _arm("wrong", [forged, *answers[1:]]))))
    assert found["sound"].by_prefill
    assert (found["sound"].lacking, found["sound"].violates) == (None, False)
    assert found["wrong"].lacking is None
    assert found["wrong"].violates


def _arm(name: str, answers: list[Answer]) -> ArmAnswers:
    return ArmAnswers(name, (5,), tuple(answers), {one.key: len(one.token_ids) for one in answers}, overlapping=False)
