"""Reading one streamed answer of `/v1/completions` or `/v1/chat/completions`, cheaply.

Events carry pieces of text; how many tokens a piece stands for nobody says, so tokens are counted by their ids, where
the server streams ids, and by `usage`, never by events. An answer is whole once its `finish_reason` has come.
https://platform.openai.com/docs/api-reference/completions; `token_ids` as vLLM and SGLang send them with
`return_token_ids`, `__verbose` as llama-server does with `verbose`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchctl.data.record import FinishReason
from benchctl.engines.base import Progress
from benchctl.engines.common.log import clean
from benchctl.engines.common.stream import Stopwatch, events, protocol_error, unreadable

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "tool_calls": "stop"}


@dataclass(frozen=True)
class StreamedAnswer:
    """One answer as it was received. Times are seconds since the request was sent."""

    text: str
    """What was thought before the answer, where the server tells it apart, stands in it where it came."""
    ids: tuple[int, ...]
    """Those that came with the stream, which need not be all."""
    finish_reason: FinishReason
    ttft_s: float
    decode_s: float
    first_tokens: int = 1
    """How many tokens came at `ttft_s`; without ids each piece of text counts as one."""
    usage: Mapping[str, Any] = field(default_factory=dict)
    told: Mapping[str, Any] = field(default_factory=dict)
    """What servers add to their last events by their own names: `timings`, `metrics`, `system_fingerprint`, …"""

    def count(self, name: str) -> int | None:
        """Return a number of `usage`, such as `completion_tokens`."""
        value = self.usage.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_completion(
    chunks: Iterable[bytes],
    started: float,
    timeout_s: float,
    on_tokens: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> StreamedAnswer | None:
    """Read a whole answer; `None` when the stream ended before its `finish_reason`.

    `started` is the clock's value when the request was sent. `on_tokens` is told the ids so far, or where there are
    none the pieces of text. Raises EngineError (`protocol`, `http`, `timeout`).
    """
    watch = Stopwatch(started)
    pieces: list[str] = []
    ids: list[int] = []
    usage: Mapping[str, Any] = {}
    told: dict[str, Any] = {}
    finish: object = None
    for event in events(chunks, watch, timeout_s, clock, on_tokens=on_tokens):
        try:
            for choice in event.get("choices") or ():
                if choice.get("index"):
                    continue
                piece, fresh = _piece(choice), _ids(choice, event)
                if piece or fresh:
                    pieces.append(piece)
                    ids += fresh
                    watch.tokens(len(fresh) or 1)
                if choice.get("finish_reason") is not None:
                    finish = choice["finish_reason"]
                    if finish != "length":  # the token that ends an answer has no text
                        watch.tokens(0)
            if isinstance(event.get("usage"), dict):
                usage = event["usage"]
        except (AttributeError, TypeError, KeyError) as error:
            raise unreadable(event, error) from error
        told.update((name, value) for name, value in event.items() if name not in _STANDARD and value is not None)
    if finish is None:
        return None
    reason = _FINISH.get(str(finish))
    if reason is None:
        raise protocol_error(f"The answer ended for an unusable reason: {clean(str(finish))[:80]}")
    return StreamedAnswer(
        text="".join(pieces),
        ids=tuple(ids),
        finish_reason=reason,
        ttft_s=watch.ttft_s,
        decode_s=watch.decode_s,
        first_tokens=max(1, watch.first_tokens),
        usage=usage,
        told=told,
    )


_STANDARD = frozenset({"id", "object", "created", "model", "choices", "usage"})


def _piece(choice: Mapping[str, Any]) -> str:
    """Return the text of a choice: `text` of a completion, `content` of a chat, thoughts in front."""
    if "delta" not in choice:
        said = [choice.get("text")]
    else:
        delta = choice["delta"] or {}
        said = [delta.get("reasoning_content") or delta.get("reasoning"), delta.get("content")]
    if not all(isinstance(one, str | None) for one in said):
        raise TypeError("text is text")
    return "".join(one or "" for one in said)


def _ids(choice: Mapping[str, Any], event: Mapping[str, Any]) -> list[int]:
    verbose = event.get("__verbose")
    ids = choice.get("token_ids") or (verbose.get("tokens") if isinstance(verbose, dict) else None) or []
    if not all(isinstance(one, int) for one in ids):
        raise TypeError("token ids are numbers")
    return list(ids)
