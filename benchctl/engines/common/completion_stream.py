"""Reading a streamed answer of `/v1/completions` or `/v1/chat/completions`, cheaply.

Events carry pieces of text; they do not say how many tokens a piece is, so tokens are counted by their ids, where
the server streams ids, and by `usage`, never by events. An answer is whole once its `finish_reason` has come.
https://platform.openai.com/docs/api-reference/completions; `token_ids` as vLLM and SGLang send them with
`return_token_ids`, `__verbose` as llama-server does with `verbose`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from benchctl.data.record import FinishReason
from benchctl.engines.base import Completion, Ledger
from benchctl.engines.common.http import Streamed
from benchctl.engines.common.log import clean
from benchctl.engines.common.stream import END_OF_THINKING, AnswerReader
from benchctl.engines.common.wire import TokenId, count_in, ids_in, protocol_error

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "stop"}
_PIECES_A_TOKEN = 16
"""The most pieces of text of a token: a server may send one character at a time."""
_CHOICE_FIELDS = ("avg_decoded_tokens_per_iter", "speculative_decoding", "meta_info")
"""Fields that TensorRT-LLM and SGLang add to the choice, not to the event."""
_STANDARD = frozenset({"id", "object", "created", "model", "choices", "usage"})


@dataclass(frozen=True)
class StreamedAnswer:
    """An answer as it was received. Times are seconds since the request was sent."""

    text: str
    """Reasoning that the server sends separately is included, in the order received."""
    ids: tuple[int, ...]
    """The ids that came with the stream; some may be missing."""
    finish_reason: FinishReason
    ttft_s: float
    decode_s: float
    first_tokens: int = 1
    """How many tokens came at `ttft_s`; without ids each piece of text counts as a token."""
    later_tokens: int = 0
    """How many came after it, counted alike."""
    first_text: str = ""
    """The text that came at `ttft_s`."""
    text_events: int | None = None
    """`benchctl.data.record.Record.text_events`."""
    logprobs: tuple[float | None, ...] = ()
    """`benchctl.data.record.Record.logprobs`."""
    thought: tuple[int, float] | None = None
    """Where thinking ended, in tokens and seconds from the first token."""
    reasoned: int = 0
    """Characters of the text that the server sent apart as reasoning."""
    received: int = 2**53
    """Bytes of the stream; no count of its tokens can be higher."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields that servers add to their last events: `timings`, `metrics`, `system_fingerprint` and others."""

    @property
    def completion_tokens(self) -> int | None:
        """How many tokens the server reports as generated; `None` for more than the bytes that came can hold."""
        return count_in(self.usage.get("completion_tokens"), self.received)

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the server reports for the prompt."""
        return count_in(self.usage.get("prompt_tokens"), 2**31)

    @property
    def cached_tokens(self) -> int | None:
        """How many of them the server reports as taken from a cache."""
        details = self.usage.get("prompt_tokens_details")
        return count_in(details.get("cached_tokens"), 2**31) if isinstance(details, dict) else None

    def first_of(self, tokens: int) -> int | None:
        """Return how many of the answer's `tokens` came at `ttft_s`; `None` where a piece may hold several.

        Each counts as a token only where there are as many pieces as tokens. The token that ends an answer has no text.
        """
        unseen = tokens - self.first_tokens - self.later_tokens
        return self.first_tokens if unseen == 0 or (unseen == 1 and self.finish_reason == "stop") else None


AnyAnswer = TypeVar("AnyAnswer", bound=StreamedAnswer)


def completed(streamed: Streamed[AnyAnswer], ledger: Ledger) -> Completion:
    """Return a finished answer, of whose tokens all ids came; the engine's own times are not known."""
    answer = streamed.answer
    return Completion(
        text=answer.text,
        token_ids=answer.ids,
        n_predicted=len(answer.ids),
        finish_reason=answer.finish_reason,
        prompt_tokens=answer.prompt_tokens or 0,
        ttft_s=answer.ttft_s,
        decode_s=answer.decode_s,
        first_tokens=answer.first_tokens,
        e2e_s=streamed.e2e_s,
        sent_at=streamed.sent_at,
        burst_gaps_s=streamed.burst_gaps_s,
        text_events=answer.text_events,
        logprobs=answer.logprobs or None,
        thought=answer.thought,
        reasoned=answer.reasoned or None,
        cached_tokens=answer.cached_tokens,
        engine_prompt_s=None,
        engine_decode_s=None,
        ledger=ledger,
    )


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: None = None


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    logprobs: None = None
    delta: _Delta | None = None
    token_ids: list[TokenId] | None = None
    finish_reason: None = None


class _Verbose(msgspec.Struct):
    tokens: list[TokenId]


class _Piece(msgspec.Struct):
    """The fields of nearly all events of a completion; see `CompletionReader.payload`."""

    choices: tuple[_Choice]
    verbose: _Verbose | None = msgspec.field(name="__verbose", default=None)
    usage: None = None
    error: None = None


_piece_in = msgspec.json.Decoder(_Piece).decode


