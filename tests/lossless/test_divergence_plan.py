"""What is replayed: every fork at its own width, and a sample that is spread over the answers."""

from __future__ import annotations

import pytest

from benchctl.lossless.divergence_plan import PREFILLS, SAMPLE, Pass, divergence_pass, make_plan
from benchctl.lossless.prefixes import AnswerToScore, DivergenceToScore


def answer(task: str, index: int, size: int, *forks: DivergenceToScore) -> AnswerToScore:
    return AnswerToScore(task, index, None, None, tuple(range(size)), forks)


@pytest.mark.parametrize(
    ("index", "width", "ends"),
    [(12, 5, [2, 7, 12]), (10, 5, [5, 10]), (5, 5, [5]), (3, 5, [3]), (40, 17, [6, 23, 40])],
)
def test_a_pass_ends_at_its_fork_in_batches_of_the_width(index: int, width: int, ends: list[int]) -> None:
    one = divergence_pass(DivergenceToScore(index, 9, width))
    assert one is not None
    assert list(one.ends) == ends
    assert one.first <= min(index, width)  # before the width-th token one narrower batch: the prompt is never split


@pytest.mark.parametrize(("index", "width"), [(0, 5), (7, 1), (7, None)])
def test_what_no_round_decided_has_no_pass(index: int, width: int | None) -> None:
    assert divergence_pass(DivergenceToScore(index, 9, width)) is None


def test_without_a_fork_nothing_is_read() -> None:
    assert make_plan([answer("code", 0, 50)]) == []


def test_tasks_come_in_turn_and_every_answer_gives_to_the_sample() -> None:
    answers = [answer("code", i, 60, *([DivergenceToScore(9, 1, 5)] if i == 0 else [])) for i in range(4)]
    plans = make_plan([*answers, answer("chat", 0, 60)])
    assert [(plan.answer.task, plan.answer.prompt_idx) for plan in plans][:3] == [("code", 0), ("chat", 0), ("code", 1)]
    assert all(any(not one.fork for one in plan.passes) for plan in plans)


def test_the_sample_is_large_enough_and_no_larger() -> None:
    answers = [answer("code", i, 400, *([DivergenceToScore(9, 1, 5)] if i == 0 else [])) for i in range(50)]
    plans = make_plan(answers)
    count = sum(len(one.ends) for plan in plans for one in plan.passes if not one.fork)
    assert SAMPLE <= count <= SAMPLE + 8
    assert len(plans) < 50
    assert sum(len(plan.prefilled) for plan in plans) <= PREFILLS


def test_short_answers_are_read_a_second_time_from_another_start() -> None:
    plans = make_plan([answer("code", 0, 40, DivergenceToScore(30, 1, 9))])
    starts = [one.first for one in plans[0].passes if not one.fork]
    assert starts[:2] == [9, 5]
    ends = [end for one in plans[0].passes if not one.fork for end in one.ends if end - one.width >= 0]
    assert len(ends) == len(set(ends)) >= 30


def test_a_width_that_is_sampled_already_is_not_read_again() -> None:
    plans = make_plan([answer("code", 0, 40, DivergenceToScore(30, 1, 9)), answer("code", 1, 40)], sampled=[9])
    assert [plan.passes for plan in plans] == [(Pass(9, 3, 30, fork=True),)]
    assert plans[0].prefilled == ()


def test_the_baselines_own_shape_reaches_as_far_as_anything_else() -> None:
    plans = make_plan([answer("code", 0, 40, DivergenceToScore(30, 1, 9), DivergenceToScore(33, 1, 1))])
    assert plans[0].last == max(33, *(one.last for one in plans[0].passes))
    assert all(one.last < 40 for one in plans[0].passes)
