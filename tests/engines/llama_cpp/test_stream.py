from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from benchctl.engines.base import Completion, Ledger
from benchctl.engines.common.wire import error_in
from benchctl.engines.llama_cpp.stream import Gap, LlamaAnswer, LlamaReader, agreeing_ids
from benchctl.errors import EngineError
from tests.engines.cells import read as read_stream


def token(count: int, content: str, *ids: int) -> bytes:
    return event(content=content, tokens=list(ids), stop=False, tokens_predicted=count, tokens_evaluated=3)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def final(count: int, **changes: Any) -> bytes:
    fields = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "tokens_predicted": count}
    return event(**fields | {"tokens_evaluated": 3, "timings": {}, "generation_settings": {}} | changes)


def read(chunks: Iterable[bytes], **limits: Any) -> LlamaAnswer | None:
    """Read with a clock that moves on by one second a chunk; the request is sent at 0."""
    return read_stream(LlamaReader(), chunks, **limits)


def test_tokens_are_counted_not_chunks() -> None:
    counts: list[int] = []
    chunks = [b": ping\n\n", token(1, "a", 7), token(2, "b", 8) + token(3, "c", 9), token(5, "de", 10, 11), final(5)]
    answer = read(chunks, on_tokens=counts.append)
    assert answer is not None
    assert (answer.text, answer.token_ids, answer.n_predicted) == ("abcde", (7, 8, 9, 10, 11), 5)
    assert (answer.ttft_s, answer.decode_s) == (2.0, 2.0)
    assert answer.token_gap is None
    assert counts == [0, 1, 3, 5]


def test_what_comes_with_the_first_token_is_counted() -> None:
    answer = read([token(1, "a", 7) + token(2, "b", 8) + token(3, "c", 9), token(4, "d", 10), final(4)])
    assert answer is not None
    assert (answer.first_tokens, answer.decode_s) == (3, 1.0), "one token came in the second that was timed, not three"
    one_by_one = read([token(1, "a", 7), token(2, "b", 8), final(2)])
    assert one_by_one is not None
    assert one_by_one.first_tokens == 1


def test_log_probabilities_and_the_end_of_thinking_are_kept() -> None:
    """A drafted token is listed without a likeliest beside its 0: the server computed none."""
    listed = [{"id": 7, "logprob": -0.5, "top_logprobs": [{}]}]
    absent: list[dict[str, Any]] = [{"id": 8, "logprob": 0.0, "top_logprobs": []}]
    shared = {"stop": False, "tokens_evaluated": 3}
    chunks = [
        event(content="<think>a</", tokens=[7], tokens_predicted=1, completion_probabilities=listed, **shared),
        event(content="think>", tokens=[8], tokens_predicted=2, completion_probabilities=absent, **shared),
        token(3, "b>", 9),
        final(3),
    ]
    answer = read(chunks)
    assert answer is not None
    assert (answer.logprobs, answer.thought) == ((-0.5, None), (2, 1.0))


def test_tokens_that_follow_at_once_are_a_burst() -> None:
    reader = LlamaReader()
    reader.begin(0.0)
    for count, now in enumerate([1.0, 2.0, 2.01, 2.02, 3.5, 3.5], 1):
        reader.feed(token(count, "a", 7), now)
    reader.feed(final(6), 9.0)
    assert reader.burst_gaps_s == [1.0, 1.48], "tokens of a round that arrive 10 ms apart come together"


def test_missing_ids_are_reported_and_the_last_token_is_timed_by_the_end() -> None:
    answer = read([token(1, "a", 7), token(4, "🦙", 9), final(6)])
    assert answer is not None
    assert answer.token_ids is None
    assert answer.token_gap == "the stream lacks 4 of 6 token ids (characters of several tokens)"
    assert answer.streamed_ids == ((0, 7), (3, 9))
    assert answer.gaps == (Gap(position=1, count=2, text="🦙", last_ids=(9,)),)
    assert answer.decode_s == 2.0


def test_a_server_that_counts_a_round_with_its_first_token() -> None:
    rounds = [token(1, "a", 7), token(3, "b", 8) + token(3, "c", 9), token(6, "d", 1) + token(6, "e", 2)]
    complete = read([*rounds, token(6, "f", 3), final(6)])
    assert complete is not None
    assert (complete.token_ids, complete.n_predicted) == ((7, 8, 9, 1, 2, 3), 6)
    assert complete.counted and not complete.gaps
    cut = read([*rounds, final(6)])  # its last round ended past the limit
    assert cut is not None
    assert (cut.n_predicted, cut.counted) == (5, False)


def test_a_last_round_that_is_cut_shows_only_where_the_server_is_known() -> None:
    chunks = [token(1, "a", 7), token(3, "b", 8), final(3)]
    reader = LlamaReader(3, by_round=True)
    answer = read_stream(reader, chunks)
    assert answer is not None
    assert (answer.n_predicted, answer.counted, answer.streamed_ids) == (2, False, ((0, 7), (1, 8)))


