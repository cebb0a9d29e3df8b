"""An answer: its steps counted and timed."""

from __future__ import annotations

import dataclasses
import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchctl.engines.transformers.methods import registered
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.decode import Draft, Drafter, PhaseClock, Round, Step, Task, decode
from benchctl.engines.transformers.serving.decoder import Decoder, named
from benchctl.engines.transformers.serving.drafters.self_drafter import UnsuitableError
from benchctl.engines.transformers.serving.loading import Loaded


@dataclass(frozen=True)
class Speculation:
    """The speculation of a recipe's arm."""

    type: str
    depth: int
    options: Mapping[str, Any]


def make_drafter(
    decoder: Decoder,
    requested: Speculation,
    target: Loaded,
    draft: Loaded | None = None,
    adapter: Path | None = None,
) -> Drafter | Assistance:
    """Return what speculates for `target`, which `decoder` has taken apart. Raises UnsuitableError.

    `draft`: a language model that drafts; `adapter`: the folder of what a method loads by itself.
    """
    method = registered().get(requested.type)
    if method is None:
        raise UnsuitableError("no package of this Python registers it")
    if unfit := method.unfit(decoder.model_type):
        raise UnsuitableError(f"the target ({decoder.model_type}) {unfit}")
    module, _, name = method.place.partition(":")
    make = getattr(importlib.import_module(module), name)
    if method.assisted:
        assistance: Assistance = make(target, requested.depth, requested.options, draft)
        return assistance
    made: Drafter = make(decoder, requested.options, adapter) if method.adapter else make(decoder, requested.options)
    return ToDepth(made, requested.depth)


@dataclass(frozen=True)
class ToDepth:
    """A drafter that never drafts more than `depth` tokens."""

    inner: Drafter
    depth: int

    def start(self, decoder: Decoder) -> None:
        """Begin a request."""
        self.inner.start(decoder)

    def draft(self, current: Round) -> Draft:
        """Guess at most `depth` tokens."""
        return self.inner.draft(self._within(current))

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Take the result of a draft's verification."""
        self.inner.verified(self._within(current), draft, accepted, logits)

    def _within(self, current: Round) -> Round:
        return dataclasses.replace(current, depth=min(self.depth, current.depth), deepest=self.depth)

    def describe(self) -> dict[str, object]:
        """Return the depth and what the drafter reports of itself."""
        return {"max": self.depth, **self.inner.describe()}


class Tally:
    """What was drafted and accepted in an answer."""

    def __init__(self) -> None:
        self.rounds = self.plain_steps = 0
        self._begun = False
        self.drafted: Counter[int] = Counter()
        self.accepted: Counter[int] = Counter()

    def add(self, step: Step) -> None:
        """Count a step; the reading of the prompt, the first step, counts where it verified a draft as well."""
        if step.drafted:
            self.rounds += 1
            self.drafted.update(range(step.drafted))
            self.accepted.update(range(step.accepted))
        elif self._begun:
            self.plain_steps += 1
        self._begun = True

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        places = range(max(self.drafted, default=-1) + 1)
        return {
            "rounds": self.rounds,
            "plain_steps": self.plain_steps,
            "drafted": self.drafted.total(),
            "accepted": self.accepted.total(),
            "drafted_by_position": [self.drafted[place] for place in places],
            "accepted_by_position": [self.accepted[place] for place in places],
        }


OnStep = Callable[[Step], None]


@dataclass
class Answer:
    """An answer under way; `tally`, `clock` and `ended` hold what is known so far."""

    decoder: Decoder
    task: Task
    way: Drafter | Assistance | None
    """How to speculate; `None` for the target alone."""
    traced: bool = False
    """Whether to note what each step did, in `trace`."""

    def __post_init__(self) -> None:
        self.tally = Tally()
        self.clock = PhaseClock(self.decoder.device)
        self.ended = False
        self.trace: list[dict[str, Any]] = []
        """What each step did, as plain data; docs/self-speculation.md has the meaning of the keys."""
        self._context = len(self.task.prompt)
        self._spent: dict[str, float] = {}

    def run(self, on_step: OnStep) -> None:
        """Decode to the end; each step is handed out as it is made, the first is the reading of the prompt."""
        if isinstance(self.way, Assistance):
            self.way.run(self.decoder, self.task, self.clock, lambda step: self._count(step, on_step))
            return
        for step in decode(self.decoder, self.task, self.way, self.clock):
            self._count(step, on_step)

    def _count(self, step: Step, on_step: OnStep) -> None:
        self.tally.add(step)
        self.ended = step.ended
        if self.traced:
            self.trace.append(self._described(step))
        on_step(step)

    def _described(self, step: Step) -> dict[str, Any]:
        known, self._spent = self._spent, dict(self.clock.seconds)
        before, self._context = self._context, self._context + len(step.tokens)
        return {
            "step": len(self.trace),
            "context": before,
            "drafted": step.drafted,
            "accepted": step.accepted,
            "tokens": list(step.tokens),
            "left_out": None if step.left_out is None else named(step.left_out),
            "seconds": {
                phase: round(seconds - known.get(phase, 0.0), 7)
                for phase, seconds in self._spent.items()
                if seconds > known.get(phase, 0.0)
            },
        }
