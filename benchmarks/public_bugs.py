"""Public bugs of other engines, as a proxy before a sound llama-server has them: see `benchmarks.proxy`.

A bug changes what the sound server is asked for: a state that has lost tokens is a prompt without them. Each follows
what its report says of its cause. `python -m benchmarks.lossy_engines.stressed FOLDER --public` stresses them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

Ids = tuple[int, ...]
BLOCK = 16
"""Tokens that a cache shares at least, and in steps."""
LOST = 4
"""Tokens that a damaged state has not seen."""
POOL, HIGH = 1500, 0.6
"""Tokens of a cache, and the use from which it evicts."""
EVERY = 3
"""Of the requests in a batch, one in so many is wrong (36 % of them in the report)."""
LOOP: Ids = ()
"""In place of a prompt: the answer is token 0 again and again."""


@dataclass
class Server:
    """What a faulty server was sent so far."""

    asked: list[Ids] = field(default_factory=list)
    """Prompts, the latest last."""
    in_flight: int = 0
    damaged: set[Ids] = field(default_factory=set)
    """Beginnings of prompts, in whole blocks, whose cached state is wrong."""
    evicted: set[Ids] = field(default_factory=set)
    count: int = 0

    def shared(self, prompt: Ids) -> Ids:
        """Return the longest beginning, in whole blocks, that a prompt shares with an earlier one."""
        lengths = [_common(prompt, other) for other in self.asked]
        return prompt[: max(lengths, default=0) // BLOCK * BLOCK]


def _common(one: Ids, other: Ids) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _without_state(prompt: Ids, end: int) -> Ids:
    return prompt[: end - LOST] + prompt[end:]


def _behind(server: Server, prompt: Ids) -> Ids:
    """Return what a server reads of a prompt that begins with a damaged state."""
    ends = [len(head) for head in server.damaged if prompt[: len(head)] == head]
    return _without_state(prompt, max(ends)) if ends else prompt


def _misaligned(server: Server, prompt: Ids) -> Ids:
    """A longer request leaves the state of the blocks that it shares with a cached one misaligned, until a restart."""
    sent, shared = _behind(server, prompt), server.shared(prompt)
    if shared and any(other[: len(shared)] == shared and len(other) < len(prompt) for other in server.asked):
        server.damaged.add(shared)
    return sent


def _looping(server: Server, prompt: Ids) -> Ids:
    """A prompt that was evicted because the cache was used by 60 % is answered by token 0, again and again."""
    held = [other for other in dict.fromkeys(reversed(server.asked)) if other not in server.evicted]
    used = len(prompt)
    for other in held:
        used += len(other)
        if used > HIGH * POOL and other != prompt:
            server.evicted.add(other)
    return LOOP if prompt in server.evicted else prompt


def _in_a_batch(server: Server, prompt: Ids) -> Ids:
    """In a batch of several requests one in three is verified with a state that lacks its last tokens."""
    if server.in_flight < 2:
        return prompt
    server.count += 1
    return _without_state(prompt, len(prompt) - LOST) if server.count % EVERY == 0 else prompt


def _after_another(server: Server, prompt: Ids) -> Ids:
    """A slot that is used again for another prompt sometimes keeps the one before; nothing is reported as cached."""
    others = [other for other in server.asked[-1:] if other != prompt]
    server.count += bool(others)
    return others[0] if others and server.count % EVERY == 0 else prompt


@dataclass(frozen=True)
class Bug:
    """A bug: where it was reported, the scenario that is meant for it, and what it does to a prompt."""

    source: str
    scenario: str
    change: Callable[[Server, Ids], Ids]
    by_cancelling: bool = False
    """Whether a cancelled request leaves the beginning that it shares with others damaged."""
    in_cache: bool = True
    """Whether it needs a request that may use the cache."""
    reports_cached: bool = True


BUGS = {
    "longer_in_between": Bug("vllm#43559, #53912", "cache", _misaligned),
    "evicted_at_60_percent": Bug("sglang#36537", "canary", _looping),
    "wrong_in_a_batch": Bug("sglang#35150", "crowd", _in_a_batch, in_cache=False),
    "released_by_a_cancelled_one": Bug("sglang#23392", "cancel", _behind, by_cancelling=True),
    "text_of_another_prompt": Bug("llama.cpp#27296", "cache", _after_another, reports_cached=False),
}


class FaultyServer:
    """A bug and its server; requests come from several threads."""

    def __init__(self, name: str) -> None:
        self.bug, self._server, self._lock = BUGS[name], Server(), threading.Lock()

    def begin(self, ids: Sequence[int], *, cached: bool) -> Ids:
        """Return the prompt that a request is answered by, or `LOOP`. `cached`: whether it may use the cache."""
        prompt = tuple(ids)
        with self._lock:
            self._server.in_flight += 1
            sent = self.bug.change(self._server, prompt) if cached or not self.bug.in_cache else prompt
            self._server.asked.append(prompt)
            return sent

    def end(self, ids: Sequence[int], *, cancelled: bool) -> None:
        """Note that a request is over."""
        prompt = tuple(ids)
        with self._lock:
            self._server.in_flight -= 1
            if cancelled and self.bug.by_cancelling:
                earlier = Server([other for other in self._server.asked if other != prompt])
                self._server.damaged |= {earlier.shared(prompt)} - {()}
