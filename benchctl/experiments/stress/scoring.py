"""Where answers diverge, and how much the target prefers its likeliest token there, by its own logits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest

from benchctl.engines.base import Scorer
from benchctl.experiments.stress.judge import divergences
from benchctl.experiments.stress.stored import Divergence, StressAnswer, StressTest

Progress = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and of how much."""
SCORED = 60
"""Divergences that are scored on the target, at most."""
TOP = 400
"""Likeliest tokens that are read there."""


def find_divergences(test: StressTest) -> None:
    """Note the divergences of every arm and of the control; those that are scored keep their gaps."""
    control = test.played[test.manifest.baseline]
    requests = [request for process in test.plan.processes for request in process.requests]
    for played in test.played.values():
        gaps = {(divergence.request, divergence.against): divergence.gap for divergence in played.divergences}
        played.divergences = divergences(requests, played, None if played is control else control)
        for divergence in played.divergences:
            divergence.gap = gaps.get((divergence.request, divergence.against))


def score(test: StressTest, target: Scorer | None, time_left: Callable[[], bool], progress: Progress) -> int:
    """Score divergences, those of each arm in turn, as long as there is time; return how many were left out for it."""
    rows = [[(played, place) for place in played.divergences] for played in test.played.values()]
    in_turn = [pair for pairs in zip_longest(*rows) for pair in pairs if pair is not None][:SCORED]
    for number, (played, divergence) in enumerate(in_turn if target is not None else ()):
        if not time_left():
            return len(in_turn) - number
        progress("scoring divergences on the target alone", number, len(in_turn))
        divergence.gap = gap_of(test, target, played.answers[divergence.request], divergence)
    return 0


def gap_of(test: StressTest, target: Scorer | None, answer: StressAnswer, divergence: Divergence) -> float | None:
    """Return `Divergence.gap`; `None` where the logits or the tokens are not known.

    A schema may forbid the likeliest token, so there the two tokens are compared with each other.
    """
    tokens = [token for token in divergence.tokens if token is not None]
    if target is None or len(tokens) < 2 or answer.token_ids is None or not answer.prompt:
        return None
    logprobs = target.read_whole((*answer.prompt, *answer.token_ids[: divergence.index]), TOP).logprobs
    least = min(logprobs.values())
    values = [logprobs.get(token, least) for token in tokens]
    requests = (request for process in test.plan.processes for request in process.requests)
    by_schema = any(request.by_schema for request in requests if request.id == divergence.request)
    return (max(values) if by_schema else max(logprobs.values())) - min(values)
