"""Reading a streamed answer of `/completion`: tokens, times and the final report, cheaply.

Every event before the last carries a piece of text and the ids of the tokens in it; the last (`stop: true`)
carries counts, timings and the settings that were in force. A piece is sent only once its text is whole UTF-8, and the
tokens of a character that came in several are then missing from the stream; `tokens_predicted` counts them. Builds of
early 2026 and before count a round's tokens with its first event, also those past the end of the answer, which never
come (`n_decoded += ids.size()` in tools/server/server-context.cpp of llama-cpp-python 0.3.21).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from benchctl.data.record import FinishReason
from benchctl.engines.base import Completion
from benchctl.engines.common.completion_stream import StreamedAnswer
from benchctl.engines.common.log import clean
from benchctl.engines.common.stream import END_OF_THINKING, AnswerReader
from benchctl.engines.common.wire import TokenId, count_in, ids_in, protocol_error
from benchctl.models.vocabulary import token_bytes

_FINISH: dict[str, FinishReason] = {"eos": "stop", "word": "stop", "limit": "length"}


@dataclass(frozen=True)
class Gap:
    """Token ids that are missing from the stream, and what is known of them."""

    position: int
    count: int
    text: str
    """The text that they and the tokens in `last_ids` spell together."""
    last_ids: tuple[int, ...]
    """The ids that came with the text; they spell its end."""


class TokenTime(NamedTuple):
    """When the step ended that brought a token: its tokens have one time."""

    tokens: int
    """Of the answer so far."""
    at_ms: float
    drafted: int
    """Draft tokens of the answer so far."""


@dataclass(frozen=True, kw_only=True)
class LlamaAnswer(StreamedAnswer):
    """An answer as it was received."""

    streamed_ids: tuple[tuple[int, int], ...]
    """(position, id) of every token whose id came with the stream."""
    n_predicted: int
    timings: Mapping[str, Any]
    settings: Mapping[str, Any]
    counted: bool = True
    """Whether `n_predicted` is the number of its tokens; else it is that of the ids that came, and may lack those of
    characters of several tokens."""
    token_times: tuple[TokenTime, ...] = ()
    """Of the tokens whose events came with timings, and of the last."""
    gaps: tuple[Gap, ...] = ()
    """Gaps before the last text. Tokens of a character that the answer's end cut off spell no text."""

    @property
    def token_ids(self) -> tuple[int, ...] | None:
        """Every generated id, or `None` when some are missing from the stream."""
        if len(self.streamed_ids) != self.n_predicted:
            return None
        return tuple(token for _, token in self.streamed_ids)

    @property
    def token_gap(self) -> str | None:
        """Why `token_ids` is `None`."""
        missing = self.n_predicted - len(self.streamed_ids)
        reason = f"the stream lacks {missing} of {self.n_predicted} token ids (characters of several tokens)"
        return reason if missing else None


class _Timings(msgspec.Struct, frozen=True, gc=False):
    """What is read of the timings that `timings_per_token` adds to an event."""

    predicted_ms: float
    draft_n: int = 0


class _Listed(msgspec.Struct, frozen=True, gc=False):
    """A token's entry where log probabilities were asked for."""

    logprob: float
    top_logprobs: list[object]


class _Token(msgspec.Struct):
    """The fields of nearly all events; see `LlamaReader.payload`."""

    stop: Literal[False]
    content: str
    tokens: list[TokenId]
    tokens_predicted: int
    timings: _Timings | None = None
    completion_probabilities: list[_Listed] = []
    error: None = None


