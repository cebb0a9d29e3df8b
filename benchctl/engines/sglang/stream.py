"""Reading one streamed answer of `/generate`: every event carries the whole answer so far, several tokens longer.

A verify step's tokens come in one event, and a slow client gets several steps in one: tokens are counted by their ids.
(SGLang 0.5.23, `tokenizer_manager.py`: `text` and `output_ids` are cumulative unless the server was started with
`--incremental-streaming-output`; figures of speculation stand in the last event's `meta_info`.)
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
from benchctl.errors import EngineError

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True)
class GeneratedAnswer:
    """One answer as it was received. Times are seconds since the request was sent."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    ttft_s: float
    decode_s: float
    prompt_tokens: int
    meta: Mapping[str, Any]
    """`meta_info` of the last event."""
    first_tokens: int = 1
    """How many tokens came at `ttft_s`."""


def read_generated(
    chunks: Iterable[bytes],
    started: float,
    timeout_s: float,
    on_tokens: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> GeneratedAnswer | None:
    """Read a whole answer; `None` when the stream ended before its `finish_reason`.

    `started` is the clock's value when the request was sent. Raises EngineError (`protocol`, `http`, `timeout`).
    """
    watch = Stopwatch(started)
    ids: list[int] = []
    for event in events(chunks, watch, timeout_s, clock, on_tokens=on_tokens):
        try:
            text, so_far, meta = event["text"], event["output_ids"], event["meta_info"]
            if not isinstance(text, str) or not isinstance(so_far, list) or not isinstance(meta, dict):
                raise TypeError("text, output_ids and meta_info")
            if so_far[: len(ids)] != ids or not all(isinstance(one, int) for one in so_far):
                raise protocol_error("The engine took tokens back that it had sent.")
            if len(so_far) > len(ids):
                watch.tokens(len(so_far) - len(ids))
                ids = so_far
            finish = meta.get("finish_reason")
            if finish is not None:
                return _finished(text, ids, finish, meta, watch)
        except (KeyError, TypeError, AttributeError) as error:
            raise unreadable(event, error) from error
    return None


def _finished(
    text: str, ids: list[int], finish: Mapping[str, Any], meta: Mapping[str, Any], watch: Stopwatch
) -> GeneratedAnswer:
    kind = finish["type"]
    if kind == "abort":
        raise EngineError(
            f"The engine gave up: {clean(str(finish.get('message', 'without a word')))[:500]}", kind="http"
        )
    if kind not in _FINISH:
        raise protocol_error(f"The answer ended for an unknown reason: {clean(str(kind))[:80]}")
    counted, asked = meta["completion_tokens"], meta["prompt_tokens"]
    if counted != len(ids):
        raise protocol_error(f"{len(ids)} tokens were received, and the engine counts {counted}.")
    first = max(1, watch.first_tokens)
    return GeneratedAnswer(text, tuple(ids), _FINISH[kind], watch.ttft_s, watch.decode_s, int(asked), meta, first)
