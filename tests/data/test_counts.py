"""Counts of tokens that a stream, or another answer of the same text, contradicts."""

from __future__ import annotations

from typing import Any

import pytest

from benchctl.data.counts import DISPUTED, ELSEWHERE, FEWER, OTHER_IDS, refusal, refusals, steps_contradiction
from benchctl.data.record import Record


def answer(count: int, events: int | None = None, **more: Any) -> Record:
    values: dict[str, Any] = {"task": "code", "prompt_idx": 0, "rep": 0, "content": "a text"}
    values |= {"finish_reason": "length", "label": "arm", "n_predicted": count, "text_events": events}
    return Record(**values | more)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (answer(16, 16), None),
        (answer(16, 4), None),  # several tokens an event
        (answer(16), None),
        (answer(8, 16), FEWER),
        (answer(0, 16), FEWER),
        (answer(8, burst_gaps_s=[0.01] * 15), FEWER),  # a stored run of earlier versions
        (answer(16, burst_gaps_s=[0.01] * 15), None),
        (answer(3, token_ids=[1, 2, 3]), None),
        (answer(4, token_ids=[1, 2, 3]), OTHER_IDS),
        (answer(0, 16, token_ids=[]), FEWER),  # no ids are no list of a text's tokens
        (answer(0, token_ids=[], content=""), None),
    ],
)
def test_an_answer_may_contradict_its_own_count(record: Record, reason: str | None) -> None:
    assert refusal(record) == reason


@pytest.mark.parametrize(
    ("records", "reasons"),
    [
        ([answer(16, 16), answer(16, 4)], [None, None]),
        ([answer(16, 16), answer(4, 4)], [None, ELSEWHERE]),  # it counts chunks
        ([answer(16, 16), answer(20, 4)], [None, DISPUTED]),  # a token an event is shown
        ([answer(16, 4), answer(20, 4)], [DISPUTED, DISPUTED]),  # nothing shows which is right
        ([answer(17, 16, finish_reason="stop"), answer(4, 4, finish_reason="stop")], [None, ELSEWHERE]),
        ([answer(3, token_ids=[1, 2, 3]), answer(4, 2)], [None, DISPUTED]),
        ([answer(3, token_ids=[1, 2, 3]), answer(2, token_ids=[7, 8])], [None, None]),  # two ways to write a text
        ([answer(16, 16), answer(4, 4, content="another")], [None, None]),
        ([answer(16, 16), answer(4, 4, prompt_idx=1)], [None, None]),
        ([answer(16, 16), answer(4, 4, finish_reason="stop")], [None, None]),
        ([answer(16, 16), answer(8, 16), answer(16, 4)], [None, FEWER, None]),
    ],
)
def test_equal_texts_have_equally_many_tokens(records: list[Record], reasons: list[str | None]) -> None:
    assert refusals(records) == reasons


STEPS = [[4, 2], [0, 0], [4, 4], [4, 1, 2]]
COUNTERS = {"tokens": 13, "drafted": 12, "accepted": 7, "rounds": 3}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, None),
        ({"rounds": None, "accepted": None}, None),
        ({"tokens": 11}, None),  # it ended within the last step
        ({"tokens": 10}, "its steps bring 13 tokens, and 10 came"),
        ({"tokens": 14}, "its steps bring 13 tokens, and 14 came"),
        ({"drafted": 13}, "its steps have 12 drafted, and its counters 13"),
        ({"accepted": 8}, "its steps have 7 accepted, and its counters 8"),
        ({"rounds": 4}, "its steps have 3 rounds, and its counters 4"),
    ],
)
def test_steps_account_for_the_counters_and_the_tokens(changed: dict[str, Any], message: str | None) -> None:
    assert steps_contradiction(STEPS, **COUNTERS | changed) == message


@pytest.mark.parametrize("step", [[4], [4, 5], [0, 0, 1], [4, 4, 5], [4, 2, 4], [4, -1], [0, 1]])
def test_a_step_that_cannot_be_is_named(step: list[int]) -> None:
    message = steps_contradiction([step], tokens=6, drafted=None, accepted=None, rounds=None)
    assert message == f"no step can be {step}"


def test_a_pass_over_the_prompt_and_a_draft_brings_the_first_tokens() -> None:
    steps, counters = [[0, 4, 2], [4, 4]], {"drafted": 8, "accepted": 6, "rounds": 2}
    assert steps_contradiction(steps, tokens=8, **counters) is None
    assert steps_contradiction(steps, tokens=9, **counters) == "its steps bring 8 tokens, and 9 came"
    assert steps_contradiction(steps[::-1], tokens=8, **counters) == "no step can be [0, 4, 2]"


def test_an_answer_of_a_token_has_no_steps() -> None:
    assert steps_contradiction([], tokens=1, drafted=0, accepted=0, rounds=0) is None
    assert steps_contradiction([], tokens=2, drafted=0, accepted=0, rounds=0) is not None
