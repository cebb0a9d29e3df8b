"""Decoding an answer, with its steps counted and timed; and reading an answer with draft and target to compare them.

When answers are compared, draft and target read an answer of the target, and all their logits are used. If a part of
the target drafts, it starts from the target's state at the position where it drafts, as in a round. It reads the
answer's tokens from there, and then the state is restored. A draft model has its own state.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchctl.engines.transformers.methods import registered
from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.assisted import Assistance, Assisted, OnStep
from benchctl.engines.transformers.serving.decode import Drafter, PhaseClock, Sampler, Step, Task, decode, timed
from benchctl.engines.transformers.serving.decoder import Decoder, Parts, State, named, without
from benchctl.engines.transformers.serving.drafters.self_drafter import SelfDrafter
from benchctl.engines.transformers.serving.loading import Loaded


@dataclass(frozen=True)
class Speculation:
    """The speculation that an arm of a recipe requests."""

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
    module, _, name = method.entry_point.partition(":")
    make = getattr(importlib.import_module(module), name)
    if method.assisted:
        assistance: Assistance = make(target, requested.depth, requested.options, draft)
        return assistance
    drafter: Drafter = make(decoder, requested.options, adapter) if method.adapter else make(decoder, requested.options)
    drafter.depth = requested.depth
    return drafter


@dataclass
class Answer:
    """An answer that is being decoded. `steps` and `clock` describe it up to now."""

    decoder: Decoder
    task: Task
    way: Drafter | Assistance | None
    """What speculates; `None` for the target alone."""
    traced: bool = False
    """Whether to describe each step in `trace`."""

    def __post_init__(self) -> None:
        self.steps: list[Step] = []
        self.clock = PhaseClock(self.decoder.device)
        self.trace: list[dict[str, Any]] = []
        """A description of each step as plain data; docs/self-speculation.md explains the keys."""
        self._context = len(self.task.prompt)
        self._spent: dict[str, float] = {}

    def run(self, on_step: OnStep) -> None:
        """Decode to the end. `on_step` gets each step as soon as it is made; the first step reads the prompt."""

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
        """Count the draft tokens and the accepted ones. The first step counts only if it verified a draft."""
        rounds = [step for step in self.steps if step.drafted]
        positions = range(max((step.drafted for step in rounds), default=0))
        return {
            "rounds": len(rounds),
            "plain_steps": sum(not step.drafted for step in self.steps[1:]),
            "drafted": sum(step.drafted for step in rounds),
            "accepted": sum(step.accepted for step in rounds),
            "drafted_by_position": [sum(step.drafted > position for step in rounds) for position in positions],
            "accepted_by_position": [sum(step.accepted > position for step in rounds) for position in positions],
            "target_steps": self._target_steps(),
        }

    def _target_steps(self) -> list[list[int]] | None:
        """Return the steps as a record has them; `None` without speculation, where each is of a token."""
        if self.way is None:
            return None
        first, *following = self.steps
        of_prompt = [[0, first.drafted, first.accepted]] if first.drafted else []
        return of_prompt + [[step.drafted, step.accepted] for step in following]

    def _described(self, step: Step) -> dict[str, Any]:
        seconds_before, self._spent = self._spent, dict(self.clock.seconds)
        before, self._context = self._context, self._context + len(step.tokens)
        spent = {phase: seconds - seconds_before.get(phase, 0.0) for phase, seconds in self._spent.items()}
        return {
            "step": len(self.trace),
            "context": before,
            "drafted": step.drafted,
            "accepted": step.accepted,
            "tokens": list(step.tokens),
            "left_out": None if step.left_out is None else named(step.left_out),
            "seconds": {phase: round(seconds, 7) for phase, seconds in spent.items() if seconds > 0},
        }


CHECKED = (2, 3, 5, 9)
"""Widths of the timed passes: those that verify drafts of 1, 2, 4 and 8 tokens."""
SCORED = 512
"""A perplexity is taken over at most so many tokens of prompt and answer, from the beginning."""


@dataclass(frozen=True)
class Passage:
    """A prompt with its answer, and how to read it. `temperature` 0: the answer is greedy."""

    prompt: Sequence[int]
    answer: Sequence[int]
    temperature: float
    depth: int
    stride: int
    top: int


class Comparing:
    """Reads answers with draft and target. `way`: what speculates on this server. Raises UnsuitableError."""

    def __init__(self, decoder: Decoder, way: Drafter | Assistance | None) -> None:
        self._decoder = decoder
        self._left_out: Parts = frozenset()
        self._model: Decoder | None = None
        if isinstance(way, SelfDrafter) and type(way).draft is SelfDrafter.draft:
            self._left_out = way.left_out
        elif type(way) is Assisted:
            self._model = Decoder(way.assistant.model)
        else:
            raise UnsuitableError("what it drafts with is neither a model nor a fixed part of the target")

    def read(self, reading: Passage) -> dict[str, Any]:
        """Return `Expectations` (`benchctl.data.traces`) of an answer as plain data."""
        with torch.inference_mode():
            target, drafts, expectations = self._logits(reading)
            if self._model is not None and self._model.vocabulary != self._decoder.vocabulary:
                # Ids beyond the smaller vocabulary are padding, which no tokenizer uses.
                shared = min(self._model.vocabulary, self._decoder.vocabulary)
                target = [logits[:shared] for logits in target]
                drafts = {start: [logits[:shared] for logits in row] for start, row in drafts.items()}
            expectations |= _compared(reading, target, drafts)
            if self._model is None and reading.temperature == 0:
                expectations |= self._losses([*reading.prompt, *reading.answer][:SCORED])
        return expectations

    def flops(self, prompt: Sequence[int]) -> dict[str, float]:
        """Count the multiplications and additions of a step after a prompt, by torch's own counter."""
        with torch.inference_mode():
            state, draft_state = State(self._decoder, prompt), State(self._model or self._decoder, prompt)
            target = _counted(state, prompt[-1])
            with without(self._decoder, self._left_out):
                draft = _counted(draft_state, prompt[-1])
        return {"target": target, "draft": draft}

    def _logits(self, reading: Passage) -> tuple[list[torch.Tensor], dict[int, list[torch.Tensor]], dict[str, Any]]:
        """Return the target's logits before every token of the answer, by start those of the draft, and seconds: of
        single steps, and by width of passes over several tokens."""
        state = State(self._decoder)
        draft_state = State(self._model, reading.prompt) if self._model is not None else None
        target = [state.advance(reading.prompt)[-1]]
        drafts, steps_target, steps_draft = dict[int, list[torch.Tensor]](), list[float](), list[float]()
        read = reading.answer[:-1]
        for index, token in enumerate(read):
            drafted = []
            if draft_state is not None:
                drafted = [timed(draft_state, [token])]
            elif index % reading.stride == 0:
                before = state.snapshot()
                with without(self._decoder, self._left_out):
                    drafted = [timed(state, [ahead]) for ahead in read[index : index + reading.depth]]
                state.restore(before)
            if drafted:
                drafts[index + 1] = [logits[-1] for logits, _ in drafted]
                steps_draft += [seconds for _, seconds in drafted]
            logits, seconds = timed(state, [token])
            target.append(logits[-1])
            steps_target.append(seconds)
        checks = _checks(state, reading.answer[-1]) if read else {}
        return target, drafts, {"steps_target": steps_target, "steps_draft": steps_draft, "checks": checks}

    def _losses(self, tokens: Sequence[int]) -> dict[str, Any]:
        """Return the loss on some tokens, each in a single pass: of the whole model, and without the part."""
        full_loss = _loss(State(self._decoder), tokens)
        with without(self._decoder, self._left_out):
            # In a single pass from an empty state all layers that run read equally many tokens.
            draft_loss = _loss(State(self._decoder), tokens)
        return {"loss_target": full_loss, "loss_draft": draft_loss, "scored": len(tokens) - 1}