class CompletionReader(AnswerReader[StreamedAnswer]):
    """Reads a whole answer; without ids each piece of text counts as a token in `count`."""

    def __init__(self, most_tokens: float = math.inf) -> None:
        super().__init__(most_tokens)
        self._most_pieces = _PIECES_A_TOKEN * self.most_tokens
        self._pieces: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[float | None] = []
        self._reasoned = 0
        """Characters that were sent apart as reasoning."""
        self._first_pieces = self._tool_pieces = 0
        self._usage: Mapping[str, Any] = {}
        self._extra: dict[str, Any] = {}
        self._finish: object = None

    def payload(self, payload: bytes) -> None:
        """Take an event: the shape that nearly all have at once, any other as a whole."""
        try:
            event = _piece_in(payload)
        except (ValueError, RecursionError):
            super().payload(payload)
            return
        (choice,) = event.choices
        if choice.index:
            return
        piece, delta = choice.text or "", choice.delta
        if delta is not None:
            reasoning = delta.reasoning_content or delta.reasoning or ""
            self._reasoning(reasoning, delta.content)
            piece = reasoning + (delta.content or "")
        ids = choice.token_ids or (event.verbose.tokens if event.verbose else ())
        if piece or ids:
            self._add(piece, ids)

    def event(self, event: dict[str, Any]) -> None:
        """Take an event."""
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            piece, fresh = _piece(choice), _ids(choice, event)
            delta = choice.get("delta") or {}
            self._reasoning(delta.get("reasoning_content") or delta.get("reasoning") or "", delta.get("content"))
            self._logprobs += _logprobs(choice.get("logprobs"))
            if piece or fresh:
                self._add(piece, fresh)
            self._tool_pieces += bool(piece and (choice.get("delta") or {}).get("tool_calls"))
            self._extra.update((name, choice[name]) for name in _CHOICE_FIELDS if choice.get(name) is not None)
            if choice.get("finish_reason") is not None:
                self._finish = choice["finish_reason"]
                if self._finish != "length":  # the token that ends an answer has no text
                    self.tokens(0)
        if isinstance(event.get("usage"), dict):
            self._usage = event["usage"]
        self._extra.update(
            (name, value) for name, value in event.items() if name not in _STANDARD and value is not None
        )

    def _reasoning(self, reasoning: str, content: str | None) -> None:
        """Note what a chat sends apart as reasoning; the first content after it ends the thinking."""
        if content and not reasoning and self._reasoned:
            self.thinks_until_now()
        self._reasoned += len(reasoning)

    def _add(self, piece: str, ids: Sequence[int]) -> None:
        self._pieces.append(piece)
        self._ids += ids
        self.tokens(len(ids) or 1)
        if ">" in piece and END_OF_THINKING in "".join(self._pieces[-len(END_OF_THINKING) :]):
            self.thinks_until_now()
        self._first_pieces += self.clock == self._first
        if self.count > self._most_pieces or len(self._ids) > self.most_ids:
            raise self.too_many(self.count)

    def answer(self) -> StreamedAnswer | None:
        """Return the whole answer; `None` when the stream ended before its `finish_reason`."""
        if self._finish is None:
            return None
        reason = _FINISH.get(str(self._finish))
        if reason is None:
            raise protocol_error(f"The answer ended for an unusable reason: {clean(str(self._finish))[:80]}")
        counted = count_in(self._usage.get("completion_tokens"))
        if counted is not None and counted > max(self.most_tokens, len(self._ids)):
            raise self.too_many(counted)
        if counted is not None and len(self._ids) > counted:
            raise protocol_error(f"{len(self._ids)} token ids were received, and the engine counts {counted} tokens.")
        return StreamedAnswer(
            text="".join(self._pieces),
            ids=tuple(self._ids),
            finish_reason=reason,
            ttft_s=self.ttft_s,
            decode_s=self.decode_s,
            first_tokens=max(1, self.first_tokens),
            later_tokens=self.count - self.first_tokens,
            first_text="".join(self._pieces[: self._first_pieces]),
            text_events=sum(map(bool, self._pieces)) - self._tool_pieces,
            logprobs=tuple(self._logprobs),
            thought=self.thought if len(self._ids) == self.count else None,  # without ids, pieces of text were counted
            reasoned=self._reasoned,
            received=self.received,
            usage=self._usage,
            extra=self._extra,
        )


def _logprobs(listed: object) -> list[float | None]:
    """Return the log probabilities of an event's tokens: `token_logprobs` of a completion, `content` of a chat."""
    if not isinstance(listed, dict):
        return []
    values = listed.get("token_logprobs") or [token.get("logprob") for token in listed.get("content") or ()]
    if not all(isinstance(value, int | float | None) for value in values):
        raise TypeError("log probabilities are numbers")
    return [None if value is None else float(value) for value in values]


def _piece(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice: `text` of a completion, `content` of a chat, reasoning in front."""
    return piece_of(choice["delta"] or {}) if "delta" in choice else _joined([choice.get("text")])


def piece_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message: reasoning, content, calls of tools without their ids, which are drawn at random."""
    parts = [message.get("reasoning_content") or message.get("reasoning"), message.get("content")]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts += [function.get("name"), function.get("arguments")]
    return _joined(parts)


def first_choice(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first choice of an answer that was not streamed; empty where it has none."""
    choices = answer.get("choices")
    return choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}


def _joined(parts: list[Any]) -> str:
    if not all(isinstance(part, str | None) for part in parts):
        raise TypeError("text is text")
    return "".join(part or "" for part in parts)


def _ids(choice: Mapping[str, Any], event: Mapping[str, Any]) -> list[int]:
    verbose = event.get("__verbose")
    ids = ids_in(choice.get("token_ids") or (verbose.get("tokens") if isinstance(verbose, dict) else None) or [])
    if ids is None:
        raise TypeError("token ids are whole numbers")
    return ids
