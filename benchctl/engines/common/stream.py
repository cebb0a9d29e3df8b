"""Following a streamed answer: its server-sent events, when their tokens came, and the limits that it must keep.

Events are read after https://html.spec.whatwg.org/multipage/server-sent-events.html, over raw bytes: lines end with
LF, CR or CRLF, several `data` lines of an event are joined with LF, lines that start with a colon are comments, and an
event that the stream's end cuts off is not an event. A byte order mark at the beginning is skipped. Bytes stay bytes,
so that a character split between two chunks needs no care. The field `error`, which some engines send, is handed out
like `data`; other fields are dropped.
"""

from __future__ import annotations

import codecs
import itertools
import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

from benchctl.engines.base import Progress
from benchctl.engines.common import wire
from benchctl.engines.common.log import clean
from benchctl.engines.common.wire import decode, error_in, protocol_error
from benchctl.errors import EngineError

_LINE_BYTES = 64
"""Memory that a line takes in addition to its bytes."""

_NON_TOKEN_BYTES = 16 * 2**20
"""Byte allowance for non-token events, such as pings and a final report that repeats the prompt."""

OVERRUN = 64
"""So many tokens more than requested are still accepted where they come with their ids, since an engine may not cut a
round of speculation at the limit. The comparison with the baseline shows such answers."""

END_OF_THINKING = "</think>"
BURST = 0.1
"""Tokens belong to one burst where the gap between them is shorter than this share of the answer's typical gap. The
typical gap is the one above which half of the time passes."""

Answer = TypeVar("Answer")


