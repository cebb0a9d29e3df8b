"""Reading one streamed answer of `/completion`: tokens, times and the final report, cheaply.

Every event before the last carries a piece of text and the ids of the tokens in it; the last one (`stop: true`)
carries counts, timings and the settings that were in force. A piece is sent only once its text is whole UTF-8, and the
tokens of a character that came in several are then missing from the stream; `tokens_predicted` counts them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from benchctl.data.record import FinishReason
from benchctl.engines.base import Progress
from benchctl.engines.common.log import clean
from benchctl.engines.common.stream import Stopwatch, events, protocol_error, unreadable

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
    first_tokens: int
    """How many tokens came at `ttft_s`."""
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
    watch = Stopwatch(started)
    pieces: list[str] = []
    known: list[tuple[int, int]] = []
    gaps: list[Gap] = []
    count = 0
    for event in events(chunks, watch, timeout_s, clock, done=None, on_tokens=on_tokens):
        try:
            if event["stop"]:
                last = event["tokens_predicted"]
                if last != count or not count:
                    watch.tokens(last - count)  # the end is all that shows of them
                return _finish(event, "".join(pieces), known, gaps, watch)
            ids, content = event["tokens"], event["content"]
            pieces.append(content)
            before, count = count, event["tokens_predicted"]
            start = count - len(ids)
            known.extend(enumerate(ids, start))
            if start > before:
                gaps.append(Gap(before, start - before, content, tuple(ids)))
            watch.tokens(count - before)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise unreadable(event, error) from error
    return None


def _finish(
    event: Mapping[str, Any],
    text: str,
    known: list[tuple[int, int]],
    gaps: list[Gap],
    watch: Stopwatch,
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
        ttft_s=watch.ttft_s,
        decode_s=watch.decode_s,
        first_tokens=max(1, watch.first_tokens),
        timings=event["timings"],
        settings=event["generation_settings"],
        gaps=tuple(gaps),
    )