def test_an_answer_without_any_token_ids() -> None:
    answer = read([final(2)])
    assert answer is not None
    assert (answer.ttft_s, answer.decode_s, answer.token_ids) == (1.0, 0.0, None)


@pytest.mark.parametrize(("stop_type", "reason"), [("eos", "stop"), ("word", "stop"), ("limit", "length")])
def test_why_it_ended(stop_type: str, reason: str) -> None:
    answer = read([token(1, "a", 0), final(1, stop_type=stop_type)])
    assert answer is not None
    assert answer.finish_reason == reason


def test_bytes_may_be_cut_anywhere() -> None:
    data = token(1, "日本", 5) + token(2, "🦙", 6) + final(2)
    answer = read([data[i : i + 1] for i in range(len(data))])
    assert answer is not None
    assert (answer.text, answer.token_ids) == ("日本🦙", (5, 6))


def test_an_end_without_the_last_event_is_no_answer() -> None:
    assert read([token(1, "a", 7)]) is None
    assert read([]) is None


@pytest.mark.parametrize(
    ("chunk", "kind", "message"),
    [
        (b'data: {"content": \n\n', "protocol", "cannot be read"),
        (b'data: {"content": "\xff", "tokens": [1], "stop": false}\n\n', "protocol", "UnicodeDecodeError"),
        (b"data: 3\n\n", "protocol", "cannot be read"),
        (b"data: null\n\n", "protocol", "cannot be read"),
        (b"data: [DONE]\n\n", "protocol", "DONE"),
        (token(1, "a")[:-3] + b"\n\n", "protocol", "cannot be read"),
        (event(content=3, tokens=[1], stop=False, tokens_predicted=1) + final(1), "protocol", "TypeError"),
        (event(content="", tokens=["x"], stop=False, tokens_predicted=1) + final(1), "protocol", "TypeError"),
        (event(content="", tokens=1, stop=False, tokens_predicted=1), "protocol", "TypeError"),
        (final(1, stop_type="none"), "protocol", "unknown reason: none"),
        (final(1, timings=None), "protocol", "TypeError"),
        (final(1, tokens_predicted=float("inf")), "protocol", "TypeError"),
        (b"data: " + b"[" * 100_000 + b"\n\n", "protocol", "ValueError"),
        (event(error={"code": 500, "message": "Compute \x1b[1merror"}), "http", "Compute error"),
        (b'error: {"code": 500, "message": "boom"}\n\n', "http", "boom"),
    ],
)
def test_what_is_no_answer(chunk: bytes, kind: str, message: str) -> None:
    with pytest.raises(EngineError, match=message.replace("[", r"\[")) as caught:
        read([token(1, "a", 7), chunk])
    assert caught.value.kind == kind


def test_an_answer_that_takes_too_long() -> None:
    with pytest.raises(EngineError, match="longer than 3 s; 4 tokens") as caught:
        read([token(n, "a", n) for n in range(1, 9)], timeout_s=3.0)
    assert caught.value.kind == "timeout"


def test_the_message_of_an_error_object() -> None:
    assert error_in({"error": {"message": "m"}}) == "m"
    assert error_in({"error": "plain"}) == "plain"
    assert error_in({"code": 1, "message": "m"}) == "m"
    assert error_in({"content": "x"}) is None
    assert error_in([1]) is None


def timed(count: int, at_ms: float, drafted: int = 0) -> bytes:
    """A token's event with what `timings_per_token` adds; `drafted`: by the answer so far."""
    timings = {"prompt_ms": 3.0, "predicted_n": count, "predicted_ms": at_ms} | (
        {"draft_n": drafted} if drafted else {}
    )
    return event(content="a", tokens=[7], stop=False, tokens_predicted=count, tokens_evaluated=3, timings=timings)


def test_the_times_of_steps_are_read_where_events_have_them() -> None:
    shown = [(1, 0.004, 0), (2, 5.0, 4), (3, 5.0, 4), (6, 6.5, 4)]  # the last of them a character of three tokens
    end = final(7, timings={"predicted_ms": 8.5, "draft_n": 6})
    answer = read([*(timed(*each) for each in shown), end])
    assert answer is not None
    assert answer.token_times == (*shown, (7, 8.5, 6))
    without = read([token(1, "a", 7), token(2, "b", 8), final(2, timings={"predicted_ms": "8.5"})])
    assert without is not None
    assert without.token_times == ()


def test_ids_agree_where_the_limit_cut_the_last_character_in_two() -> None:
    """The stream withholds a character that the same token begins, too: it is sent with what it is followed by."""
    streamed = Completion("ab", None, 3, "length", 3, 0.1, 0.1, 0.2, None, None, Ledger())
    for text, agrees in [("ab", True), ("ab\ufffd", True), ("abー\ufffd", True), ("abー", False), ("a\ufffd", False)]:
        ids = agreeing_ids({"content": text, "tokens": [4, 5, 6]}, streamed, ((0, 4), (1, 5)))
        assert ids == ((4, 5, 6) if agrees else None), text