class SseParser:
    """Feed it chunks as they arrive; it returns the payloads of the events that they complete."""

    def __init__(self) -> None:
        self._unfinished = b""
        self._first_line = True
        self._data: list[bytes] = []
        self._bytes = 0
        """The size of the lines in `_data`."""
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take a chunk; return the payloads that are complete now. Raises ValueError for an endless event."""
        if self._after_cr and chunk.startswith(b"\n"):  # The second half of a CRLF that the chunks' border split.
            chunk = chunk[1:]
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        text = self._unfinished + chunk
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, unfinished = text.split(b"\n")
        self._unfinished = unfinished
        if self._first_line and lines:
            self._first_line = False
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        payloads: list[bytes] = []
        for line in lines:
            if line.startswith(b"data:"):
                self._keep(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif not line:
                if self._data:
                    payloads.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
                    self._data.clear()
                    self._bytes = 0
            elif line.startswith(b"error:"):
                self._keep(line[6:].lstrip(b" "))
        if len(unfinished) + self._bytes > wire.MOST_EVENT_BYTES:
            raise ValueError("an event is longer than 32 MiB")
        return payloads

    def _keep(self, data: bytes) -> None:
        self._data.append(data)
        self._bytes += len(data) + _LINE_BYTES


class AnswerReader(ABC, Generic[Answer]):
    """Takes a streamed answer as it comes. An adapter defines what an event means, and what the answer is.

    Times are seconds of `time.perf_counter`. While the answer comes, `clock` is when the bytes at hand were received.
    """

    done: ClassVar[bytes | None] = b"[DONE]"
    """The payload that ends a stream; `None` where an event of the answer does."""
    most_bytes: ClassVar[int] = 256 * 2**20
    """A longer stream is no answer of a language model."""
    bytes_a_token: ClassVar[int] = 64 * 2**10
    """The same for a stream with more bytes than this for each requested token, `_NON_TOKEN_BYTES` not counted."""

    def __init__(self, most_tokens: float = math.inf) -> None:
        """`most_tokens`: what was requested; an answer of more, or of `most_ids`, is refused."""
        self.most_tokens = max(1, most_tokens)  # a token comes even where none was requested
        self.most_ids = self.most_tokens + OVERRUN
        self._most_bytes = min(self.most_bytes, _NON_TOKEN_BYTES + self.bytes_a_token * self.most_tokens)
        self.clock = self.started = 0.0
        self.over = False
        """Whether the whole answer has come."""
        self.received = 0
        """Bytes so far."""
        self.count = 0
        """Tokens so far, or pieces of text where the server reports no ids."""
        self.first_tokens = 0
        """How many came at the time of the first."""
        self.thought: tuple[int, float] | None = None
        """Where thinking ended: tokens so far, and seconds from the first token to that one."""
        self._arrivals: list[float] = []
        """The times at which bytes with tokens were received."""
        self._first: float | None = None
        self._last: float | None = None
        self._parser = SseParser()
        self.unstreamed = b""
        """The beginning of a body in which no event has come; empty once one has."""
        self._streams = False
        self._silence_s = self._timeout_s = math.inf
        self._on_tokens: Progress | None = None
        self._reported: int | None = None

    def begin(
        self,
        started: float,
        *,
        silence_s: float = math.inf,
        timeout_s: float = math.inf,
        on_tokens: Progress | None = None,
    ) -> None:
        """Note when the request was sent, how long it may go without a token and how long it may take in all."""
        self.clock = self.started = started
        self._silence_s, self._timeout_s, self._on_tokens = min(silence_s, timeout_s), timeout_s, on_tokens

    def feed(self, chunk: bytes, now: float) -> None:
        """Take bytes that were received at `now`.

        `on_tokens` is called with `count` after them, when it has grown. Raises EngineError: `protocol` for what is no
        such event, `http` for an error that the engine sends in the middle of an answer, `timeout` as `check_time`.
        """
        self.clock = now
        self.received += len(chunk)
        if self.received > self._most_bytes:
            raise protocol_error(f"The engine's stream is longer than {self._most_bytes / 2**20:.0f} MiB.")
        try:
            payloads = self._parser.feed(chunk)
        except ValueError as error:
            raise protocol_error(f"The engine's stream cannot be read: {error}.") from error
        if not self._streams:
            self._streams = bool(payloads)
            self.unstreamed = b"" if payloads else (self.unstreamed + chunk)[: wire.MOST_ERROR_BYTES]
        for payload in payloads:
            if self.done is not None and payload.strip() == self.done:
                self.over = True
            else:
                self.payload(payload)
            if self.over:
                break
        if not self.over:
            self.check_time(now)
        if self._on_tokens is not None and self._reported != self.count:
            self._reported = self.count
            self._on_tokens(self.count)

    def payload(self, payload: bytes) -> None:
        """Take the text of an event."""
        try:
            event = decode(payload)
        except ValueError as error:
            raise unreadable(payload, error) from error
        if not isinstance(event, dict):
            raise unreadable(payload, TypeError())
        if event.get("error") is not None or {"code", "message"} <= event.keys():
            raise EngineError(f"The engine aborted the answer: {error_in(event)}", kind="http")
        try:
            self.event(event)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
            raise unreadable(payload, error) from error

    def too_many(self, count: int) -> EngineError:
        """Return the error of an answer of more tokens than were requested."""
        requested = f"{self.most_tokens:.0f} {'was' if self.most_tokens == 1 else 'were'} requested"
        return protocol_error(f"The engine counts {str(count)[:20]} tokens; {requested}.")

    @abstractmethod
    def event(self, event: dict[str, Any]) -> None:
        """Take an event; what an event lacks may raise as it does by itself. Sets `over` with the last event."""

    @abstractmethod
    def answer(self) -> Answer | None:
        """Return the whole answer; `None` where the stream ended in its middle. Raises EngineError."""

    def tokens(self, count: int = 1) -> None:
        """Note that tokens came with the event at hand; 0 for the end of an answer, which may be a token."""
        now = self.clock
        if self._first is None:
            self._first = now
        self._last = now
        self.count += count
        if count and (not self._arrivals or self._arrivals[-1] != now):
            self._arrivals.append(now)
        if now == self._first:
            self.first_tokens += count

    def thinks_until_now(self) -> None:
        """Note that the thinking ended with the last tokens that came."""
        if self.thought is None and self._first is not None and self._last is not None:
            self.thought = self.count, self._last - self._first

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token; to the end of an answer that has none."""
        return (self.clock if self._first is None else self._first) - self.started

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return 0.0 if self._first is None or self._last is None else self._last - self._first

    @property
    def burst_gaps_s(self) -> list[float]:
        """Seconds between bursts: an engine may send the tokens of a round one by one, so `BURST` tells these apart."""
        gaps = [round(later - earlier, 6) for earlier, later in itertools.pairwise(self._arrivals)]
        passed, total = 0.0, sum(gaps)
        for typical in sorted(gaps, reverse=True):
            passed += typical
            if 2 * passed >= total:
                return [gap for gap in gaps if gap > BURST * typical]
        return []

    @property
    def due(self) -> float:
        """The time by which the next token, or the end, must have come."""
        since = self.started if self._last is None else self._last
        return min(since + self._silence_s, self.started + self._timeout_s)

    def check_time(self, now: float) -> None:
        """Raise EngineError (`timeout`) once an answer takes too long, or too long without a token; pings are none."""
        if now <= self.due:
            return
        if now - self.started > self._timeout_s:
            raise EngineError(
                f"The answer took longer than {self._timeout_s:g} s; {self.count} tokens (or pieces of text) had come.",
                kind="timeout",
                fix="Raise engine.request_timeout_s or lower sampling.max_tokens.",
            )
        since = "since the request was sent" if self._last is None else f"after {self.count} tokens (or pieces of text)"
        raise EngineError(
            f"The engine sent nothing for {self._silence_s:g} s {since}: no token (pings do not count).",
            kind="timeout",
            fix="Raise engine.stall_timeout_s if the engine is that slow: the limit covers the wait for a slot and the "
            "reading of the prompt, too. Else read the engine's log.",
        )


def unreadable(payload: bytes, error: Exception) -> EngineError:
    """Return the error for an event that lacks what its protocol promises."""
    rendered = clean(payload[:400].decode("utf-8", "replace"))[:200]
    return protocol_error(f"The engine sent an event that cannot be read ({type(error).__name__}): {rendered}")
