"""Following one streamed answer: its events, when they came, and the limits that it must keep."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator

from benchctl.engines.common.log import clean
from benchctl.engines.common.sse import SseParser
from benchctl.errors import EngineError


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
        self.first_tokens = 0
        """How many came at the time of the first."""

    def tokens(self, count: int = 1) -> None:
        """Note that tokens came with the event at hand; 0 for the end of an answer, which may be a token."""
        self.first = self.now if self.first is None else self.first
        self.last = self.now
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
    chunks: Iterable[bytes], watch: Stopwatch, timeout_s: float, clock: Callable[[], float] = time.perf_counter
) -> Iterator[dict[str, object]]:
    """Yield the JSON objects of a stream until its `[DONE]` or its end; `watch.now` is when each came.

    Raises EngineError: `protocol` for what is no such event, `http` for an error that the engine sends in the middle
    of an answer, `timeout` for an answer that takes longer than `timeout_s`.
    """
    parser = SseParser()
    for chunk in chunks:
        watch.now = clock()
        try:
            payloads = parser.feed(chunk)
        except ValueError as error:
            raise protocol_error(f"The engine's stream cannot be read: {error}.") from error
        for payload in payloads:
            if payload.strip() == b"[DONE]":
                return
            yield _event(payload)
        if watch.now - watch.started > timeout_s:
            raise EngineError(
                f"The answer took longer than {timeout_s:g} s.",
                kind="timeout",
                fix="Raise engine.request_timeout_s or lower sampling.max_tokens.",
            )


def unreadable(event: object, error: Exception) -> EngineError:
    """Return the error for an event that lacks what its protocol promises."""
    shown = clean(json.dumps(event) if not isinstance(event, str) else event)[:200]
    return protocol_error(f"The engine sent an event that cannot be read ({type(error).__name__}): {shown}")


def _event(payload: bytes) -> dict[str, object]:
    try:
        event = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise unreadable(payload[:200].decode("utf-8", "replace"), error) from error
    if not isinstance(event, dict):
        raise unreadable(event, TypeError())
    if event.get("error") is not None or {"code", "message"} <= event.keys():
        raise EngineError(f"The engine gave up in the middle of the answer: {error_in(event)}", kind="http")
    return event
