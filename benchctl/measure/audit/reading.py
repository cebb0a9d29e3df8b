"""Scoring one answer on the target alone, and reading it again in other shapes: the part that talks to the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.analysis.audit.selection import Answer
from benchctl.data.audits import Divergence, NullPass, ScoredAnswer
from benchctl.engines.base import PrefillScorer, Scorer, Scores
from benchctl.errors import EngineError
from benchctl.measure.audit.plan import Alignment

TOP = 20
"""Likeliest tokens that are asked for at every place."""
DIGITS = 7
"""Decimal places that are kept: a float32 logarithm has no more."""


@dataclass(frozen=True)
class Reading:
    """An answer as scored, with what a second reading is compared with."""

    scored: ScoredAnswer
    likeliest: tuple[int, ...]


def score(scorer: Scorer, prompt: Sequence[int], answer: Answer) -> Reading:
    """Score every token of an answer. Raises EngineError, also where the engine kept nothing of what it had read."""
    if isinstance(scorer, PrefillScorer):
        scores = scorer.score_answer(prompt, answer.token_ids, TOP)
    else:
        scores = _token_by_token(scorer, prompt, answer.token_ids, TOP)
    margins = [_margin(one) for one in scores]
    diverged = []
    for index, (one, token) in enumerate(zip(scores, answer.token_ids, strict=True)):
        best, known = one.logprobs[one.likeliest], one.logprobs.get(token)
        gap = best - (min(one.logprobs.values()) if known is None else known)
        if token != one.likeliest and gap > 0:
            diverged.append(
                Divergence(index=index, likeliest=one.likeliest, gap=round(gap, DIGITS), gap_is_least=known is None)
            )
    scored = ScoredAnswer(
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        prompt_sha=answer.prompt_sha,
        token_sha=answer.token_sha,
        margins=margins,
        diverged=diverged,
    )
    return Reading(scored, tuple(one.likeliest for one in scores))


def read_in_batches(
    scorer: Scorer, prompt: Sequence[int], answer: Answer, reading: Reading, alignment: Alignment
) -> NullPass:
    """Read an answer in batches and compare it with its scores. Raises EngineError."""
    places, losses, there = [], [], 0
    scorer.read_prompt(prompt, 1)
    for end, counts in alignment.ends(len(answer.token_ids)):
        scores = scorer.read_on([*prompt, *answer.token_ids[:end]], TOP if counts else 1)
        _check(scores, end - there)
        there = end
        if counts:
            places.append(end)
            losses.append(_loss(reading, end, scores))
    return _null_pass(answer, places, losses, alignment.width, alignment.first, alignment.skipped)


def read_by_decoding(scorer: Scorer, prompt: Sequence[int], answer: Answer, reading: Reading) -> NullPass:
    """Decode an answer that is the target's own again, for an engine whose scores are of prefill. Raises EngineError.

    Ends where the target goes another way than the answer.
    """
    places, losses = [], []
    for place in range(len(answer.token_ids)):
        prefix = [*prompt, *answer.token_ids[:place]]
        scores = scorer.read_on(prefix, TOP) if place else scorer.read_prompt(prompt, TOP)
        if place and scores.evaluated != 1:
            break
        places.append(place)
        losses.append(_loss(reading, place, scores))
    return _null_pass(answer, places, losses, 0, 0, 0)


def _token_by_token(scorer: Scorer, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
    """Score an answer as greedy decoding evaluates it."""
    told = [scorer.read_prompt(prompt, top)]
    for place in range(1, len(answer)):
        told.append(scorer.read_on([*prompt, *answer[:place]], top))
        _check(told[-1], 1)
    return told


def _margin(scores: Scores) -> float:
    best, second = list(scores.logprobs.values())[:2]
    return round(best - second, DIGITS)


def _loss(reading: Reading, place: int, scores: Scores) -> float:
    """Return by how much less the target prefers its likeliest token to the best other one than it was scored."""
    token, known = reading.likeliest[place], scores.logprobs
    others = max(value for other, value in known.items() if other != token)
    return round(reading.scored.margins[place] - (known.get(token, min(known.values())) - others), DIGITS)


def _null_pass(
    answer: Answer, places: list[int], losses: list[float], width: int, first: int, skipped: int
) -> NullPass:
    return NullPass(
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        prompt_sha=answer.prompt_sha,
        token_sha=answer.token_sha,
        width=width,
        first=first,
        skipped=skipped,
        places=places,
        losses=losses,
    )


def _check(scores: Scores, asked: int) -> None:
    if scores.evaluated != asked:
        raise EngineError(
            f"The engine evaluated {scores.evaluated} tokens where {asked} were to be read on.",
            kind="protocol",
            fix="It keeps nothing of what it had read; nothing can be scored on it.",
        )
