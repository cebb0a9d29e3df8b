"""What counts as a degenerate answer, and what must not."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from benchctl.analysis.answers import degeneration, find_loop, repeated_share, runs_on
from benchctl.analysis.frame import make_frame
from benchctl.analysis.record_checks import check_repetitions


@pytest.mark.parametrize(
    ("text", "ids", "message"),
    [
        ("", [2], "is empty"),
        (" \n\n", [5, 5, 2], "white space"),
        ("la la la", [7] * 30, "repeats 1 token over 30 of its 30 tokens"),
        ("so: la li", [1, 2, 3] + [7, 8] * 20, "repeats 2 tokens over 40 of its 43 tokens"),
        ("<|plamo:reserved:0x10|>" * 5, list(range(5)), "reserved or byte tokens"),
        ("ok <unused12><unused13><unused14><unused15>", list(range(5)), "reserved or byte tokens"),
        ("<0xE3><0x81><0x82><0xE3>", list(range(4)), "reserved or byte tokens"),
        ("a" + "\ufffd" * 9, list(range(10)), "broken UTF-8"),
        ("\x00" * 9, list(range(9)), "control characters"),
        ("la " * 40, None, "repeats 3 characters ('la ') over 120 of its 120 characters"),
    ],
)
def test_degenerate_answers_are_reported(make_record: Any, text: str, ids: list[int] | None, message: str) -> None:
    record = make_record(text=text, ids=ids or [], **({"token_ids": None} if ids is None else {}))
    result = degeneration(record)
    assert result is not None and message in result


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a short answer", [4] * 5),
        ("an answer that ends in a loop", list(range(60)) + [7] * 60),
        ("| a | b |\n|---|---|\n", list(range(12))),
        ("List<T> and <div>[unused]</div>", list(range(12))),
        ("<pad> once is no run", list(range(12))),
        ("emoji \U0001f600 and \x1b[31m colour", list(range(12))),
    ],
)
def test_odd_but_sound_answers_are_not(make_record: Any, text: str, ids: list[int]) -> None:
    assert degeneration(make_record(text=text, ids=ids)) is None


@pytest.mark.parametrize("period", [1, 2, 7, 16])
def test_loops_of_every_period_are_found_with_their_length(period: int) -> None:
    unit = list(range(1000, 1000 + period))
    assert find_loop([1, 2, 3, *unit * 30], 16, 24) == (period, 30 * period)


@pytest.mark.parametrize("start", range(10))
def test_eight_broken_characters_in_a_row_are_found_wherever_they_begin(make_record: Any, start: int) -> None:
    sound = "".join(chr(97 + index % 26) for index in range(start))
    result = degeneration(make_record(text=f"{sound}{chr(0xFFFD) * 8} and more", ids=list(range(10))))
    assert result is not None
    assert "broken UTF-8" in result
    assert degeneration(make_record(text=f"{sound}{chr(0xFFFD) * 7} and more", ids=list(range(10)))) is None


def test_a_hostile_text_is_checked_quickly(make_record: Any) -> None:
    text = "<" + "reserved" * 50_000 + "[" * 50_000 + "<|pad" * 50_000
    began = time.process_time()
    assert degeneration(make_record(text=text)) is None
    assert time.process_time() - began < 30  # a quadratic pattern would take hours


@pytest.mark.parametrize(
    ("length", "finish", "other_length", "endless"),
    [(96, "length", 24, True), (96, "length", 25, False), (96, "stop", 10, False)],
)
def test_an_answer_that_finds_no_end_where_the_other_does(
    make_record: Any, length: int, finish: str, other_length: int, endless: bool
) -> None:
    ours = make_record(ids=list(range(length)), finish_reason=finish)
    message = runs_on(ours, make_record(ids=list(range(other_length)), finish_reason="stop"))
    assert (message is not None) == endless
    assert runs_on(ours, make_record(ids=list(range(other_length)), finish_reason="length")) is None


@pytest.mark.parametrize(
    ("answer", "share"),
    [
        ([1, 2, *[7, 8, 9] * 20, *range(20, 58)], 0.6),  # a loop in the middle: degeneration does not name it
        ([*range(100, 130), *list(range(40)) * 4], 160 / 190),  # a whole sentence, four times
        (list(range(40)) * 3, 0.0),
        ([5] * 20, 0.0),
        ("so " + "and on " * 20, 140 / 143),
        ([], 0.0),
    ],
)
def test_a_phrase_repeated_anywhere_counts(answer: Sequence[object], share: float) -> None:
    assert repeated_share(answer) == pytest.approx(share, abs=0.02)


def test_answers_that_repeat_a_phrase_are_named(make_record: Any, make_manifest: Any) -> None:
    loops, sound = [1, 2, *[7, 8, 9] * 20, *range(20, 58)], list(range(100))
    records = [
        make_record(arm, prompt, ids=loops if prompt == 1 else sound)
        for arm in ("baseline", "spec")
        for prompt in (0, 1)
    ]
    manifest = make_manifest({"baseline": None, "spec": {"type": "ngram-mod"}}, prompts=2, blocks=1)
    frame = make_frame(records, manifest, "baseline")
    (observed,) = check_repetitions(frame)
    assert (observed.id, observed.where) == ("repeating-answers", "baseline")
    (fact,) = observed.facts
    assert fact.values == {"repeating": {"count": 1, "first": ["code/1: 60.0 %"]}, "prompts": 2}
