"""Reading one answer in every planned way: the part of a replay that talks to the engine."""

from __future__ import annotations

from collections.abc import Sequence

from benchctl.data.record import sha256_tokens
from benchctl.data.replays import Decoded, Position, Reading, Shape
from benchctl.engines.base import Scorer, Scores
from benchctl.measure.replay.plan import AnswerPlan

TOP = 20
"""Likeliest tokens that are asked for at a prefix of the sample."""
TOP_AT_FORK = 2000
"""At a fork, where the arm's token may be far down the list."""


def read_answer(scorer: Scorer, prompt: Sequence[int], plan: AnswerPlan) -> tuple[list[Position], Decoded]:
    """Read one answer in every planned way; what the engine cannot give is absent, with the reason.

    Raises EngineError.
    """
    answer = plan.answer.token_ids
    at_fork = {fork.index for fork in plan.answer.forks}
    seen: dict[int, list[tuple[Shape, int, Scores]]] = {place: [] for place in at_fork}
    absent: dict[str, str] = {}

    def top(place: int) -> int:
        return TOP_AT_FORK if place in at_fork else TOP

    def prefix(place: int) -> list[int]:
        return [*prompt, *answer[:place]]

    # Token by token, as the baseline made it.
    decoded = {0: scorer.read_prompt(prompt, top(0))}
    for place in range(1, plan.last + 1):
        scores = scorer.read_on(prefix(place), top(place))
        if scores.evaluated != 1:
            absent["decode"] = _not_kept(scores.evaluated, 1)
            break
        decoded[place] = scores

    sampled = {end for one in plan.passes if not one.fork for end in one.ends}
    if not scorer.in_batches:
        absent["verify"] = "this engine reads on no more than one token at a time"
    for one in plan.passes if scorer.in_batches else ():
        scorer.read_prompt(prompt, 1)
        for before, place in zip([0, *one.ends], one.ends, strict=False):
            scores = scorer.read_on(prefix(place), top(place))
            if scores.evaluated != place - before:
                absent["verify"] = _not_kept(scores.evaluated, place - before)
                break
            if not one.fork or place == one.last:
                seen.setdefault(place, []).append(("verify", place - before, scores))

    # Where no width can be read, reading everything at once is all there is to tell the noise by.
    prefilled = set(plan.prefilled) if scorer.in_batches else sampled
    for place in sorted(at_fork | prefilled):
        whole = prefix(place)
        seen.setdefault(place, []).append(("prefill", len(whole), scorer.read_whole(whole, top(place))))

    places = [(fork.index, fork.rival, True) for fork in plan.answer.forks]
    places += [(end, _runner_up(decoded[end], answer[end]), False) for end in sorted(sampled) if end in decoded]
    positions = [
        _position(plan, place, rival, decoded.get(place), seen.get(place, []), absent, fork=fork)
        for place, rival, fork in dict.fromkeys(places)
    ]
    others = [place for place, scores in decoded.items() if scores.likeliest != answer[place]]
    told = Decoded(task=plan.answer.task, prompt_idx=plan.answer.prompt_idx, places=len(decoded), others=others)
    return positions, told


def _not_kept(evaluated: int, asked: int) -> str:
    return (
        f"the engine evaluated {evaluated} tokens where {asked} were to be read on: it kept nothing of what it had read"
    )


def _runner_up(scores: Scores, token: int) -> int:
    return next(one for one in scores.logprobs if one != token)


def _position(
    plan: AnswerPlan,
    place: int,
    rival: int,
    decoded: Scores | None,
    seen: Sequence[tuple[Shape, int, Scores]],
    absent: dict[str, str],
    *,
    fork: bool,
) -> Position:
    answer = plan.answer
    token = answer.token_ids[place]
    own: list[tuple[Shape, int, Scores]] = [("decode", 1, decoded)] if decoded else []
    return Position(
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        prompt_sha=answer.prompt_sha,
        index=place,
        agreed_sha=sha256_tokens(answer.token_ids[:place]),
        token=token,
        rival=rival,
        fork=fork,
        readings=[_reading(shape, width, scores, token, rival) for shape, width, scores in [*own, *seen]],
        absent=absent if fork else {},
    )


def _reading(shape: Shape, width: int, scores: Scores, token: int, rival: int) -> Reading:
    known = scores.logprobs
    return Reading(
        shape=shape,
        width=width,
        likeliest=scores.likeliest,
        token=known.get(token),
        rival=known.get(rival),
        rival_at_most=None if rival in known else min(known.values()),
    )
