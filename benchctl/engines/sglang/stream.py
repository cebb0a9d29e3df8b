"""Reading one streamed answer of `/generate`: every event carries the whole answer so far, several tokens longer.

A verify step's tokens come in one event, and a slow client gets several steps in one: tokens are counted by their ids.
(SGLang 0.5.23, `tokenizer_manager.py`: `text` and `output_ids` are cumulative unless the server was started with
`--incremental-streaming-output`; figures of speculation stand in the last event's `meta_info`.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from benchctl.data.record import FinishReason
from benchctl.engines.common.log import clean
from benchctl.engines.common.stream import AnswerReader, protocol_error
from benchctl.engines.common.values import TokenId, count_in, ids_in
from benchctl.errors import EngineError
from benchctl.text import one_line

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


class _Meta(msgspec.Struct):
    finish_reason: None


class _Step(msgspec.Struct):
    """What every event but the last holds; see `GenerateReader.payload`."""

    text: msgspec.Raw
    output_ids: msgspec.Raw
    meta_info: _Meta
    error: None = None


_step_in = msgspec.json.Decoder(_Step).decode
_QUOTE = ord('"')
_ids_in = msgspec.json.Decoder(list[TokenId]).decode


class GenerateReader(AnswerReader[GeneratedAnswer]):
    """Reads a whole answer."""

    most_bytes = 4 * 2**30  # every event repeats the answer so far
    bytes_a_token = 2**20

    def __init__(self, most_tokens: float = math.inf) -> None:
        super().__init__(most_tokens)
        self._ids: list[int] = []
        self._known = b"["
        """The ids so far as the last step wrote them, without the bracket at their end."""
        self._answer: GeneratedAnswer | None = None

    def payload(self, payload: bytes) -> None:
        """Take one event: a step's at once, any other as a whole."""
        try:
            step = _step_in(payload)
            added = self._added(bytes(step.output_ids)) if memoryview(step.text)[0] == _QUOTE else None
        except (ValueError, RecursionError):
            added = None
        if added is None:
            super().payload(payload)
        elif added:
            self.tokens(len(added))
            self._ids += added
            if self.count > self.most_tokens:
                raise self.too_many(self.count)

    def _added(self, written: bytes) -> list[int] | None:
        """Return the ids behind those that are known; `None` where the beginning is written in another way.

        What every event repeats is compared as bytes: to read 256 ids again for one more would take most of the time.
        """
        known = self._known
        if not written.startswith(known) or not written.endswith(b"]"):
            return None
        rest = written[len(known) : -1].lstrip()
        if self._ids and rest:
            if not rest.startswith(b","):
                return None
            rest = rest[1:]
        added = _ids_in(b"[" + rest + b"]")
        self._known = written[:-1].rstrip()
        return added

    def event(self, event: dict[str, Any]) -> None:
        """Take one event."""
        text, so_far, meta = event["text"], ids_in(event["output_ids"]), event["meta_info"]
        if not isinstance(text, str) or so_far is None or not isinstance(meta, dict):
            raise TypeError("text, output_ids and meta_info")
        self._go_on(so_far)
        finish = meta.get("finish_reason")
        if finish is not None:
            self._answer = self._finished(text, finish, meta)
            self.over = True

    def _go_on(self, so_far: list[int]) -> None:
        before = len(self._ids)
        if so_far[:before] != self._ids:
            raise protocol_error("The engine retracted tokens that it had sent.")
        if len(so_far) > before:
            self.tokens(len(so_far) - before)
            self._ids = so_far
            self._known = b"-"  # from here on every event is read as a whole
        if self.count > self.most_tokens:
            raise self.too_many(self.count)

    def answer(self) -> GeneratedAnswer | None:
        """Return the whole answer; `None` when the stream ended before its `finish_reason`."""
        return self._answer

    def _finished(self, text: str, finish: Mapping[str, Any], meta: Mapping[str, Any]) -> GeneratedAnswer:
        kind = finish["type"]
        if kind == "abort":
            raise EngineError(
                f"The engine aborted the request: {clean(str(finish.get('message', 'no message')))[:500]}", kind="http"
            )
        if kind not in _FINISH:
            raise protocol_error(f"The answer ended for an unknown reason: {clean(str(kind))[:80]}")
        counted, prompt_tokens = count_in(meta["completion_tokens"]), count_in(meta["prompt_tokens"], 2**31)
        if counted != len(self._ids):
            raise protocol_error(
                f"{len(self._ids)} tokens were received, and the engine counts {one_line(str(counted), 20)}."
            )
        if prompt_tokens is None:
            raise TypeError("prompt_tokens is a count")
        first = max(1, self.first_tokens)
        return GeneratedAnswer(
            text, tuple(self._ids), _FINISH[kind], self.ttft_s, self.decode_s, prompt_tokens, meta, first
        )
