"""Waits that the other requests in flight explain are no pauses of the machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchctl.analysis.steadiness import _longest_gap, find_pauses
from benchctl.data.record import Record
from tests.analysis.conftest import build_record

GAPS = [0.2] * 10


def answer(index: int, sent_s: float, ttft_s: float = 0.5, wait_s: float = 0.2) -> Record:
    """An answer of eleven tokens, each 0.2 s after the one before; the sixth comes after `wait_s`."""
    gaps = [*GAPS[:5], wait_s, *GAPS[6:]]
    return build_record("baseline", index, sent_s=sent_s, ttft_s=ttft_s, burst_gaps_s=gaps, decode_s=sum(gaps))


@pytest.mark.parametrize(
    ("sent_s", "ttft_s", "pauses"),
    [
        (1.5, 4.0, []),  # its prompt is read from 1.5 s to 5.5 s, the whole wait
        (1.5, 1.0, ["3.0 s between two tokens of code/0"]),
        (90.0, 4.0, ["4.0 s between two tokens of code/0"]),  # while nothing waits for its first token
    ],
)
def test_a_wait_while_another_prompt_is_read_is_no_pause(sent_s: float, ttft_s: float, pauses: list[str]) -> None:
    answers = [answer(0, sent_s=0.0, wait_s=4.0), *(answer(index, sent_s=20.0 * index) for index in (1, 2, 3))]
    answers.append(answer(4, sent_s=sent_s, ttft_s=ttft_s))
    assert [str(pause) for pause in find_pauses(answers, overlapping=True)] == pauses
    alone = find_pauses([answer(0, 0.0, wait_s=4.0), *answers[1:4]])
    assert [str(pause) for pause in alone] == ["4.0 s between two tokens of code/0"]


def test_tokens_within_a_burst_take_time_of_their_own() -> None:
    late = answer(0, sent_s=0.0, wait_s=4.0).changed(decode_s=sum(GAPS) + 3.8 + 2.0)  # the wait may begin 2 s later
    answers = [late, *(answer(index, sent_s=20.0 * index) for index in (1, 2, 3)), answer(4, sent_s=3.5, ttft_s=4.0)]
    assert find_pauses(answers, overlapping=True) == []


def test_a_wait_that_cannot_be_the_longest_is_not_looked_at() -> None:
    """Of a long cell, every wait beside every time before a first token would be too many."""
    looked_at = 0

    class Intervals(list[tuple[float, float]]):
        def __iter__(self) -> Iterator[tuple[float, float]]:
            nonlocal looked_at
            looked_at += 1
            return super().__iter__()

    gaps = [0.2] * 500
    assert _longest_gap(answer(0, sent_s=0.0), gaps, Intervals([(50.0, 60.0)])) == 0.2
    assert looked_at == 1