class LlamaReader(AnswerReader[LlamaAnswer]):
    """Reads a whole answer of at most `most_tokens` tokens.

    `by_round`: whether the server counts a round's tokens with its first event; noticed where it shows.
    """

    done = None

    def __init__(self, most_tokens: float = math.inf, *, by_round: bool = False) -> None:
        super().__init__(most_tokens)
        self.by_round = by_round
        self._pieces: list[str] = []
        self._positioned: list[tuple[int, int]] = []
        self._gaps: list[Gap] = []
        self._times: list[TokenTime] = []
        self._logprobs: list[float | None] = []
        self._answer: LlamaAnswer | None = None

    def payload(self, payload: bytes) -> None:
        """Take an event: a token's at once, any other as a whole."""
        try:
            token = _token_in(payload)
        except (ValueError, RecursionError):
            super().payload(payload)
            return
        if token.tokens_predicted == self.count + len(token.tokens) <= self.most_ids:
            self._positioned.extend(enumerate(token.tokens, self.count))
            self._pieces.append(token.content)
            self._list(token.completion_probabilities)
            self.tokens(len(token.tokens))
            if ">" in token.content:
                self._look_for_thinking()
            if token.timings is not None:
                self._times.append(TokenTime(self.count, token.timings.predicted_ms, token.timings.draft_n))
        else:
            super().payload(payload)

    def event(self, event: dict[str, Any]) -> None:
        """Take an event."""
        content, count = event["content"], count_in(event["tokens_predicted"])
        if count is None or not isinstance(content, str) or not isinstance(event["stop"], bool):
            raise TypeError("content is text, tokens_predicted a count, and stop true or false")
        if count > self.most_ids:
            raise self.too_many(count)
        before = self.count
        if count < before:
            raise protocol_error(f"The engine retracted tokens: it counts {count} after {before}.")
        if event["stop"]:
            if not self.by_round and (count != before or not before):
                self.tokens(count - before)  # only the end shows them
            self._timed(event)
            self._answer = self._finished(event, count)
            self.over = True
            return
        ids = ids_in(event["tokens"])
        if ids is None or len(ids) > count:
            raise TypeError("token ids are whole numbers, and counted")
        if count == before and ids and not self.by_round:  # they were counted with an earlier event
            self.by_round = True
            self.count = len(self._positioned)
            self._positioned = [(position, token) for position, (_, token) in enumerate(self._positioned)]
            self._gaps.clear()
        if self.by_round:
            count = self.count + len(ids)
            before = self.count
        start = count - len(ids)
        with suppress(msgspec.ValidationError):
            self._list(msgspec.convert(event.get("completion_probabilities", []), list[_Listed]))
        self._pieces.append(content)
        self._positioned.extend(enumerate(ids, start))
        if start > before:
            self._gaps.append(Gap(before, start - before, content, tuple(ids)))
        self.tokens(count - before)
        self._look_for_thinking()
        self._timed(event)

    def _look_for_thinking(self) -> None:
        if END_OF_THINKING in "".join(self._pieces[-len(END_OF_THINKING) :]):
            self.thinks_until_now()

    def _list(self, listed: Sequence[_Listed]) -> None:
        """Keep log probabilities; a server that computes none has an empty list of the likeliest beside a 0."""
        self._logprobs.extend(entry.logprob if entry.top_logprobs else None for entry in listed)

    def _timed(self, event: dict[str, Any]) -> None:
        """Note the time of the last token up to an event that has timings."""
        with suppress(msgspec.ValidationError):
            timings = msgspec.convert(event.get("timings"), _Timings)
            self._times.append(TokenTime(self.count, timings.predicted_ms, timings.draft_n))

    def answer(self) -> LlamaAnswer | None:
        """Return the whole answer; `None` when the stream ended before its last event."""
        return self._answer

    def _finished(self, event: Mapping[str, Any], count: int) -> LlamaAnswer:
        finish = _FINISH.get(event["stop_type"])
        if finish is None:
            raise protocol_error(f"The answer ended for an unknown reason: {clean(str(event['stop_type']))[:80]}")
        if not isinstance(event["timings"], dict) or not isinstance(event["generation_settings"], dict):
            raise TypeError("timings and generation_settings are objects")
        prompt_tokens = count_in(event["tokens_evaluated"], 2**31)
        if prompt_tokens is None:
            raise ValueError("tokens_evaluated is a count")
        return LlamaAnswer(
            text="".join(self._pieces) + event["content"],
            ids=tuple(token for _, token in self._positioned),
            streamed_ids=tuple(self._positioned),
            n_predicted=self.count,
            counted=self.count == count,
            usage={"prompt_tokens": prompt_tokens},
            finish_reason=finish,
            ttft_s=self.ttft_s,
            decode_s=self.decode_s,
            first_tokens=max(1, self.first_tokens),
            timings=event["timings"],
            settings=event["generation_settings"],
            logprobs=tuple(self._logprobs),
            thought=self.thought,
            token_times=() if self.by_round else tuple(self._times),
            gaps=tuple(self._gaps),
        )


_token_in = msgspec.json.Decoder(_Token).decode


def filled_ids(answer: LlamaAnswer, model: Path) -> tuple[int, ...] | None:
    """Fill in missing ids from what they spell; `None` unless the vocabulary leaves exactly one possibility."""
    vocabulary = token_bytes(model)
    if vocabulary is None:
        return None
    ids = dict(answer.streamed_ids)
    for gap in answer.gaps:
        spelled, suffix = gap.text.encode("utf-8", "surrogatepass"), vocabulary.spelling(gap.last_ids)
        if not spelled.endswith(suffix):
            return None
        split = vocabulary.only_split(spelled[: len(spelled) - len(suffix)], gap.count)
        if split is None:
            return None
        ids.update(enumerate(split, gap.position))
    return tuple(ids[position] for position in range(answer.n_predicted)) if len(ids) == answer.n_predicted else None


def agreeing_ids(
    answer: Mapping[str, Any], completion: Completion, streamed_ids: Sequence[tuple[int, int]]
) -> tuple[int, ...] | None:
    """Return the ids of an unstreamed answer to the same request; `None` unless its text, and the (position, id) that
    are `known` of the stream, agree."""
    ids, text = ids_in(answer.get("tokens")), answer.get("content")
    if ids is None or not isinstance(text, str):
        return None
    agree = all(position < len(ids) and ids[position] == token for position, token in streamed_ids)
    # A last character that the token limit cut in two is U+FFFD here; the stream has nothing of it, nor of what its
    # first token has before it.
    rest = text.removeprefix(completion.text)
    same = text.startswith(completion.text) and (not rest or rest.endswith("\ufffd"))
    return tuple(ids) if agree and same and len(ids) == completion.n_predicted else None
