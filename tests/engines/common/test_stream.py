from __future__ import annotations

import pytest

from benchctl.engines.common import wire
from benchctl.engines.common.stream import SseParser

STREAM = 'data: {"a": 1}\n\n: ping\n\ndata:zwei 🦙\r\n\r\nevent: x\rid: 7\rdata: l1\rdata: l2\r\rerror: bad\n\n'
PAYLOADS = [b'{"a": 1}', "zwei 🦙".encode(), b"l1\nl2", b"bad"]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
def test_events_are_the_same_however_the_bytes_are_cut(size: int) -> None:
    data, parser = STREAM.encode(), SseParser()
    got = [payload for start in range(0, len(data), size) for payload in parser.feed(data[start : start + size])]
    assert got == PAYLOADS


def test_a_cut_crlf_is_one_line_end() -> None:
    parser = SseParser()
    assert parser.feed(b"data: a\r") == []
    assert parser.feed(b"\ndata: b\r\n\r") == [b"a\nb"]
    assert parser.feed(b"\n") == []
    assert parser.feed(b"") == []


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
def test_a_byte_order_mark_is_skipped_at_the_beginning_alone(size: int) -> None:
    data, parser = "\ufeffdata: a\n\ndata: \ufeffb\n\n".encode(), SseParser()
    got = [payload for start in range(0, len(data), size) for payload in parser.feed(data[start : start + size])]
    assert got == [b"a", "\ufeffb".encode()]


def test_an_unfinished_event_is_none() -> None:
    parser = SseParser()
    assert parser.feed(b"data: one\n\ndata: two\n") == [b"one"]


def test_comments_and_empty_lines_give_nothing() -> None:
    assert SseParser().feed(b":\n\n: keep-alive\n\n\n\nretry: 5\n\n") == []


def test_only_one_leading_space_is_dropped() -> None:
    assert SseParser().feed(b"data:  x\n\ndata:y\n\ndata:\n\n") == [b" x", b"y", b""]


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_EVENT_BYTES", 100)
    parser = SseParser()
    with pytest.raises(ValueError, match="longer than"):
        for _ in range(20):
            parser.feed(b"x" * 10)
