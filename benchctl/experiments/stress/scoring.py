"""Where answers diverge, and how much the target prefers its likeliest token there, by its own logits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import zip_longest

from benchctl.engines.scoring import Scorer
from benchctl.experiments.stress.judge import divergences
from benchctl.experiments.stress.stored import Divergence, StressAnswer, StressTest

Progress = Callable[[str, int, int], None]
"""Called with the step, how much of it is done, and of how much."""
SCORED = 60
"""Places that are scored on the target, at most; many answers may diverge at the same one."""
TOP = 400
"""Likeliest tokens that are read there."""


def find_divergences(test: StressTest) -> None:
    """Note the divergences of every arm and of the control; those that are scored keep their gaps."""
    _take_ids_of_equal_answers(test)
    control = test.played[test.manifest.baseline]
    requests = [request for process in test.plan.processes for request in process.requests]
    for played in test.played.values():
        gaps = {(divergence.request, divergence.against): divergence.gap for divergence in played.divergences}
        played.divergences = divergences(requests, played, None if played is control else control)
        for divergence in played.divergences:
            divergence.gap = gaps.get((divergence.request, divergence.against))


def _take_ids_of_equal_answers(test: StressTest) -> None:
    """Give an answer that came without token ids those of the answers with the same prompt and text, if all agree."""
    answers = [
        (answer, (answer.prompt_sha256, answer.text, answer.finish))
        for played in test.played.values()
        for answer in played.answers.values()
        if answer.finish is not None
    ]
    ids: defaultdict[tuple[str | None, ...], set[tuple[int, ...]]] = defaultdict(set)
    for answer, key in answers:
        ids[key] |= {answer.token_ids} if answer.token_ids is not None else set()
    for answer, key in answers:
        if answer.token_ids is None and len(ids[key]) == 1:
            (answer.token_ids,) = ids[key]


def score(test: StressTest, target: Scorer | None, time_left: Callable[[], bool], progress: Progress) -> int:
    """Score divergences, those of each arm and scenario in turn, as long as there is time.

    Returns how many were left out for it.
    """
    if target is None:
        return 0
    scenarios = {request.id: process.scenario for process in test.plan.processes for request in process.requests}
    by_schema = {request.id for process in test.plan.processes for request in process.requests if request.by_schema}
    rows: defaultdict[tuple[str, str], list[tuple[StressAnswer, Divergence]]] = defaultdict(list)
    for arm, played in test.played.items():
        for divergence in played.divergences:
            rows[arm, scenarios[divergence.request]].append((played.answers[divergence.request], divergence))
    in_turn = [pair for pairs in zip_longest(*rows.values()) for pair in pairs if pair is not None]
    gaps: dict[tuple[object, ...], float] = {}
    over, late = False, 0
    for number, (answer, divergence) in enumerate(in_turn):
        before = (answer.token_ids or ())[: divergence.index]
        place = (answer.prompt, before, frozenset(divergence.tokens), divergence.request in by_schema)
        if place not in gaps and len(gaps) < SCORED:
            over = over or not time_left()
            if not over:
                progress("scoring divergences on the target alone", number, len(in_turn))
                gap = gap_of(test, target, answer, divergence)
                gaps |= {} if gap is None else {place: gap}
        divergence.gap = gaps.get(place)
        late += over and divergence.gap is None
    return late


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
