"""An answer: its steps counted and timed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.engines.transformers.methods import registered
from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.assisted import Assistance, OnStep
from benchctl.engines.transformers.serving.decode import Drafter, PhaseClock, Step, Task, decode
from benchctl.engines.transformers.serving.decoder import Decoder, named
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
    drafter: Drafter = make(decoder, requested.options, adapter) if method.adapter else make(decoder, requested.options)
    drafter.depth = requested.depth
    return drafter


@dataclass
class Answer:
    """An answer under way; `steps` and `clock` hold what is known so far."""

    decoder: Decoder
    task: Task
    way: Drafter | Assistance | None
    """How to speculate; `None` for the target alone."""
    traced: bool = False
    """Whether to note what each step did, in `trace`."""

    def __post_init__(self) -> None:
        self.steps: list[Step] = []
        self.clock = PhaseClock(self.decoder.device)
        self.trace: list[dict[str, Any]] = []
        """What each step did, as plain data; docs/self-speculation.md has the meaning of the keys."""
        self._context = len(self.task.prompt)
        self._spent: dict[str, float] = {}

    def run(self, on_step: OnStep) -> None:
        """Decode to the end; each step is handed out as it is made, the first is the reading of the prompt."""

        def count(step: Step) -> None:
            self.steps.append(step)
            if self.traced:
                self.trace.append(self._described(step))
            on_step(step)

        if isinstance(self.way, Assistance):
            self.way.run(self.decoder, self.task, self.clock, count)
            return
        for step in decode(self.decoder, self.task, self.way, self.clock):
            count(step)

    def ledger(self) -> dict[str, Any]:
        """Count what was drafted and accepted; the first step, which read the prompt, where it verified a draft."""
        rounds = [step for step in self.steps if step.drafted]
        places = range(max((step.drafted for step in rounds), default=0))
        return {
            "rounds": len(rounds),
            "plain_steps": sum(not step.drafted for step in self.steps[1:]),
            "drafted": sum(step.drafted for step in rounds),
            "accepted": sum(step.accepted for step in rounds),
            "drafted_by_position": [sum(step.drafted > place for step in rounds) for place in places],
            "accepted_by_position": [sum(step.accepted > place for step in rounds) for place in places],
        }

    def _described(self, step: Step) -> dict[str, Any]:
        known, self._spent = self._spent, dict(self.clock.seconds)
        before, self._context = self._context, self._context + len(step.tokens)
        spent = {phase: seconds - known.get(phase, 0.0) for phase, seconds in self._spent.items()}
        return {
            "step": len(self.trace),
            "context": before,
            "drafted": step.drafted,
            "accepted": step.accepted,
            "tokens": list(step.tokens),
            "left_out": None if step.left_out is None else named(step.left_out),
            "seconds": {phase: round(seconds, 7) for phase, seconds in spent.items() if seconds > 0},
        }
