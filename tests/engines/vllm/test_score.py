"""Scores of the target alone, from a vLLM that keeps nothing between requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchctl.engines.vllm.engine import VllmScorer
from benchctl.errors import EngineError
from benchctl.lossless.judge.selection import Answer
from benchctl.lossless.score.reading import read_by_decoding, score

PROMPT = (1, 2, 3)
ANSWER = tuple(range(10, 90))
"""What the toy target says to PROMPT; to anything else it says 7."""


@dataclass
class ToyHttp:
    """Answers as vLLM's `/v1/completions` with logprobs and `return_tokens_as_token_ids`."""

    bodies: list[Mapping[str, Any]] = field(default_factory=list)
    broken: bool = False

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        self.bodies.append(body)
        from_prompt = tuple(body["prompt"]) == PROMPT
        ids = [ANSWER[position] if from_prompt else 7 for position in range(body["max_tokens"])]
        places = [{"token_id:5": -2.0, f"token_id:{token}": -0.2} for token in ids]
        return {"choices": [{"token_ids": ids, "logprobs": {"top_logprobs": places[1:] if self.broken else places}}]}


@dataclass
class ToyServer:
    http: ToyHttp
    context: int
    model: str = "toy"
    timeout_s: float = 9.0


@pytest.fixture
def http() -> ToyHttp:
    return ToyHttp()


@pytest.fixture
def scorer(http: ToyHttp) -> VllmScorer:
    return VllmScorer(ToyServer(http, 60), ("vllm",), 500)  # type: ignore[arg-type]


def test_its_own_answer_is_read_token_by_token_from_few_requests(scorer: VllmScorer, http: ToyHttp) -> None:
    assert scorer.read_prompt(PROMPT, 20).likeliest == ANSWER[0]
    for position in range(1, 50):
        scores = scorer.read_on([*PROMPT, *ANSWER[:position]], 20)
        assert (scores.evaluated, scores.likeliest) == (1, ANSWER[position])
        assert list(scores.logprobs) == [ANSWER[position], 5]  # likeliest first
    assert len(http.bodies) == 1
    assert http.bodies[0]["max_tokens"] == 57  # no further than the context


def test_many_logprobs_are_requested_only_where_needed(scorer: VllmScorer, http: ToyHttp) -> None:
    scorer.read_prompt(PROMPT, 20)
    scorer.read_on([*PROMPT, *ANSWER[:4]], 2000)
    assert [(body["max_tokens"], body["logprobs"]) for body in http.bodies] == [(57, 20), (5, 500)]


def test_a_diverging_prefix_is_read_at_once_and_counted_as_such(scorer: VllmScorer) -> None:
    scorer.read_prompt(PROMPT, 20)
    scores = scorer.read_on([*PROMPT, 10, 99], 20)
    assert (scores.evaluated, scores.likeliest) == (5, 7)
    assert scorer.read_whole([*PROMPT, 10], 20).evaluated == 4
    assert not scorer.in_batches


def test_an_answer_without_all_its_logprobs_is_no_answer(scorer: VllmScorer, http: ToyHttp) -> None:
    http.broken = True
    with pytest.raises(EngineError, match="returned no probabilities"):
        scorer.read_prompt(PROMPT, 20)


@dataclass
class PromptHttp(ToyHttp):
    """Tells the logprobs of a prompt's tokens, as `prompt_logprobs` asks: its own is always 1.5 nats ahead of 5."""

    def post(self, path: str, body: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        if "prompt_logprobs" not in body:
            return super().post(path, body, timeout_s)
        self.bodies.append(body)
        places: list[dict[str, Any] | None] = [None]
        for position, token in enumerate(body["prompt"][1:], start=1):
            likeliest_token = ANSWER[position - len(PROMPT)] if position >= len(PROMPT) else token
            ranked = {str(likeliest_token): {"logprob": -0.5, "rank": 1}, "5": {"logprob": -2.0, "rank": 2}}
            places.append({str(token): {"logprob": -9.0, "rank": 400}, **ranked})
        return {"choices": [{"prompt_logprobs": places[:-1] if self.broken else places}]}


def prompt_scorer(http: PromptHttp) -> VllmScorer:
    return VllmScorer(ToyServer(http, 200), ("vllm",), 500)  # type: ignore[arg-type]


def test_an_answer_is_scored_whole_in_one_request() -> None:
    http = PromptHttp()
    answer = [*ANSWER[:10], 44, *ANSWER[11:20]]
    result = score(prompt_scorer(http), PROMPT, Answer("code", 0, "sha", 3, tuple(answer), "sha"))
    assert len(http.bodies) == 1
    assert http.bodies[0]["prompt"] == [*PROMPT, *answer]
    assert http.bodies[0]["prompt_logprobs"] == 20
    assert set(result.scored.margins) == {1.5}
    assert [(comparison.index, comparison.likeliest, comparison.gap) for comparison in result.scored.diverged] == [
        (10, ANSWER[10], 8.5)
    ]


def test_the_noise_is_the_change_between_prefill_and_decode() -> None:
    """Its own answer is decoded again: there the toy is 1.8 nats ahead, so that prefill costs it -0.3."""
    scorer = prompt_scorer(PromptHttp())
    target_answer = Answer("code", 0, "sha", 3, ANSWER[:20], "sha")
    by_decoding = read_by_decoding(scorer, score(scorer, PROMPT, target_answer))
    assert (by_decoding.width, by_decoding.places) == (0, list(range(20)))
    assert set(by_decoding.losses) == {-0.3}


def test_prompt_logprobs_that_lack_a_place_are_refused() -> None:
    with pytest.raises(EngineError, match="no probabilities"):
        prompt_scorer(PromptHttp(broken=True)).score_answer(PROMPT, ANSWER[:5], 20)
