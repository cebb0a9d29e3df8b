"""What is read: every divergence at its width, a sample; whole answers once, their noise, in the time that there is."""

from __future__ import annotations

import itertools

import pytest

from benchctl.data.record import sha256_tokens
from benchctl.errors import EngineError
from benchctl.lossless.judge.selection import Answer, ArmAnswers, Selection
from benchctl.lossless.score.plan import (
    SAMPLE,
    Alignment,
    AnswerToScore,
    DivergenceToScore,
    PrefixPass,
    ScoringCost,
    alignments,
    divergence_pass,
    plan_answers,
    plan_prefixes,
)
from benchctl.lossless.score.reading import read_in_batches, score
from tests.lossless.score.test_reading import ANSWER, PROMPT, RIVAL, ToyScorer

CHEAP = ScoringCost(token_s=0.01, prompt_s=0.1)


def answer(index: int = 0, ids: tuple[int, ...] = ANSWER) -> Answer:
    return Answer("code", index, "sha", len(PROMPT), ids, sha256_tokens(list(ids)))


def selection(prompts: int, *, widths: tuple[int, ...] = (5,), size: int = 100) -> Selection:
    answers = tuple(answer(index, tuple(range(size))) for index in range(prompts))
    return Selection((ArmAnswers("spec", widths, answers, {}, overlapping=False),))


@pytest.mark.parametrize("alignment", [Alignment(5, 5), Alignment(5, 2), Alignment(5, 3, 2), Alignment(3, 1, 1)])
def test_a_counted_batch_has_the_width_and_none_reaches_into_the_prompt(alignment: Alignment) -> None:
    ends = list(alignment.ends(40))
    assert ends[0] == (alignment.first, True)
    sizes = [end - before for (before, _), (end, _) in itertools.pairwise(ends)]
    counted = [counts for _, counts in ends[1:]]
    assert all(
        size == (alignment.width if counts else alignment.skipped) for size, counts in zip(sizes, counted, strict=True)
    )
    assert sum(counts for _, counts in ends) == alignment.places(40)


def test_alignments_begin_at_every_token_and_are_all_different() -> None:
    result = list(alignments(4))
    assert {planned.first for planned in result[:4]} == {1, 2, 3, 4}
    assert len(result) == len(set(result)) == 16


def test_a_thousand_prefixes_of_every_width_and_hardly_more() -> None:
    plan = plan_answers(selection(40, widths=(3, 9)), None, CHEAP, 1e9, in_batches=True)
    for width in (3, 9):
        count = sum(
            alignment.places(len(planned.answer.token_ids))
            for prompt in plan.prompts
            for planned in prompt
            for alignment in planned.alignments
            if alignment.width == width
        )
        assert 1_000 <= count < 1_040
    assert len(plan.prompts) == 40


def test_short_runs_read_their_answers_in_more_ways() -> None:
    plan = plan_answers(selection(4), None, CHEAP, 1e9, in_batches=True)
    assert any(alignment.skipped for prompt in plan.prompts for planned in prompt for alignment in planned.alignments)


def test_prompts_that_do_not_fit_are_left_out_and_the_cost_is_told() -> None:
    complete = plan_answers(selection(100), None, CHEAP, 1e9, in_batches=True)
    part = plan_answers(selection(100), None, CHEAP, complete.seconds / 2, in_batches=True)
    assert (len(complete.prompts), part.total_prompts) == (100, 100)
    assert 10 < len(part.prompts) < 100
    assert part.seconds < 0.7 * complete.seconds


def test_an_answer_is_scored_at_every_token() -> None:
    changed = (*ANSWER[:12], RIVAL, *ANSWER[13:])
    reading = score(ToyScorer(), PROMPT, answer(ids=changed))
    assert len(reading.scored.margins) == len(ANSWER)
    assert set(reading.scored.margins) == {1.0}
    assert [(comparison.index, comparison.likeliest, comparison.gap) for comparison in reading.scored.diverged] == [
        (12, ANSWER[12], 1.0)
    ]


