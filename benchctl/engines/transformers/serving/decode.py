"""The decoding loop: draft, verify in a single pass, roll back what was not accepted.

Between two rounds the state holds every token but the last, which the next pass reads first.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from benchctl.engines.transformers.serving.choose import Chooser
from benchctl.engines.transformers.serving.decoder import Decoder, Parts, State

Phase = Literal["prompt", "draft", "verify", "plain", "rollback", "search", "other"]
"""prompt: reading it; verify: the target's pass over a draft; plain: its step without a draft; rollback: snapshots and
what undoes a draft; search: choosing what to leave out; other: everything else, such as handing tokens out."""


def synchronized_now(device: torch.device | str) -> float:
    """Return the seconds of `time.perf_counter` once the device has done all that it was given."""
    wait = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(torch.device(device).type)
    if wait is not None:
        wait()
    return time.perf_counter()


class PhaseClock:
    """Sums seconds by phase; whatever passes between two calls belongs to the phase that the second names."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._since = time.perf_counter()

    def passed(self, phase: Phase) -> None:
        """Count the time since the last call to `phase`."""
        now = synchronized_now(self._device)
        self.seconds[phase] += now - self._since
        self._since = now


@dataclass(frozen=True)
class Round:
    """What a drafter is given. It may read tokens with `state`; afterwards the state is restored."""

    state: State
    tokens: Sequence[int]
    """The prompt and the answer so far; `state` has read all but the last."""
    depth: int
    """Most draft tokens that this round can use."""
    chooser: Chooser
    ends: Collection[int]
    """Tokens after which nothing is drafted."""
    clock: PhaseClock
    deepest: int = 0
    """The depth that the recipe allows, also where fewer tokens of the answer are left."""


@dataclass(frozen=True)
class Draft:
    """Draft tokens, and the distribution that each was drawn from (`[vocabulary]`; `None`: it was certain)."""

    tokens: Sequence[int]
    distributions: Sequence[torch.Tensor | None]
    left_out: Parts | None = None
    """What of the target did not draft; `None` where something else did."""


class Drafter(Protocol):
    """A way to guess the next tokens; one request at a time."""

    def start(self, decoder: Decoder) -> None:
        """Begin a request."""

    def draft(self, current: Round) -> Draft:
        """Guess at most `current.depth` tokens; none is an answer, too."""

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Take the result of a draft's verification: how many of its tokens were accepted, and the target's logits."""

    def describe(self) -> dict[str, object]:
        """Return the evidence that it is set up as requested, as plain data."""


@dataclass(frozen=True)
class Step:
    """The tokens that a pass of the target brought, and how many of its draft were drafted and accepted."""

    tokens: tuple[int, ...]
    drafted: int = 0
    accepted: int = 0
    ended: bool = False
    """Whether the last token ends the answer."""
    left_out: Parts | None = None
    """As of the draft."""


@dataclass(frozen=True)
class Task:
    """An answer to be decoded. `ends`: tokens that end it."""

    prompt: Sequence[int]
    max_tokens: int
    chooser: Chooser
    ends: frozenset[int] = frozenset()


def decode(decoder: Decoder, task: Task, drafter: Drafter | None, clock: PhaseClock) -> Iterator[Step]:
    """Yield the steps of an answer. Without a drafter each brings a token of the target alone."""
    state = State(decoder)
    tokens = list(task.prompt)
    with torch.inference_mode():
        if drafter is not None:
            drafter.start(decoder)
        clock.passed("other")
        token = task.chooser.first(state.advance(tokens))
        clock.passed("prompt")
    left = task.max_tokens
    step = Step((token,), ended=token in task.ends)
    while True:
        tokens += step.tokens
        left -= len(step.tokens)
        yield step
        if step.ended or left <= 0:
            return
        clock.passed("other")
        with torch.inference_mode():
            if drafter is None or left == 1:
                step = _plain(state, tokens[-1], task, clock)
            else:
                current = Round(state, tokens, left - 1, task.chooser, task.ends, clock)
                step = _round(current, drafter, clock)


def _plain(state: State, last: int, task: Task, clock: PhaseClock) -> Step:
    token = task.chooser.first(state.advance([last]))
    clock.passed("plain")
    return Step((token,), ended=token in task.ends)


def _round(current: Round, drafter: Drafter, clock: PhaseClock) -> Step:
    state = current.state
    before = state.snapshot()
    clock.passed("rollback")
    draft = drafter.draft(current)
    clock.passed("draft")
    if state.read != before.read:
        state.restore(before)
    clock.passed("rollback")
    logits = state.verify([current.tokens[-1], *draft.tokens])
    accepted, following = current.chooser.verify(draft.tokens, draft.distributions, logits)
    clock.passed("verify" if draft.tokens else "plain")
    kept = [*draft.tokens[:accepted], following]
    ended = False
    for place, token in enumerate(kept):
        if token in current.ends:
            kept, ended = kept[: place + 1], True
            break
    accepted = min(accepted, len(kept))
    # Nothing is read after the end of an answer, so that its state need not be right.
    if not ended:
        state.keep(before, accepted + 1)
    clock.passed("rollback")
    drafter.verified(current, draft, accepted, logits)
    clock.passed("search")
    return Step(tuple(kept), len(draft.tokens), accepted, ended, draft.left_out)
