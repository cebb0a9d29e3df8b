"""What was drafted and accepted, held against the server's counters, its steps and the tokens that came."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.base import Ledger
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer
from benchctl.engines.common.drafts import Tally, counted_since, read_counters, read_total, step_ledger
from benchctl.engines.vllm.attest import contradictions, mismatches, plain_steps, tally_lines, tokens_a_step
from tests.engines.cells import read

DATA = Path(__file__).parent / "data"
STEPS = "vllm:iteration_tokens_total_count"


@pytest.fixture(scope="module")
def answer() -> StreamedAnswer:
    """96 tokens with n-gram drafts of 4, as a real vLLM 0.32 streamed them."""
    result = read(CompletionReader(), [(DATA / "stream_ngram.txt").read_bytes()])
    assert result is not None
    return result


@pytest.fixture(scope="module")
def ledger(answer: StreamedAnswer) -> Ledger:
    return step_ledger(answer.extra["metrics"])


@pytest.fixture(scope="module")
def counted() -> tuple[Ledger, int]:
    """What the same server's /metrics counted meanwhile: counters of speculation, steps of the engine."""
    before, after = ((DATA / f"metrics_{when}.txt").read_text() for when in ("before", "after"))
    steps = (read_total(after, STEPS) or 0) - (read_total(before, STEPS) or 0)
    return counted_since(read_counters(before, "vllm"), read_counters(after, "vllm")), steps


def test_a_real_answer_is_read_whole(answer: StreamedAnswer) -> None:
    assert (len(answer.ids), answer.completion_tokens, answer.finish_reason) == (96, 96, "length")
    events = [json.loads(line[6:]) for line in (DATA / "stream_ngram.txt").read_text().splitlines() if 'text":' in line]
    assert max(len(event["choices"][0]["token_ids"]) for event in events) > 1  # one event, several tokens


def test_the_ledger_of_a_real_answer(ledger: Ledger) -> None:
    assert ledger == Ledger(
        drafted=44,
        accepted=11,
        rounds=11,
        drafted_by_position=(11, 11, 11, 11),
        accepted_by_position=(5, 2, 2, 2),
        accepted_by_length=(0, 0, 0, 11),
    )


def test_the_server_counted_the_same(ledger: Ledger, counted: tuple[Ledger, int]) -> None:
    assert contradictions(ledger, 96, *counted) == []


def test_steps_without_a_draft_are_counted(ledger: Ledger, counted: tuple[Ledger, int]) -> None:
    # 86 steps, the prompt's among them, and 11 accepted tokens make 97: the limit of 96 cut the last one off.
    assert counted[1] == 86
    assert plain_steps(ledger, 96, counted[1]) == 74
    assert plain_steps(ledger, 96, None) is None
    assert plain_steps(ledger, 96, 400) is None  # a long prompt is read in several steps


def test_an_engine_that_does_not_speculate_has_no_counts() -> None:
    assert step_ledger({"generation_time_ms": 3.0}) == Ledger()
    assert contradictions(Ledger(), 96) == []


def test_nothing_was_drafted_is_zero_and_not_absent() -> None:
    figures = {"num_spec_steps": 0, "num_draft_tokens": 0, "num_accepted_draft_tokens": 0, "num_spec_tokens": 2}
    assert step_ledger({"speculative_decoding": figures}) == Ledger(0, 0, 0, (0, 0), (0, 0))


def test_acceptance_is_told_by_the_length_of_a_draft() -> None:
    steps = {"per_step_accepted": [2, 0, 1, 0], "per_step_drafted": [3, 1, 1, 0]}
    figures = {"num_spec_steps": 4, "num_draft_tokens": 5, "num_accepted_draft_tokens": 3, "num_spec_tokens": 3}
    assert step_ledger({"speculative_decoding": figures | steps}).accepted_by_length == (1, 0, 2)


