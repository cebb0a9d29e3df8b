"""The noise of batches that several requests share, on slots that exist only in the test and on the real engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from benchctl.data.record import sha256_tokens
from benchctl.data.scores import DivergedToken, ScoredAnswer, TargetScores
from benchctl.engines.base import Rendered
from benchctl.engines.scoring import Scores
from benchctl.lossless.judge.audit import PREFIXES
from benchctl.lossless.score.reading import ReadAnswer, read_shared
from benchctl.prompts.suite import Prompt

SLOTS, WIDTH = 3, 4


class ToySlots:
    """Gives a prefix to the slot that holds most of it; every token of a batch takes 0.01 nats from a margin of 1."""

    def __init__(self) -> None:
        self.held: list[tuple[int, ...]] = [()] * SLOTS
        self.batches: list[list[int]] = []

    def render(self, prompt: Prompt) -> Rendered:
        raise NotImplementedError

    def read_together(self, prefixes: Sequence[Sequence[int]], top: int) -> list[Scores]:
        free = list(range(SLOTS))
        evaluated = []
        for prefix in map(tuple, prefixes):
            slot = max(free, key=lambda known_answer: len(common(self.held[known_answer], prefix)))
            free.remove(slot)
            evaluated.append(len(prefix) - len(common(self.held[slot], prefix)))
            self.held[slot] = prefix
        self.batches.append(evaluated)
        margin = 1 - 0.01 * sum(evaluated)
        logprobs = [{prefix[-1] + 1: -0.5, 7: -0.5 - margin} for prefix in prefixes]
        return [Scores(known_answer, count) for known_answer, count in zip(logprobs, evaluated, strict=True)]

    def stop(self) -> int | None:
        return 0


def common(slot_tokens: Sequence[int], prefix: Sequence[int]) -> Sequence[int]:
    """What a slot can keep: all that it holds, where the prefix begins so; else nothing, as a recurrent state."""
    return slot_tokens if tuple(prefix[: len(slot_tokens)]) == tuple(slot_tokens) else ()


def known(number: int, size: int = 30) -> ReadAnswer:
    start = 1000 * (number + 1)
    prompt, answer = tuple(range(start, start + 9)), tuple(range(start + 9, start + 9 + size))
    scored = ScoredAnswer(
        task="code", prompt_idx=number, prompt_sha="sha", token_sha=sha256_tokens(list(answer)), margins=[1.0] * size
    )
    return ReadAnswer(scored, prompt, answer)


def nothing() -> TargetScores:
    return TargetScores.model_construct(passes=[], answers=[])


def test_every_slot_reads_so_many_tokens_in_one_batch_and_new_prompts_join() -> None:
    scorer, scores = ToySlots(), nothing()
    answers = [known(number, 30 + 5 * number) for number in range(5)]
    read_shared(scorer, answers, scores, width=WIDTH, slots=SLOTS, until=time.monotonic() + 60)
    counted = [index for scored_pass in scores.passes for index in scored_pass.places]
    assert len(counted) > 300, "every alignment of every answer, until one slot has none left"
    assert {(scored_pass.width, scored_pass.slots) for scored_pass in scores.passes} == {(WIDTH, SLOTS)}
    assert [WIDTH] * SLOTS in scorer.batches
    assert any(max(batch) >= 9 and len(batch) == SLOTS for batch in scorer.batches[1:]), "a prompt beside rounds"
    complete = [scored_pass for scored_pass in scores.passes if not scored_pass.skipped and scored_pass.first == WIDTH]
    assert any(loss == pytest.approx(0.01 * WIDTH * SLOTS) for known_answer in complete for loss in known_answer.losses)


def test_enough_is_enough_and_what_is_known_counts() -> None:
    scores = nothing()
    answers = [known(number, 200) for number in range(SLOTS)]
    read_shared(ToySlots(), answers, scores, width=WIDTH, slots=SLOTS, until=time.monotonic() + 60)
    assert PREFIXES <= sum(len(scored_pass.places) for scored_pass in scores.passes) < PREFIXES + SLOTS
    before = len(scores.passes)
    read_shared(ToySlots(), answers, scores, width=WIDTH, slots=SLOTS, until=time.monotonic() + 60)
    assert len(scores.passes) == before


def test_at_a_divergence_the_targets_own_token_is_looked_at() -> None:
    known_answer = known(0)
    diverged = known_answer.scored.model_copy(update={"diverged": [DivergedToken(index=4, likeliest=7, gap=0.1)]})
    assert ReadAnswer(diverged, known_answer.prompt, known_answer.tokens).likeliest(4) == 7
    assert ReadAnswer(diverged, known_answer.prompt, known_answer.tokens).likeliest(5) == known_answer.tokens[5]


def test_time_that_is_over_ends_it() -> None:
    scores = nothing()
    read_shared(ToySlots(), [known(0), known(1), known(2)], scores, width=4, slots=3, until=time.monotonic() - 1)
    assert scores.passes == []
