"""Endpoints that are scored on: OpenAI's `echo` with `logprobs`, SGLang's `/generate`, and what one may lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.openai.adapter import OpenAiSpec
from benchctl.engines.openai.engine import OpenAiEngine
from benchctl.errors import EngineError, UsageError
from benchctl.lossless.judge.selection import Answer
from benchctl.lossless.score.reading import read_by_decoding, score
from benchctl.prompts.suite import Message, Prompt
from benchctl.recipes.schema import Arm
from tests.engines.openai.conftest import served
from tests.engines.openai.scoring_endpoint import ANSWER, PROMPT, TEXT, ScoringScript, serving

Scoring = Callable[..., tuple[Any, ScoringScript]]
DIALECTS = pytest.mark.parametrize("dialect", ["openai", "sglang"])


@pytest.fixture
def scoring(tmp_path: Path) -> Iterator[Scoring]:
    """Start scripted endpoints and score on them, as an audit does."""
    with ExitStack() as stack:

        def start(**script: Any) -> tuple[Any, ScoringScript]:
            running = stack.enter_context(serving(ScoringScript(**script)))
            engine = OpenAiEngine(OpenAiSpec.model_validate({"kind": "openai", "url": running.url}))
            launch = engine.launch(Arm(name="baseline"), served())
            scorer = engine.start_scorer(launch, tmp_path / "audit.log")
            stack.callback(scorer.stop)
            running.requests.clear()
            return scorer, running

        yield start


def answer_of(ids: tuple[int, ...]) -> Answer:
    return Answer("code", 0, "sha", 3, ids, "sha")


@DIALECTS
def test_an_answer_is_scored_whole_in_one_request(scoring: Scoring, dialect: str) -> None:
    scorer, script = scoring(dialect=dialect)
    answer = (*ANSWER[:10], 44, *ANSWER[11:20])
    result = score(scorer, PROMPT, answer_of(answer))
    ((_, body),) = script.requests
    assert body["input_ids" if dialect == "sglang" else "prompt"] == [*PROMPT, *answer]
    assert body["top_logprobs_num" if dialect == "sglang" else "logprobs"] == 20
    assert set(result.scored.margins) == {1.5}
    assert [(comparison.index, comparison.likeliest, comparison.gap) for comparison in result.scored.diverged] == [
        (10, ANSWER[10], 8.8)
    ]


@DIALECTS
def test_the_noise_is_the_change_between_prefill_and_decode(scoring: Scoring, dialect: str) -> None:
    scorer, script = scoring(dialect=dialect)
    target_answer = answer_of(ANSWER[:50])
    reading = score(scorer, PROMPT, target_answer)
    by_decoding = read_by_decoding(scorer, reading)
    assert by_decoding.places == list(range(50))
    assert {round(loss, 6) for loss in by_decoding.losses} == {-0.3}
    assert len(script.requests) == 2, "decoded ahead in one request"


@DIALECTS
def test_a_diverging_prefix_is_read_at_once(scoring: Scoring, dialect: str) -> None:
    scorer, _ = scoring(dialect=dialect)
    assert not scorer.in_batches
    assert scorer.read_prompt(PROMPT, 20).likeliest == ANSWER[0]
    scores = scorer.read_on([*PROMPT, ANSWER[0], 99], 20)
    assert (scores.evaluated, scores.likeliest) == (5, 7)


@DIALECTS
def test_prompts_are_rendered_by_the_endpoint(scoring: Scoring, dialect: str) -> None:
    scorer, _ = scoring(dialect=dialect)
    raw = scorer.render(Prompt(prompt=TEXT))
    assert (raw.text, raw.token_ids) == (TEXT, PROMPT)
    chat = scorer.render(Prompt(messages=(Message(role="user", content=TEXT),)))
    assert chat.text == '[{"content": "one two three", "role": "user"}]'
    assert chat.token_ids == PROMPT


def test_an_endpoint_that_ends_its_answer_is_read_until_there(scoring: Scoring) -> None:
    scorer, script = scoring(ends_after=8)
    target_answer = answer_of(ANSWER[:12])
    by_decoding = read_by_decoding(scorer, score(scorer, PROMPT, target_answer))
    assert by_decoding.places == list(range(8))
    assert len(script.requests) == 3, "scored, decoded to the end, and one prefix beyond it"


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        ("refuses-echo", "Only no echo is supported"),
        ("ignores-echo", "no token ids"),
        ("no-logprobs", "no token ids"),
        ("names-by-text", "no token ids"),
        ("no-top", "no token ids"),
        ("no-id-prompts", "prompt must be a string"),
        ("lacks-a-place", "no probabilities"),
    ],
)
def test_an_endpoint_that_lacks_something_is_refused(scoring: Scoring, fault: str, refusal: str) -> None:
    with pytest.raises(UsageError, match=f"no log-probabilities of prompt tokens.*{refusal}") as caught:
        scoring(fault=fault)
    assert "echo" in str(caught.value.fix)


def test_openais_own_limit_of_logprobs_is_tried(scoring: Scoring) -> None:
    scorer, script = scoring(fault="few-logprobs")
    scorer.score_answer(PROMPT, ANSWER[:4], 20)
    assert script.requests[0][1]["logprobs"] == 5


@pytest.mark.parametrize("fault", ["lacks-a-place", "no-logprobs", "other-tokens"])
def test_sglang_without_all_its_logprobs_is_refused(scoring: Scoring, fault: str) -> None:
    scorer, _ = scoring(dialect="sglang", fault=fault)
    with pytest.raises(EngineError, match="no probabilities"):
        scorer.score_answer(PROMPT, ANSWER[:4], 20)


def test_a_speculating_baseline_is_not_scored_on(scoring: Scoring) -> None:
    with pytest.raises(UsageError, match="speculates"):
        scoring(dialect="sglang", fault="speculating")
