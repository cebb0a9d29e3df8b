from __future__ import annotations

from dataclasses import replace

import pytest

from benchctl.data.counts import rounds_contradiction
from benchctl.data.record import FinishReason
from benchctl.engines.base import Ledger
from benchctl.engines.common.drafts import read_counters
from benchctl.engines.llama_cpp.attest import find_steps, make_ledger, read_rounds, with_rounds
from benchctl.engines.llama_cpp.stream import LlamaAnswer

METRICS = """# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:n_decode_total 17
llamacpp:spec_decode_num_draft_tokens_total 61
llamacpp:spec_decode_num_accepted_tokens_total 47
llamacpp:spec_decode_num_drafts_total 16
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 14
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1.1e+01
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 12
"""
ZERO = Ledger(0, 0, 0)


def test_metrics_are_read() -> None:
    assert read_counters(METRICS, "llamacpp") == Ledger(61, 47, 16, accepted_by_position=(14, 12, 11))


def test_older_metrics_have_no_counters() -> None:
    assert read_counters("llamacpp:n_decode_total 17\n", "llamacpp") == Ledger()


def test_the_difference_is_the_requests() -> None:
    before = Ledger(40, 20, 10, accepted_by_position=(9, 8))
    after = Ledger(61, 47, 16, accepted_by_position=(14, 12, 11))
    timings = {"draft_n": 21, "draft_n_accepted": 27}
    ledger = make_ledger(before, after, timings, speculating=True)
    assert ledger == Ledger(drafted=21, accepted=27, rounds=6, accepted_by_position=(5, 4, 11))


def test_nothing_drafted_is_zero_only_when_the_engine_counts_it() -> None:
    assert make_ledger(ZERO, ZERO, {}, speculating=True) == Ledger(drafted=0, accepted=0, rounds=0)
    assert make_ledger(Ledger(), Ledger(), {}, speculating=True) == Ledger()


def test_without_counters_the_timings_speak() -> None:
    ledger = make_ledger(Ledger(), Ledger(), {"draft_n": 8, "draft_n_accepted": 3}, speculating=True)
    assert ledger == Ledger(drafted=8, accepted=3)


def test_the_target_alone_has_no_ledger_unless_it_drafted() -> None:
    assert make_ledger(ZERO, ZERO, {}, speculating=False) == Ledger()
    assert make_ledger(ZERO, Ledger(4, 2, 1, accepted_by_position=(2,)), {}, speculating=False).drafted == 4


def test_a_contradiction_stays_visible() -> None:
    after = Ledger(20, 9, 5, accepted_by_position=(5, 4))
    ledger = make_ledger(ZERO, after, {"draft_n": 20, "draft_n_accepted": 12}, speculating=True)
    assert ledger.accepted == 12
    assert ledger.accepted_by_position == (5, 4)


LINES = (" 1/ 1 draft tokens", " 1/ 3 draft tokens (restore checkpoint)", " 2/ 2 draft tokens", " 0/ 2 draft tokens")
ROUNDS = [(1, 1), (3, 1, 2), (2, 0)]


def logged(*lines: str, task: int = 3) -> str:
    return "\n".join(f"0.00.276.195 I slot   operator(): id  0 | task {task} | accepted {line}" for line in lines)


def answer(
    tokens: int, steps: tuple[tuple[int, int], ...] | None, finish_reason: FinishReason = "length"
) -> LlamaAnswer:
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
        steps=steps,
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
    ledger = Ledger(drafted=6, accepted=2, rounds=3)
    expected = replace(ledger, drafted_by_position=(3, 2, 1), accepted_by_length=(1, 0, 1))
    assert with_rounds(ledger, ROUNDS) == expected


def test_the_stream_shows_where_the_target_had_no_draft() -> None:
    shown = ((2, 1), (1, 0), (3, 3), (1, 0), (1, 2))
    assert find_steps(ROUNDS, answer(9, shown)) == ((1, 1), (0, 0), (3, 1, 2), (0, 0), (2, 0))
    assert find_steps([], answer(3, ((1, 0), (1, 0)))) == ((0, 0), (0, 0))


def test_without_timings_in_the_stream_steps_are_known_if_all_of_them_drafted() -> None:
    assert find_steps(ROUNDS, answer(7, None)) == tuple(ROUNDS)
    assert find_steps(ROUNDS, answer(8, None)) is None, "where the step without a draft was is not known"
    assert find_steps(ROUNDS, answer(7, None, "stop")) is None, "its end may have cut off as much as steps brought"
    assert find_steps([], answer(3, None)) == ((0, 0), (0, 0))


@pytest.mark.parametrize(
    ("shown", "message"),
    [
        (((2, 1), (3, 3)), "drafts of other lengths"),
        (((2, 1), (3, 2), (1, 3)), "drafts of other lengths"),
        (((1, 1), (3, 3), (1, 2)), "steps of other lengths"),
        (((2, 1), (2, 0), (3, 3), (1, 2)), "steps of other lengths"),
    ],
)
def test_a_stream_that_contradicts_the_rounds_is_an_error(shown: tuple[tuple[int, int], ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_steps(ROUNDS, answer(1 + sum(tokens for tokens, _ in shown), shown))
