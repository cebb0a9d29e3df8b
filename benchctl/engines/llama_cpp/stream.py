"""Reading one streamed answer of `/completion`: tokens, times and the final report, cheaply.

Every event before the last carries a piece of text and the ids of the tokens in it; the last one (`stop: true`)
carries counts, timings and the settings that were in force. A piece is sent only once its text is whole UTF-8, and the
tokens of a character that came in several are then missing from the stream; `tokens_predicted` counts them.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchctl.data.record import FinishReason
from benchctl.engines.base import Progress
from benchctl.engines.common.answer_clock import error_in, protocol_error
from benchctl.engines.common.log import clean
from benchctl.engines.common.sse import SseParser
from benchctl.errors import EngineError

_FINISH: dict[str, FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass(frozen=True)
class Gap:
    """Token ids that the stream withheld, and what it says about them."""

    position: int
    count: int
    text: str
    """What they and the tokens in `known` spell together."""
    known: tuple[int, ...]
    """The ids that came with the text, the last ones of it."""


@dataclass(frozen=True)
class Answer:
    """One answer as it was received. Times are seconds since the request was sent."""

    text: str
    known_ids: tuple[tuple[int, int], ...]
    """(position, id) of every token whose id came with the stream."""
    n_predicted: int
    prompt_tokens: int
    finish_reason: FinishReason
    ttft_s: float
    decode_s: float
    timings: Mapping[str, Any]
    settings: Mapping[str, Any]
    gaps: tuple[Gap, ...] = ()
    """Only those before the last text: tokens of a character that the answer's end cut off spell nothing."""

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """Every generated id, or `None` when the stream withheld some."""
        if len(self.known_ids) != self.n_predicted:
            return None
        return tuple(token for _, token in self.known_ids)

    @property
    def token_gap(self) -> str | None:
        """Why `token_ids` is `None`."""
        missing = self.n_predicted - len(self.known_ids)
        if not missing:
            return None
        return f"the stream withheld {missing} of {self.n_predicted} token ids (characters of several tokens)"


def read_answer(
    chunks: Iterable[bytes],
    started: float,
    timeout_s: float,
    on_tokens: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Answer | None:
    """Read a whole answer; `None` when the stream ended before its last event.

    `started` is the clock's value when the request was sent. Raises EngineError (`protocol`, `http`, `timeout`).
    """
    parser = SseParser()
    pieces: list[str] = []
    known: list[tuple[int, int]] = []
    gaps: list[Gap] = []
    count = 0
    first_at = last_at = started
    for chunk in chunks:
        now = clock()
        try:
            payloads = parser.feed(chunk)
        except ValueError as error:
            raise protocol_error(f"The engine's stream cannot be read: {error}.") from error
        for payload in payloads:
            try:
                event = json.loads(payload)
                if event["stop"]:
                    last_at = last_at if count == event["tokens_predicted"] else now
                    first_at = first_at if count else now
                    return _finish(event, "".join(pieces), known, gaps, first_at - started, last_at - first_at)
                ids = event["tokens"]
                pieces.append(event["content"])
                before, count = count, event["tokens_predicted"]
                start = count - len(ids)
                known.extend(enumerate(ids, start))
                if start > before:
                    gaps.append(Gap(before, start - before, event["content"], tuple(ids)))
            except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
                raise _refused(payload, error) from error
            if first_at == started:
                first_at = now
            last_at = now
        if now - started > timeout_s:
            raise EngineError(
                f"The answer took longer than {timeout_s:g} s; {count} tokens had come.",
                kind="timeout",
                fix="Raise engine.request_timeout_s or lower sampling.max_tokens.",
            )
        if on_tokens is not None:
            on_tokens(count)
    return None


def _refused(payload: bytes, error: Exception) -> EngineError:
    """Return what an event that cannot be read means: an error of the engine's, or no protocol at all."""
    try:
        message = error_in(json.loads(payload))
    except (ValueError, RecursionError):
        message = None
    if message is not None:
        return EngineError(f"The engine gave up in the middle of the answer: {message}", kind="http")
    shown = clean(payload[:200].decode("utf-8", "replace"))
    return protocol_error(f"The engine sent an event that cannot be read ({type(error).__name__}): {shown}")


def _finish(
    event: Mapping[str, Any],
    text: str,
    known: list[tuple[int, int]],
    gaps: list[Gap],
    ttft_s: float,
    decode_s: float,
) -> Answer:
    finish = _FINISH.get(event["stop_type"])
    if finish is None:
        raise protocol_error(f"The answer ended for an unknown reason: {clean(str(event['stop_type']))[:80]}")
    if not isinstance(event["timings"], dict) or not isinstance(event["generation_settings"], dict):
        raise TypeError("timings and generation_settings are objects")
    if not all(isinstance(token, int) for _, token in known):
        raise TypeError("token ids are numbers")
    return Answer(
        text=text + event["content"],
        known_ids=tuple(known),
        n_predicted=int(event["tokens_predicted"]),
        prompt_tokens=int(event["tokens_evaluated"]),
        finish_reason=finish,
        ttft_s=ttft_s,
        decode_s=decode_s,
        timings=event["timings"],
        settings=event["generation_settings"],
        gaps=tuple(gaps),
    )