def test_a_batch_takes_from_the_margin_what_it_takes() -> None:
    scorer, planned = ToyScorer(), answer()
    in_batches = read_in_batches(scorer, score(scorer, PROMPT, planned), Alignment(5, 2))
    assert in_batches.places == [2, 7, 12, 17, 22, 27, 32, 37]
    assert in_batches.losses == pytest.approx([0.1, *[0.4] * 7])  # the first batch is narrower: nothing is borrowed


def test_an_engine_that_keeps_nothing_is_no_scorer() -> None:
    with pytest.raises(EngineError, match="tokens where 1 were new"):
        score(ToyScorer(keeps=False), PROMPT, answer())


def baseline(task: str, index: int, size: int, *divergences: DivergenceToScore) -> AnswerToScore:
    return AnswerToScore(task, index, None, None, tuple(range(size)), "", divergences)


@pytest.mark.parametrize(
    ("index", "width", "ends"),
    [(12, 5, [2, 7, 12]), (10, 5, [5, 10]), (5, 5, [5]), (3, 5, [3]), (40, 17, [6, 23, 40])],
)
def test_a_pass_ends_at_its_divergence_in_batches_of_the_width(index: int, width: int, ends: list[int]) -> None:
    planned = divergence_pass(DivergenceToScore(index, 9, width))
    assert planned is not None
    assert list(planned.ends) == ends
    assert planned.first <= min(index, width)  # before the width-th token one narrower batch: the prompt is never split


@pytest.mark.parametrize(("index", "width"), [(0, 5), (7, 1), (7, None)])
def test_what_no_round_decided_has_no_pass(index: int, width: int | None) -> None:
    assert divergence_pass(DivergenceToScore(index, 9, width)) is None


def test_without_a_divergence_nothing_is_read() -> None:
    assert plan_prefixes([baseline("code", 0, 50)]) == []


def test_tasks_come_in_turn_and_every_answer_gives_to_the_sample() -> None:
    answers = [baseline("code", i, 60, *([DivergenceToScore(9, 1, 5)] if i == 0 else [])) for i in range(4)]
    plans = plan_prefixes([*answers, baseline("chat", 0, 60)])
    assert [(plan.answer.task, plan.answer.prompt_idx) for plan in plans][:3] == [("code", 0), ("chat", 0), ("code", 1)]
    assert all(any(not scored_pass.at_divergence for scored_pass in plan.passes) for plan in plans)


def test_the_sample_is_large_enough_and_no_larger() -> None:
    answers = [baseline("code", i, 400, *([DivergenceToScore(9, 1, 5)] if i == 0 else [])) for i in range(50)]
    plans = plan_prefixes(answers)
    count = sum(len(scored_pass.ends) for plan in plans for scored_pass in plan.passes if not scored_pass.at_divergence)
    assert SAMPLE <= count <= SAMPLE + 8
    assert len(plans) < 50


def test_short_answers_are_read_a_second_time_from_another_start() -> None:
    plans = plan_prefixes([baseline("code", 0, 40, DivergenceToScore(30, 1, 9))])
    starts = [scored_pass.first for scored_pass in plans[0].passes if not scored_pass.at_divergence]
    assert starts[:2] == [9, 5]
    ends = [
        end
        for scored_pass in plans[0].passes
        if not scored_pass.at_divergence
        for end in scored_pass.ends
        if end - scored_pass.width >= 0
    ]
    assert len(ends) == len(set(ends)) >= 30


def test_a_width_that_is_sampled_already_is_not_read_again() -> None:
    plans = plan_prefixes([baseline("code", 0, 40, DivergenceToScore(30, 1, 9)), baseline("code", 1, 40)], sampled=[9])
    assert [plan.passes for plan in plans] == [(PrefixPass(9, 3, 30, at_divergence=True),)]


def test_the_baselines_own_shape_reaches_as_far_as_anything_else() -> None:
    plans = plan_prefixes([baseline("code", 0, 40, DivergenceToScore(30, 1, 9), DivergenceToScore(33, 1, 1))])
    assert plans[0].last == max(33, *(scored_pass.last for scored_pass in plans[0].passes))
    assert all(scored_pass.last < 40 for scored_pass in plans[0].passes)