def _checks(state: State, token: int) -> dict[int, float]:
    """Return the seconds of passes that would verify a draft, by the tokens that each reads."""
    before, seconds = state.snapshot(), {}
    for width in CHECKED:
        _, seconds[width] = timed(state, [token] * width)
        state.restore(before)
    return seconds


def _loss(state: State, tokens: Sequence[int]) -> float:
    logits = state.advance(tokens, keep=len(tokens))[:-1].float()
    following = torch.tensor(tokens[1:], device=logits.device)
    return float(torch.nn.functional.cross_entropy(logits, following, reduction="sum"))


def _counted(state: State, token: int) -> float:
    with FlopCounterMode(display=False) as counter:
        state.advance([token])
    return float(counter.get_total_flops())


def _compared(
    reading: Passage, target: Sequence[torch.Tensor], drafts: dict[int, list[torch.Tensor]]
) -> dict[str, Any]:
    """Compare the distributions; see `benchctl.data.traces.Expectations`."""
    chooser = Sampler(reading.temperature).chooser()
    sharpened = [] if chooser.greedy else [chooser.probabilities(logits) for logits in target]

    def chances(index: int, logits: torch.Tensor) -> tuple[float, float]:
        token = reading.answer[index]
        if chooser.greedy:
            right = float(int(logits.argmax()) == token)
            return right, right
        p, q = sharpened[index], chooser.probabilities(logits)
        return float(torch.minimum(p, q).sum()), min(1.0, float(q[token]) / float(p[token]))

    rows = [[chances(index, logits) for index, logits in enumerate(row, start)] for start, row in drafts.items()]
    distance = [_distance(target[start], row[0], reading.top) for start, row in drafts.items()]
    return {
        "starts": list(drafts),
        "overlap": [[chance for chance, _ in row] for row in rows],
        "accept": [[accepted for _, accepted in row] for row in rows],
        "agree": [bool(row[0].argmax() == target[start].argmax()) for start, row in drafts.items()],
        "distance": distance,
        "distance_most": distance,
    }


def _distance(target: torch.Tensor, draft: torch.Tensor, top: int) -> float:
    """Return the total variation distance over the target's likeliest tokens, all others as a single outcome."""
    p, q = target.double().softmax(-1), draft.double().softmax(-1)
    likeliest = p.topk(min(top, len(p))).indices
    target_chances, draft_chances = p[likeliest], q[likeliest]
    others_difference = abs(float(draft_chances.sum() - target_chances.sum()))
    return (float((target_chances - draft_chances).abs().sum()) + others_difference) / 2
