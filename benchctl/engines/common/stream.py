"""Following one streamed answer: its server-sent events, when they came, and the limits that it must keep.

Events are read after https://html.spec.whatwg.org/multipage/server-sent-events.html, over raw bytes: lines end with
LF, CR or CRLF, several `data` lines of one event are joined with LF, lines that start with a colon are comments, and an
event that the stream's end cuts off is not an event. Bytes stay bytes, so that a character split between two chunks
needs no care. The field `error`, which some engines send, is handed out like `data`; other fields are dropped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from benchctl.engines.base import Progress
from benchctl.engines.common.log import clean
from benchctl.errors import EngineError

MAX_EVENT_BYTES = 32 * 2**20
"""A longer event is no answer of a language model."""


class SseParser:
    """Feed it chunks as they arrive; it returns the payloads of the events that they complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take one chunk; return the payloads that are complete now. Raises ValueError for an endless event."""
        if self._after_cr and chunk.startswith(b"\n"):  # The second half of a CRLF that the chunks' border split.
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        text = self._rest + chunk
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = rest
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("an event is longer than 32 MiB")
        payloads: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line.startswith(b"error:"):
                self._data.append(line[6:].lstrip(b" "))
            elif not line and self._data:
                payloads.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                self._data.clear()
        return payloads


def protocol_error(what: str, fix: str = "Read the engine's log; is this really such a server?") -> EngineError:
    """Return the error for an answer that is not what the server's protocol says."""
    return EngineError(what, kind="protocol", fix=fix)


def error_in(payload: object) -> str | None:
    """Return the message of an error object as these servers send it, or `None` when there is none."""
    if not isinstance(payload, dict):
        return None
    error = payload.get("error", payload.get("detail"))
    if error is None and {"code", "message"} <= payload.keys():
        error = payload
    if not error:
        return None
    message = error.get("message", error) if isinstance(error, dict) else error
    return clean(str(message))[:500]


class Stopwatch:
    """Times the tokens of one answer; `started` is the clock's value when the request was sent."""

    def __init__(self, started: float) -> None:
        self.started = self.now = started
        self.first: float | None = None
        self.last: float | None = None
        self.count = 0
        """Tokens so far, or pieces of text where the server tells no more."""
        self.first_tokens = 0
        """How many came at the time of the first."""

    def tokens(self, count: int = 1) -> None:
        """Note that tokens came with the event at hand; 0 for the end of an answer, which may be a token."""
        self.first = self.now if self.first is None else self.first
        self.last = self.now
        self.count += count
        if self.now == self.first:
            self.first_tokens += count

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token; to the end of an answer that has none."""
        return (self.now if self.first is None else self.first) - self.started

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return 0.0 if self.first is None or self.last is None else self.last - self.first


def events(
    chunks: Iterable[bytes],
    watch: Stopwatch,
    timeout_s: float,
    clock: Callable[[], float] = time.perf_counter,
    *,
    on_tokens: Progress | None = None,
    done: bytes | None = b"[DONE]",
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a stream until `done` or its end; `watch.now` is when each came.

    `on_tokens` is told `watch.count` after every chunk. Raises EngineError: `protocol` for what is no such event,
    `http` for an error that the engine sends in the middle of an answer, `timeout` for an answer that takes longer than
    `timeout_s`.
    """
    parser = SseParser()
    for chunk in chunks:
        watch.now = clock()
        try:
            payloads = parser.feed(chunk)
        except ValueError as error:
            raise protocol_error(f"The engine's stream cannot be read: {error}.") from error
        for payload in payloads:
            if done is not None and payload.strip() == done:
                return
            yield _event(payload)
        if watch.now - watch.started > timeout_s:
            raise EngineError(
                f"The answer took longer than {timeout_s:g} s; {watch.count} tokens (or pieces of text) had come.",
                kind="timeout",
                fix="Raise engine.request_timeout_s or lower sampling.max_tokens.",
            )
        if on_tokens is not None:
            on_tokens(watch.count)


def unreadable(event: object, error: Exception) -> EngineError:
    """Return the error for an event that lacks what its protocol promises."""
    shown = clean(json.dumps(event) if not isinstance(event, str) else event)[:200]
    return protocol_error(f"The engine sent an event that cannot be read ({type(error).__name__}): {shown}")


def _event(payload: bytes) -> dict[str, Any]:
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise unreadable(payload[:200].decode("utf-8", "replace"), error) from error
    if not isinstance(event, dict):
        raise unreadable(event, TypeError())
    if event.get("error") is not None or {"code", "message"} <= event.keys():
        raise EngineError(f"The engine gave up in the middle of the answer: {error_in(event)}", kind="http")
    return event
