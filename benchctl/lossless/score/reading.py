"""Reading an answer on a running target: prefixes at divergences, whole answers, and their noise in batches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from benchctl.data.record import sha256_tokens
from benchctl.data.scores import Decoded, DivergedToken, NullPass, Position, Reading, ScoredAnswer, Shape, TargetScores
from benchctl.engines.base import PrefillScorer, Scorer, Scores, SlotScorer
from benchctl.errors import EngineError
from benchctl.lossless.judge.audit import PREFIXES
from benchctl.lossless.judge.selection import Answer
from benchctl.lossless.score.plan import Alignment, PrefixPlan, alignments

TOP = 20
"""Likeliest tokens that are read at every place."""
TOP_AT_DIVERGENCE = 2000
"""At a divergence, where the arm's token may be far down the list."""
DIGITS = 7
"""Decimal places that are kept: a float32 logarithm has no more."""

Top = Callable[[int], int]
"""From a place in an answer to how many of the likeliest tokens are read there."""


def read_steps(
    scorer: Scorer, prompt: Sequence[int], answer: Sequence[int], ends: Iterable[int], top: Top
) -> Iterator[tuple[int, int, Scores]]:
    """Read an answer on to each of `ends` in turn, after its prompt was read. Raises EngineError.

    Yields the end, the tokens that are new there, and the scores of what follows: the `top(end)` likeliest.
    """
    there = 0
    for end in ends:
        yield end, end - there, scorer.read_on([*prompt, *answer[:end]], top(end))
        there = end


def read_answer(scorer: Scorer, prompt: Sequence[int], plan: PrefixPlan) -> tuple[list[Position], Decoded]:
    """Read a baseline's answer in every planned way; what the engine cannot give is absent, with the reason.

    Raises EngineError.
    """
    answer = plan.answer.token_ids
    at_divergence = {fork.index for fork in plan.answer.forks}
    readings: dict[int, list[tuple[Shape, int, Scores]]] = defaultdict(list)
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
    for place, scores in decoded.items():
        readings[place].append(("decode", 1, scores))

    sampled = {end for each in plan.passes if not each.fork for end in each.ends}
    if not scorer.in_batches:
        absent["verify"] = "this engine evaluates no more than one token at a time"
    for each in plan.passes if scorer.in_batches else ():
        scorer.read_prompt(prompt, 1)
        for place, new, scores in read_steps(scorer, prompt, answer, each.ends, top):
            if scores.evaluated != new:
                absent["verify"] = _not_kept(scores.evaluated, new)
                break
            if not each.fork or place == each.last:
                readings[place].append(("verify", new, scores))

    # Where no width can be read, reading everything at once is the only measure of the noise.
    for place in sorted(at_divergence if scorer.in_batches else at_divergence | sampled):
        whole = [*prompt, *answer[:place]]
        readings[place].append(("prefill", len(whole), scorer.read_whole(whole, top(place))))

    places = [(fork.index, fork.rival, True) for fork in plan.answer.forks]
    places += [(end, _runner_up(decoded[end], answer[end]), False) for end in sorted(sampled) if end in decoded]
    positions = [
        Position(
            task=plan.answer.task,
            prompt_idx=plan.answer.prompt_idx,
            prompt_sha=plan.answer.prompt_sha,
            index=place,
            agreed_sha=sha256_tokens(answer[:place]),
            token=answer[place],
            rival=rival,
            fork=fork,
            readings=[_reading(shape, width, scores, answer[place], rival) for shape, width, scores in readings[place]],
            absent=absent if fork else {},
        )
        for place, rival, fork in dict.fromkeys(places)
    ]
    others = [place for place, scores in decoded.items() if scores.likeliest != answer[place]]
    decodings = Decoded(task=plan.answer.task, prompt_idx=plan.answer.prompt_idx, places=len(decoded), others=others)
    return positions, decodings


def _not_kept(evaluated: int, expected: int) -> str:
    return f"the engine evaluated {evaluated} tokens where {expected} were new: it does not keep the cache of a prefix"


def _runner_up(scores: Scores, token: int) -> int:
    return next(other for other in scores.logprobs if other != token)


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


@dataclass(frozen=True)
class ReadAnswer:
    """An answer as scored, with what it takes to read it again and to compare."""

    scored: ScoredAnswer
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    def likeliest(self, place: int) -> int:
        """The target's likeliest token there: the answer's own, unless the target left it."""
        left = (token.likeliest for token in self.scored.diverged if token.index == place)
        return next(left, self.tokens[place])

    def loss(self, place: int, scores: Scores) -> float:
        """Return how much less the target now prefers its likeliest token to the best other; nats."""
        known, likeliest = scores.logprobs, self.likeliest(place)
        value = known.get(likeliest, min(known.values()))
        best = max(other for token, other in known.items() if token != likeliest)
        return round(self.scored.margins[place] - (value - best), DIGITS)

    def null_pass(self, alignment: Alignment, slots: int = 1) -> NullPass:
        """Return a reading in batches, with no place yet."""
        return NullPass(
            **self.scored.model_dump(include={"task", "prompt_idx", "prompt_sha", "token_sha"}),
            **vars(alignment),
            slots=slots,
            places=[],
            losses=[],
        )


