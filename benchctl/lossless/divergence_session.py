"""The replay: prefixes of a baseline's answers, scored on the target alone, in an engine process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from benchctl import __version__
from benchctl.data.identity import home_relative
from benchctl.data.record import sha256_text, sha256_tokens
from benchctl.data.replays import REPLAYS, Decoded, Position, Reading, Replays, Shape, of_part
from benchctl.data.store import RunData
from benchctl.data.writer import write_scores
from benchctl.engines.base import Scorer, Scores
from benchctl.lossless.divergence_plan import AnswerPlan, make_plan, widths_of
from benchctl.lossless.prefixes import AnswerToScore
from benchctl.lossless.relaunch import Outcome, Target
from benchctl.lossless.selection import Answer
from benchctl.measure.recording import now

KEPT_EVERY_S = 5.0
"""The file is written whole; a killed benchctl loses no more than this."""

Advance = Callable[[int, int, str], None]
"""Called with (answers that are done, answers in all, what comes next)."""

TOP = 20
"""Likeliest tokens that are read at a prefix of the sample."""
TOP_AT_DIVERGENCE = 2000
"""At a divergence, where the arm's token may be far down the list."""


@dataclass
class ReplayOutcome(Outcome):
    """What a replay brought."""

    replays: Replays | None = None
    """With everything that was there before; `None` when nothing is known."""
    by_answer: dict[tuple[str, int], str] = field(default_factory=dict)
    """Why single answers could not be replayed, by task and index."""


def replay(
    target: Target, answers: Sequence[AnswerToScore], *, stored: Replays | None, advance: Advance | None = None
) -> ReplayOutcome:
    """Score the divergences of `answers` and a sample of prefixes without one; keep everything in the run's folder.

    Raises StorageError, and KeyboardInterrupt; what was replayed until then is kept.
    """
    outcome = ReplayOutcome(replays=stored)
    with outcome.keeping_failures():
        _replay(target, answers, outcome, advance or _silent)
    return outcome


def _silent(done: int, total: int, what: str) -> None:
    """Report nothing."""


def _replay(target: Target, answers: Sequence[AnswerToScore], outcome: ReplayOutcome, advance: Advance) -> None:
    again = target.again()
    usable = []
    for answer in answers:
        if (answer.task, answer.prompt_idx) in again.prompts:
            usable.append(answer)
        else:
            outcome.by_answer[answer.task, answer.prompt_idx] = again.prompts_lack
    sampled = outcome.replays.sampled if outcome.replays else []
    plans = make_plan(usable, sampled)
    if not plans:
        return
    advance(0, len(plans), "starting the target alone")
    with target.scorer() as scorer:
        _read(target, scorer, plans, outcome, advance)
        if outcome.replays is not None:
            outcome.replays.sampled = sorted({*sampled, *widths_of(usable)})
            write_replays(target.run, outcome.replays)
    advance(len(plans), len(plans), "done")


def _read(
    target: Target, scorer: Scorer, plans: Sequence[AnswerPlan], outcome: ReplayOutcome, advance: Advance
) -> None:
    """Read answer after answer; what was read is kept every few seconds, and when this is left, however it is."""
    run, again = target.run, target.again()
    kept_at, unkept = time.monotonic(), False
    try:
        replays = outcome.replays or Replays.model_validate(origin_of(run, target.baseline, scorer))
        outcome.replays = replays
        for number, plan in enumerate(plans):
            answer = plan.answer
            advance(number, len(plans), f"{answer.task}/{answer.prompt_idx}")
            rendered = again.render(scorer, again.prompts[answer.task, answer.prompt_idx])
            if is_other(rendered.text, rendered.token_ids, answer):
                outcome.by_answer[answer.task, answer.prompt_idx] = "the engine now renders the prompt differently"
                continue
            positions, decoded = read_answer(scorer, rendered.token_ids, plan)
            replays.add(positions)
            replays.add_decoded(decoded)
            unkept = True
            if time.monotonic() - kept_at > KEPT_EVERY_S:
                write_replays(run, replays)
                kept_at, unkept = time.monotonic(), False
    finally:
        if unkept:
            write_replays(run, replays)


def origin_of(run: RunData, baseline: str, scorer: Scorer) -> dict[str, object]:
    """Return the fields of `Origin` for what `scorer` scored of a run."""
    manifest = run.manifest
    assert manifest is not None, "a run without a manifest cannot be launched again"
    return {
        "run": manifest.run,
        "benchctl_version": __version__,
        "made_at": now(),
        "baseline": baseline,
        "command": [home_relative(word) for word in scorer.command],
        "engine_sha256": manifest.engine.details.get("sha256"),
        "siblings": manifest.engine.details.get("siblings") or {},
        "model": manifest.target.files,
    }


