"""Reading an answer on a running target: prefixes at divergences, whole answers, and their noise in batches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from benchctl.data.record import sha256_tokens
from benchctl.data.scores import DivergedToken, NullPass, Position, Reading, ScoredAnswer, Shape, TargetScores
from benchctl.engines.scoring import PrefillScorer, Scorer, Scores, SlotScorer
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
    reached = 0
    for end in ends:
        yield end, end - reached, scorer.read_on([*prompt, *answer[:end]], top(end))
        reached = end


def read_answer(scorer: Scorer, prompt: Sequence[int], plan: PrefixPlan) -> list[Position]:
    """Read a baseline's answer in every planned way; what the engine cannot give is absent, with the reason.

    Raises EngineError.
    """
    answer = plan.answer.token_ids
    at_divergence = {divergence.index for divergence in plan.answer.divergences}
    readings: dict[int, list[tuple[Shape, int, Scores]]] = defaultdict(list)
    absent: dict[str, str] = {}

    def top(index: int) -> int:
        return TOP_AT_DIVERGENCE if index in at_divergence else TOP

    # Token by token, as the baseline made it.
    decoded = {0: scorer.read_prompt(prompt, top(0))}
    for index, new, scores in read_steps(scorer, prompt, answer, range(1, plan.last + 1), top):
        if scores.evaluated != new:
            absent["decode"] = _not_kept(scores.evaluated, new)
            break
        decoded[index] = scores
    for index, scores in decoded.items():
        readings[index].append(("decode", 1, scores))

    sampled = {end for prefix_pass in plan.passes if not prefix_pass.at_divergence for end in prefix_pass.ends}
    if not scorer.in_batches:
        absent["verify"] = "this engine evaluates no more than one token at a time"
    for prefix_pass in plan.passes if scorer.in_batches else ():
        scorer.read_prompt(prompt, 1)
        for index, new, scores in read_steps(scorer, prompt, answer, prefix_pass.ends, top):
            if scores.evaluated != new:
                absent["verify"] = _not_kept(scores.evaluated, new)
                break
            if not prefix_pass.at_divergence or index == prefix_pass.last:
                readings[index].append(("verify", new, scores))

    # Where no width can be read, reading everything at once is the only measure of the noise.
    for index in sorted(at_divergence if scorer.in_batches else at_divergence | sampled):
        prefix = [*prompt, *answer[:index]]
        readings[index].append(("prefill", len(prefix), scorer.read_whole(prefix, top(index))))

    divergences_and_sample = [(divergence.index, divergence.rival, True) for divergence in plan.answer.divergences]
    divergences_and_sample += [
        (end, _runner_up(decoded[end], answer[end]), False) for end in sorted(sampled) if end in decoded
    ]
    return [
        Position(
            task=plan.answer.task,
            prompt_idx=plan.answer.prompt_idx,
            prompt_sha=plan.answer.prompt_sha,
            index=index,
            agreed_sha=sha256_tokens(answer[:index]),
            token=answer[index],
            rival=rival,
            fork=is_divergence,
            readings=[_reading(shape, width, scores, answer[index], rival) for shape, width, scores in readings[index]],
            absent=absent if is_divergence else {},
        )
        for index, rival, is_divergence in dict.fromkeys(divergences_and_sample)
    ]


def _not_kept(evaluated: int, expected: int) -> str:
    return f"the engine evaluated {evaluated} tokens where {expected} were new: it does not keep the cache of a prefix"


def _runner_up(scores: Scores, token: int) -> int:
    return next(candidate for candidate in scores.logprobs if candidate != token)


def _reading(shape: Shape, width: int, scores: Scores, token: int, rival: int) -> Reading:
    logprobs = scores.logprobs
    return Reading(
        shape=shape,
        width=width,
        likeliest=scores.likeliest,
        token=logprobs.get(token),
        rival=logprobs.get(rival),
        rival_at_most=None if rival in logprobs else min(logprobs.values()),
    )


@dataclass(frozen=True)
class ReadAnswer:
    """An answer as scored, with what it takes to read it again and to compare."""

    scored: ScoredAnswer
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]

    def likeliest(self, index: int) -> int:
        """The target's likeliest token there: the answer's own, unless the target left it."""
        likeliest = (token.likeliest for token in self.scored.diverged if token.index == index)
        return next(likeliest, self.tokens[index])

    def loss(self, index: int, scores: Scores) -> float:
        """Return how much less the target now prefers its likeliest token to the best other; nats."""
        logprobs, likeliest = scores.logprobs, self.likeliest(index)
        value = logprobs.get(likeliest, min(logprobs.values()))
        best = max(logprob for token, logprob in logprobs.items() if token != likeliest)
        return round(self.scored.margins[index] - (value - best), DIGITS)

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
    for index, scores in enumerate(scores_of(scorer, prompt, answer.token_ids, TOP)):
        best, second = list(scores.logprobs.values())[:2]
        margins.append(round(best - second, DIGITS))
        token, likeliest = answer.token_ids[index], scores.likeliest
        logprob = scores.logprobs.get(token)
        gap = scores.logprobs[likeliest] - (min(scores.logprobs.values()) if logprob is None else logprob)
        if token != likeliest and gap > 0:
            gap_is_least = logprob is None
            diverged.append(
                DivergedToken(index=index, likeliest=likeliest, gap=round(gap, DIGITS), gap_is_least=gap_is_least)
            )
    about = {name: getattr(answer, name) for name in ("task", "prompt_idx", "prompt_sha", "token_sha")}
    return ReadAnswer(ScoredAnswer(**about, margins=margins, diverged=diverged), tuple(prompt), answer.token_ids)


def scores_of(scorer: Scorer, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
    """Score an answer as greedy decoding evaluates it, or at once where the engine cannot do that."""
    if isinstance(scorer, PrefillScorer):
        return scorer.score_answer(prompt, answer, top)
    scores = [scorer.read_prompt(prompt, top)]
    for _, new, read in read_steps(scorer, prompt, answer, range(1, len(answer)), lambda _: top):
        require_kept(read, new)
        scores.append(read)
    return scores


def read_in_batches(scorer: Scorer, answer: ReadAnswer, alignment: Alignment) -> NullPass:
    """Read an answer in batches and compare it with its scores. Raises EngineError."""
    batches = answer.null_pass(alignment)
    scorer.read_prompt(answer.prompt, 1)
    counted = dict(alignment.ends(len(answer.tokens)))
    for end, new, scores in read_steps(
        scorer, answer.prompt, answer.tokens, counted, lambda index: TOP if counted[index] else 1
    ):
        require_kept(scores, new)
        if counted[end]:
            batches.places.append(end)
            batches.losses.append(answer.loss(end, scores))
    return batches


def read_by_decoding(scorer: Scorer, answer: ReadAnswer) -> NullPass:
    """Decode an answer that is the target's own again, for an engine whose scores are of prefill. Raises EngineError.

    Ends where the target goes another way than the answer.
    """
    decoding = answer.null_pass(Alignment(0, 0))
    decoding.places.append(0)
    decoding.losses.append(answer.loss(0, scorer.read_prompt(answer.prompt, TOP)))
    steps = read_steps(scorer, answer.prompt, answer.tokens, range(1, len(answer.tokens)), lambda _: TOP)
    for index, new, scores in steps:
        if scores.evaluated != new:
            break
        decoding.places.append(index)
        decoding.losses.append(answer.loss(index, scores))
    return decoding


def require_kept(scores: Scores, expected: int) -> None:
    """Raise EngineError where the engine read more than what was new."""
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
    scorer: SlotScorer,
    answers: Sequence[ReadAnswer],
    target_scores: TargetScores,
    *,
    width: int,
    slots: int,
    until: float,
) -> None:
    """Measure the noise of batches that several requests share, an answer in each slot, in step; adds to `known`.

    It is what an engine of several slots does with rounds of speculation: every slot has `width` tokens in each batch,
    and where it begins its next answer, that prompt is in the batch, too. `until`: the monotonic time to end at. Only
    batches in which every slot reads on count. Raises EngineError.
    """
    slot_batches = [_batches(slot_answers, width) for slot_answers in _dealt(answers, slots)]
    have = target_scores.places_read(width, slots)
    passes: dict[tuple[object, ...], NullPass] = {}
    for batches in zip(*slot_batches, strict=False):
        if have >= PREFIXES or time.monotonic() >= until:
            break
        ordered = sorted(batches, key=lambda batch: batch.end == 0)  # a new prompt takes the slot that is left
        for batch, scores in zip(
            ordered, scorer.read_together([batch_of_slot.prefix for batch_of_slot in ordered], TOP), strict=True
        ):
            if batch.counts and scores.evaluated == batch.new:
                null_pass = batch.answer.null_pass(batch.alignment, slots)
                null_pass = passes.setdefault(null_pass.key, null_pass)
                null_pass.places.append(batch.end)
                null_pass.losses.append(batch.answer.loss(batch.end, scores))
                have += 1
    target_scores.passes.extend(passes.values())


def _dealt(answers: Sequence[ReadAnswer], slots: int) -> list[list[ReadAnswer]]:
    """Deal the answers out to the slots, all to a prompt to the same slot: no two slots share a prefix."""
    prompts = list(dict.fromkeys(answer.prompt for answer in answers))
    by_slot: list[list[ReadAnswer]] = [[] for _ in range(slots)]
    for number, answer in enumerate(answers):
        by_slot[(prompts.index(answer.prompt) if len(prompts) >= slots else number) % slots].append(answer)
    return by_slot
