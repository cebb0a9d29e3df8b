"""The rounds in the log, and the steps of the target that they and the stream's times leave possible."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from benchctl.data.counts import rounds_contradiction
from benchctl.data.record import FinishReason
from benchctl.engines.base import Ledger
from benchctl.engines.llama_cpp.rounds import find_steps, read_rounds, with_rounds
from benchctl.engines.llama_cpp.stream import LlamaAnswer, TokenTime

LINES = (" 1/ 1 draft tokens", " 1/ 3 draft tokens (restore checkpoint)", " 2/ 2 draft tokens", " 2/ 2 draft tokens")
ROUNDS = [(1, 1), (3, 1, 2), (2, 2)]


def logged(*lines: str, task: int = 3) -> str:
    return "\n".join(f"0.00.276.195 I slot   operator(): id  0 | task {task} | accepted {line}" for line in lines)


def answer(tokens: int, *times: tuple[int, float, int], finish_reason: FinishReason = "length") -> LlamaAnswer:
    """An answer of so many tokens; `times`: those whose events came, with the time and what was drafted by then."""
    return LlamaAnswer(
        text="",
        ids=(),
        streamed_ids=(),
        n_predicted=tokens,
        finish_reason=finish_reason,
        ttft_s=0.1,
        decode_s=0.1,
        timings={},
        settings={},
        token_times=tuple(TokenTime(*timed) for timed in times),
    )


def test_rounds_are_those_of_the_last_request_in_the_log() -> None:
    assert read_rounds(logged(*LINES)) == ROUNDS
    assert read_rounds(logged(" 0/ 4 draft tokens", task=2) + "\n" + logged(*LINES)) == ROUNDS
    assert read_rounds("") == []


def test_what_is_read_again_may_be_rejected_again() -> None:
    restored = [f"{counts} draft tokens (restore checkpoint)" for counts in (" 2/ 4", " 1/ 3")]
    (step,) = rounds = read_rounds(logged(*restored, " 2/ 2 draft tokens"))
    assert step == (4, 2, 1, 2)
    assert rounds_contradiction(rounds, drafted=4, accepted=1, rounds=1) is None


def test_drafts_are_counted_by_position_and_length() -> None:
    ledger = Ledger(drafted=6, accepted=4, rounds=3)
    expected = replace(ledger, drafted_by_position=(3, 2, 1), accepted_by_length=(1, 2, 1))
    assert with_rounds(ledger, ROUNDS) == expected


FIRST = (1, 0.0, 0)
TIMES = (
    *(FIRST, (2, 5.0, 1), (3, 5.0, 1), (4, 6.0, 1), (5, 9.0, 4), (6, 9.0, 4), (7, 9.0, 4)),
    *((8, 11.0, 6), (9, 11.0, 6), (10, 11.0, 6), (11, 12.0, 6)),
)
STEPS = ((1, 1), (0, 0), (3, 1, 2), (2, 2), (0, 0))


def test_the_stream_shows_where_the_target_had_no_draft() -> None:
    assert find_steps(ROUNDS, answer(11, *TIMES)) == STEPS
    assert find_steps([], answer(3, FIRST, (2, 5.0, 0), (3, 6.0, 0))) == ((0, 0), (0, 0))
    assert find_steps([], answer(1, FIRST)) == ()


@pytest.mark.parametrize("parts", [{2}, {4}, {5, 6}, {3, 7}, {1, 6}])
def test_parts_of_characters_have_no_event_of_their_own(parts: set[int]) -> None:
    assert find_steps(ROUNDS, answer(11, *(timed for timed in TIMES if timed[0] not in parts))) == STEPS


def test_where_several_orders_are_possible_none_is_chosen() -> None:
    times = [timed for timed in TIMES if timed[0] not in {2, 3, 4}]  # a step without a draft before or after the first
    assert find_steps(ROUNDS, answer(11, *times)) is None


def test_without_times_steps_are_known_if_all_of_them_drafted() -> None:
    assert find_steps(ROUNDS, answer(9)) == tuple(ROUNDS)
    assert find_steps(ROUNDS, answer(10)) is None
    assert find_steps([], answer(3)) == ((0, 0), (0, 0))


def test_a_long_answer_without_times_is_not_searched() -> None:
    start = time.process_time()
    assert find_steps([(4, 4)] * 900, answer(6000)) is None
    assert time.process_time() - start < 2, "a whole search takes minutes"


def test_a_draft_leaves_room_for_a_token_of_the_targets_own() -> None:
    assert find_steps([(4, 2)], answer(6)) == ((4, 2), (0, 0), (0, 0)), "nothing came before it"
    with pytest.raises(ValueError, match="other steps"):
        find_steps([(4, 2)], answer(5))


def test_an_answer_may_end_within_its_last_step_if_it_stops_by_itself() -> None:
    times = ((1, 0.0, 0), (2, 5.0, 4), (3, 5.0, 4))
    assert find_steps([(4, 4)], answer(3, *times, finish_reason="stop")) == ((4, 4),)
    with pytest.raises(ValueError, match="other steps"):
        find_steps([(4, 4)], answer(3, *times))
    assert find_steps([(4, 4)], answer(3, finish_reason="stop")) is None, "or the target had no draft at first"


@pytest.mark.parametrize(
    ("rounds", "times"),
    [
        (ROUNDS[:2], TIMES),
        ([(1, 1), (2, 2), (3, 1, 2)], TIMES),
        ([(1, 0), (3, 1, 2), (2, 2)], TIMES),
        (ROUNDS, [(tokens, at_ms, drafted + 1) for tokens, at_ms, drafted in TIMES]),
        (ROUNDS, [*TIMES[:6], (7, 10.0, 4), *TIMES[7:]]),
        (ROUNDS, [FIRST, (2, 5.0, 0), *TIMES[2:]]),
    ],
)
def test_a_stream_that_contradicts_the_rounds_is_an_error(
    rounds: list[tuple[int, ...]], times: list[tuple[int, float, int]]
) -> None:
    with pytest.raises(ValueError, match="other steps"):
        find_steps(rounds, answer(11, *times))