def is_other(text: str, token_ids: Sequence[int], answer: AnswerToScore | Answer) -> bool:
    """Whether the prompt is not the one that was answered."""
    if answer.prompt_sha is not None and sha256_text(text) != answer.prompt_sha:
        return True
    return answer.prompt_tokens is not None and len(token_ids) != answer.prompt_tokens


def write_replays(run: RunData, replays: Replays) -> None:
    """Replace `replays.json` of a run, or of a part of one, atomically. Raises StorageError."""
    assert run.manifest is not None, "a run without a manifest cannot be launched again"
    write_scores(run.folder, of_part(REPLAYS, run.part), replays.model_dump_json(by_alias=True), run.manifest)


def read_answer(scorer: Scorer, prompt: Sequence[int], plan: AnswerPlan) -> tuple[list[Position], Decoded]:
    """Read an answer in every planned way; what the engine cannot give is absent, with the reason.

    Raises EngineError.
    """
    answer = plan.answer.token_ids
    at_divergence = {fork.index for fork in plan.answer.forks}
    readings: dict[int, list[tuple[Shape, int, Scores]]] = {place: [] for place in at_divergence}
    absent: dict[str, str] = {}

    def top(place: int) -> int:
        return TOP_AT_DIVERGENCE if place in at_divergence else TOP

    # Token by token, as the baseline made it.
    decoded = {0: scorer.read_prompt(prompt, top(0))}
    for place, new, scores in read_steps(scorer, prompt, answer, range(1, plan.last + 1), top):
        if scores.evaluated != new:
            absent["decode"] = _not_kept(scores.evaluated, new)
            break
        decoded[place] = scores

    sampled = {end for pass_ in plan.passes if not pass_.fork for end in pass_.ends}
    if not scorer.in_batches:
        absent["verify"] = "this engine evaluates no more than one token at a time"
    for pass_ in plan.passes if scorer.in_batches else ():
        scorer.read_prompt(prompt, 1)
        for place, new, scores in read_steps(scorer, prompt, answer, pass_.ends, top):
            if scores.evaluated != new:
                absent["verify"] = _not_kept(scores.evaluated, new)
                break
            if not pass_.fork or place == pass_.last:
                readings.setdefault(place, []).append(("verify", new, scores))

    # Where no width can be read, reading everything at once is the only measure of the noise.
    prefilled = set(plan.prefilled) if scorer.in_batches else sampled
    for place in sorted(at_divergence | prefilled):
        whole = [*prompt, *answer[:place]]
        readings.setdefault(place, []).append(("prefill", len(whole), scorer.read_whole(whole, top(place))))

    places = [(fork.index, fork.rival, True) for fork in plan.answer.forks]
    places += [(end, _runner_up(decoded[end], answer[end]), False) for end in sorted(sampled) if end in decoded]
    positions = [
        _position(plan, place, rival, decoded.get(place), readings.get(place, []), absent, fork=fork)
        for place, rival, fork in dict.fromkeys(places)
    ]
    others = [place for place, scores in decoded.items() if scores.likeliest != answer[place]]
    decodings = Decoded(task=plan.answer.task, prompt_idx=plan.answer.prompt_idx, places=len(decoded), others=others)
    return positions, decodings


def read_steps(
    scorer: Scorer, prompt: Sequence[int], answer: Sequence[int], ends: Iterable[int], top: Callable[[int], int]
) -> Iterator[tuple[int, int, Scores]]:
    """Read an answer on to each of `ends` in turn, after its prompt was read. Raises EngineError.

    Yields the end, the tokens that are new there, and the scores of what follows: the `top(end)` likeliest.
    """
    there = 0
    for end in ends:
        yield end, end - there, scorer.read_on([*prompt, *answer[:end]], top(end))
        there = end


def _not_kept(evaluated: int, expected: int) -> str:
    return f"the engine evaluated {evaluated} tokens where {expected} were new: it does not keep the cache of a prefix"


def _runner_up(scores: Scores, token: int) -> int:
    return next(other for other in scores.logprobs if other != token)


def _position(
    plan: AnswerPlan,
    place: int,
    rival: int,
    decoded: Scores | None,
    readings: Sequence[tuple[Shape, int, Scores]],
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
        readings=[_reading(shape, width, scores, token, rival) for shape, width, scores in [*own, *readings]],
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