def score(scorer: Scorer, prompt: Sequence[int], answer: Answer) -> ReadAnswer:
    """Score every token of an answer. Raises EngineError, also where the engine keeps no cache of a prefix."""
    margins, diverged = [], []
    for index, place in enumerate(scores_of(scorer, prompt, answer.token_ids, TOP)):
        best, second = list(place.logprobs.values())[:2]
        margins.append(round(best - second, DIGITS))
        token, likeliest = answer.token_ids[index], place.likeliest
        known = place.logprobs.get(token)
        gap = place.logprobs[likeliest] - (min(place.logprobs.values()) if known is None else known)
        if token != likeliest and gap > 0:
            least = known is None
            diverged.append(DivergedToken(index=index, likeliest=likeliest, gap=round(gap, DIGITS), gap_is_least=least))
    about = {name: getattr(answer, name) for name in ("task", "prompt_idx", "prompt_sha", "token_sha")}
    return ReadAnswer(ScoredAnswer(**about, margins=margins, diverged=diverged), tuple(prompt), answer.token_ids)


def scores_of(scorer: Scorer, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
    """Score an answer as greedy decoding evaluates it, or at once where the engine cannot do that."""
    if isinstance(scorer, PrefillScorer):
        return scorer.score_answer(prompt, answer, top)
    scores = [scorer.read_prompt(prompt, top)]
    for _, new, read in read_steps(scorer, prompt, answer, range(1, len(answer)), lambda _: top):
        _require_kept(read, new)
        scores.append(read)
    return scores


def read_in_batches(scorer: Scorer, answer: ReadAnswer, alignment: Alignment) -> NullPass:
    """Read an answer in batches and compare it with its scores. Raises EngineError."""
    found = answer.null_pass(alignment)
    scorer.read_prompt(answer.prompt, 1)
    counted = dict(alignment.ends(len(answer.tokens)))
    for end, new, scores in read_steps(
        scorer, answer.prompt, answer.tokens, counted, lambda place: TOP if counted[place] else 1
    ):
        _require_kept(scores, new)
        if counted[end]:
            found.places.append(end)
            found.losses.append(answer.loss(end, scores))
    return found


def read_by_decoding(scorer: Scorer, answer: ReadAnswer) -> NullPass:
    """Decode an answer that is the target's own again, for an engine whose scores are of prefill. Raises EngineError.

    Ends where the target goes another way than the answer.
    """
    found = answer.null_pass(Alignment(0, 0))
    found.places.append(0)
    found.losses.append(answer.loss(0, scorer.read_prompt(answer.prompt, TOP)))
    steps = read_steps(scorer, answer.prompt, answer.tokens, range(1, len(answer.tokens)), lambda _: TOP)
    for place, new, scores in steps:
        if scores.evaluated != new:
            break
        found.places.append(place)
        found.losses.append(answer.loss(place, scores))
    return found


def _require_kept(scores: Scores, expected: int) -> None:
    if scores.evaluated != expected:
        raise EngineError(
            f"The engine evaluated {scores.evaluated} tokens where {expected} were new.",
            kind="protocol",
            fix="It does not keep the cache of a prefix, so nothing can be scored on it.",
        )


class _Batch(NamedTuple):
    """What a slot has in a batch: the tokens of an answer up to `end`, or at 0 its prompt."""

    answer: ReadAnswer
    alignment: Alignment
    end: int = 0
    new: int = 0
    """Of these, the tokens that the batch reads."""
    counts: bool = False

    @property
    def prefix(self) -> list[int]:
        """Everything that the slot has read with this."""
        return [*self.answer.prompt, *self.answer.tokens[: self.end]]


def _batches(answers: Sequence[ReadAnswer], width: int) -> Iterator[_Batch]:
    """Yield the batches of a slot: each of its answers to the end before the next, in every alignment."""
    for alignment, answer in product(alignments(width), answers):
        yield _Batch(answer, alignment)
        before = 0
        for end, counts in alignment.ends(len(answer.tokens)):
            yield _Batch(answer, alignment, end, end - before, counts)
            before = end


def read_shared(
    scorer: SlotScorer, answers: Sequence[ReadAnswer], known: TargetScores, *, width: int, slots: int, until: float
) -> None:
    """Measure the noise of batches that several requests share, an answer in each slot, in step; adds to `known`.

    It is what an engine of several slots does with rounds of speculation: every slot has `width` tokens in each batch,
    and where it begins its next answer, that prompt is in the batch, too. `until`: the monotonic time to end at. Only
    batches in which every slot reads on count. Raises EngineError.
    """
    slot_batches = [_batches(own, width) for own in _dealt(answers, slots)]
    have = known.known_places(width, slots)
    passes: dict[tuple[object, ...], NullPass] = {}
    for batches in zip(*slot_batches, strict=False):
        if have >= PREFIXES or time.monotonic() >= until:
            break
        ordered = sorted(batches, key=lambda batch: batch.end == 0)  # a new prompt takes the slot that is left
        for batch, scores in zip(ordered, scorer.read_together([each.prefix for each in ordered], TOP), strict=True):
            if batch.counts and scores.evaluated == batch.new:
                found = batch.answer.null_pass(batch.alignment, slots)
                found = passes.setdefault(found.key, found)
                found.places.append(batch.end)
                found.losses.append(batch.answer.loss(batch.end, scores))
                have += 1
    known.passes.extend(passes.values())


def _dealt(answers: Sequence[ReadAnswer], slots: int) -> list[list[ReadAnswer]]:
    """Deal the answers out to the slots, all to a prompt to the same slot: no two slots share a prefix."""
    prompts = list(dict.fromkeys(answer.prompt for answer in answers))
    by_slot: list[list[ReadAnswer]] = [[] for _ in range(slots)]
    for number, answer in enumerate(answers):
        by_slot[(prompts.index(answer.prompt) if len(prompts) >= slots else number) % slots].append(answer)
    return by_slot