@pytest.mark.parametrize(
    "odd",
    [
        {"per_step_accepted": ["x"], "per_step_drafted": [None]},
        {"acceptance_histogram": ["x", 1]},
        {"acceptance_histogram": []},
        {"num_spec_tokens": 10**12, "num_spec_steps": 0},
        {"num_spec_tokens": "4"},
        {"num_spec_steps": True, "num_draft_tokens": -1},
    ],
)
def test_figures_that_are_none_are_absent(odd: dict[str, Any]) -> None:
    result = step_ledger({"speculative_decoding": {"num_spec_tokens": 4, **odd}})
    assert (result.accepted_by_position, result.drafted_by_position, result.drafted) == (None, None, None)


def test_positions_from_the_histogram_where_steps_are_not_reported() -> None:
    figures: dict[str, Any] = {"num_spec_steps": 11, "num_draft_tokens": 44, "num_accepted_draft_tokens": 11}
    result = step_ledger({"speculative_decoding": {**figures, "acceptance_histogram": [6, 3, 0, 0, 2]}})
    assert result.accepted_by_position == (5, 2, 2, 2)
    assert result.drafted_by_position is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accepted": 12}, "by position"),
        ({"rounds": 100, "drafted": 400}, "in 100 rounds"),
        ({"drafted": 8}, "accepted than drafted"),
    ],
)
def test_an_answer_that_contradicts_itself(ledger: Ledger, change: dict[str, Any], message: str) -> None:
    assert any(message in text for text in contradictions(replace(ledger, **change), 96))


def test_a_grammar_may_leave_rounds_without_a_draft(ledger: Ledger) -> None:
    """vLLM subtracts the draft tokens that structured output made invalid."""
    few = replace(
        ledger, drafted=8, accepted=3, drafted_by_position=(8,), accepted_by_position=(3,), accepted_by_length=(3,)
    )
    assert contradictions(few, 96) == []


def test_a_server_that_contradicts_the_answer(ledger: Ledger, counted: tuple[Ledger, int]) -> None:
    (sentence,) = contradictions(ledger, 96, replace(counted[0], drafted=40))
    assert "11 of 40" in sentence


def test_tokens_that_no_step_made(ledger: Ledger, counted: tuple[Ledger, int]) -> None:
    (sentence,) = contradictions(ledger, 96, counted[0], 80)
    assert "fewer than the 96" in sentence


def test_both_definitions_of_acceptance_length_are_reported(ledger: Ledger, counted: tuple[Ledger, int]) -> None:
    tally = Tally()
    tally.add(96, replace(ledger, plain_steps=plain_steps(ledger, 96, counted[1])))
    lines = tally_lines(tally)
    assert "acceptance length as vLLM defines it (1 + accepted / rounds): 2.000" in lines
    assert "steps without a draft: 74 of 85; tokens a step, all counted: 1.118" in lines
    assert mismatches(tally, counted[0]) == []
    (sentence,) = mismatches(tally, replace(counted[0], accepted=10))
    behind = replace(counted[0], rounds=(counted[0].rounds or 0) + 1, drafted=(counted[0].drafted or 0) + 4)
    assert mismatches(tally, behind), "a round that no answer has"
    assert not mismatches(replace(tally, stopped=1), behind), "it was verified when the stop string was found"
    assert "all answers together count 11 of 44" in sentence
    tally.broken += 1
    assert mismatches(tally, replace(counted[0], accepted=10)) == []  # what a broken request drafted is counted there


def test_unknown_steps_are_reported_as_unknown(ledger: Ledger) -> None:
    tally = Tally()
    tally.add(96, ledger)
    assert any("not reported" in line for line in tally_lines(tally))


def test_how_much_of_a_prompt_is_read_in_one_step() -> None:
    log = (
        "INFO 11-21 18:07:47 [scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=2048.\n"
        "WARNING [vllm.py:2276] max_num_scheduled_tokens is set to 1024 based on the speculative decoding settings.\n"
    )
    assert tokens_a_step(log) == 1024
    assert tokens_a_step("nothing of it") is None


def test_unreported_positions_contradict_nothing(ledger: Ledger, counted: tuple[Ledger, int]) -> None:
    assert contradictions(replace(ledger, accepted_by_position=None, drafted_by_position=None), 97, *counted) == []
