"""The health probes: short prompts that show a broken model, answered greedily by the target alone.

A model's text alone shows little: small sound models loop, and word salad is not empty. So the probabilities are read
with it, and where the model was quantized for this run, its source is scored at the same places.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchctl.engines.base import Scorer, Scores
from benchctl.models.gguf_header import read_header
from benchctl.models.vocabulary import end_tokens, token_bytes
from benchctl.paths import shipped_folder
from benchctl.prompts.load import load_suite
from benchctl.prompts.suite import PromptItem

SUITE = "health.json"
TOKENS = 24
"""Longest answer to a probe."""
TOP = 64
"""So many of the likeliest tokens are compared."""
ENOUGH = 64
"""Fewer tokens than this are too few to assess probabilities."""
MIN_PROBES = 4
"""Fewer probes than this, the first of each kind, are too few to assess the share that is answered badly."""
_FIRST = ("newlines", "indentation", "empty_lines", "mixed_scripts")
BUDGET_S = 2.0
"""So many seconds are taken for each step (to answer, to read, to compare) once there is enough …"""
PATIENCE_S = 20.0
"""… and so many at most, on an engine that is slow."""


@dataclass
class ProbeAnswer:
    """The target's answer to a probe; `text` is untrusted."""

    name: str
    """`task/prompt_idx`."""
    prompt: tuple[int, ...]
    tokens: list[int] = field(default_factory=list)
    """Greedy, without an end-of-text token."""
    scores: list[Scores] = field(default_factory=list)
    """Of every token, and of the end where it came."""
    text: str = ""


@dataclass(frozen=True)
class Agreement:
    """Two models, scored at the same places."""

    places: int
    same: int
    """How often both expect the same token first."""
    divergence: float
    """Mean Kullback-Leibler divergence in nats from the reference, over its likeliest tokens: at least so much."""

    @property
    def rate(self) -> float:
        """same / places."""
        return self.same / self.places


def probe_items() -> list[PromptItem]:
    """Return the probes, a first of each task before a second of any: where time is short, all kinds are tried."""
    found = shipped_folder("prompts") / SUITE
    items = load_suite(str(found), recipe_folder=found.parent).select(None, None)
    return sorted(items, key=lambda item: (item.prompt_idx, item.task not in _FIRST))


def answers(scorer: Scorer, model: Path, items: Sequence[PromptItem]) -> Iterator[ProbeAnswer]:
    """Yield the greedy answers of the model in `model` as long as the budget lasts. Raises EngineError."""
    began, places = time.monotonic(), 0
    vocabulary = token_bytes(model)
    ends = end_tokens(read_header(model))
    for count, item in enumerate(items, start=1):
        prompt = scorer.render(item.prompt).token_ids
        answer = ProbeAnswer(f"{item.task}/{item.prompt_idx}", prompt, scores=[scorer.read_prompt(prompt, TOP)])
        while answer.scores[-1].likeliest not in ends:
            answer.tokens.append(answer.scores[-1].likeliest)
            if len(answer.tokens) == TOKENS or _time_is_up(began, places + len(answer.scores), count):
                break
            answer.scores.append(scorer.read_on([*prompt, *answer.tokens], TOP))
        spelt = vocabulary.spelling(answer.tokens) if vocabulary else b""
        answer.text = spelt.decode("utf-8", "replace")
        yield answer
        places += len(answer.scores)
        if _time_is_up(began, places, count):
            return


def confidence(found: Sequence[ProbeAnswer]) -> tuple[float, int]:
    """Return the mean logarithm of the probability that the model gives its own best next token, and of how many."""
    best = [max(scores.logprobs.values()) for answer in found for scores in answer.scores]
    return (math.fsum(best) / len(best), len(best)) if best else (0.0, 0)


def expected(scorer: Scorer, found: Sequence[ProbeAnswer]) -> tuple[int, int]:
    """Return how many of the probes' own tokens are among the likeliest that the model expects there, and of how many.

    Raises EngineError.
    """
    began, hits, places = time.monotonic(), 0, 0
    for answer in found:
        for place in range(1, min(len(answer.prompt), TOKENS)):
            if _time_is_up(began, places):
                break
            prefix = answer.prompt[:place]
            scores = scorer.read_prompt(prefix, TOP) if place == 1 else scorer.read_on(prefix, TOP)
            places += 1
            hits += answer.prompt[place] in scores.logprobs
    return hits, places


def is_blank(answer: ProbeAnswer) -> bool:
    """Whether an answer is blank: it ended at once, or is white space."""
    return not answer.text.strip()


def agreement(reference: Scorer, found: Sequence[ProbeAnswer]) -> Agreement | None:
    """Score another model at the places of `found` as long as the budget lasts; None when there was no time.

    Raises EngineError.
    """
    began = time.monotonic()
    same = places = 0
    divergence = 0.0
    for answer in found:
        for place, scores in enumerate(answer.scores):
            if _time_is_up(began, places):
                break
            prefix = [*answer.prompt, *answer.tokens[:place]]
            theirs = reference.read_on(prefix, TOP) if place else reference.read_prompt(prefix, TOP)
            places += 1
            same += theirs.likeliest == scores.likeliest
            divergence += _divergence(theirs, scores)
    return Agreement(places, same, divergence / places) if places else None


def _time_is_up(began: float, places: int, probes: int = MIN_PROBES) -> bool:
    enough = places >= ENOUGH and probes >= MIN_PROBES
    return time.monotonic() - began > (BUDGET_S if enough else PATIENCE_S)


def _divergence(reference: Scores, other: Scores) -> float:
    """Kullback-Leibler divergence in nats over the reference's tokens; what the other lacks counts as its last."""
    least = min(other.logprobs.values())
    return sum(
        math.exp(expected) * (expected - other.logprobs.get(token, least))
        for token, expected in reference.logprobs.items()
    )
