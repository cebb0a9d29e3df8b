"""What an audit reads: every answer once, its noise in several alignments, within the time that it has."""

from __future__ import annotations

import itertools

import pytest

from benchctl.data.record import sha256_tokens
from benchctl.errors import EngineError
from benchctl.lossless.audit_plan import Alignment, ScoringCost, alignments, make_plan
from benchctl.lossless.audit_session import read_in_batches, score
from benchctl.lossless.selection import Answer, ArmAnswers, Selection
from tests.lossless.test_reading import ANSWER, PROMPT, RIVAL, ToyScorer

CHEAP = ScoringCost(token_s=0.01, prompt_s=0.1)


def answer(index: int = 0, ids: tuple[int, ...] = ANSWER) -> Answer:
    return Answer("code", index, "sha", len(PROMPT), ids, sha256_tokens(list(ids)))


def selection(prompts: int, *, widths: tuple[int, ...] = (5,), size: int = 100) -> Selection:
    answers = tuple(answer(one, tuple(range(size))) for one in range(prompts))
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
    found = list(alignments(4))
    assert {one.first for one in found[:4]} == {1, 2, 3, 4}
    assert len(found) == len(set(found)) == 16


def test_a_thousand_prefixes_of_every_width_and_hardly_more() -> None:
    plan = make_plan(selection(40, widths=(3, 9)), None, CHEAP, 1e9, in_batches=True)
    for width in (3, 9):
        count = sum(
            each.places(len(one.answer.token_ids))
            for prompt in plan.prompts
            for one in prompt
            for each in one.alignments
            if each.width == width
        )
        assert 1_000 <= count < 1_040
    assert len(plan.prompts) == 40


def test_short_runs_read_their_answers_in_more_ways() -> None:
    plan = make_plan(selection(4), None, CHEAP, 1e9, in_batches=True)
    assert any(each.skipped for prompt in plan.prompts for one in prompt for each in one.alignments)


def test_prompts_that_do_not_fit_are_left_out_and_the_cost_is_told() -> None:
    whole = make_plan(selection(100), None, CHEAP, 1e9, in_batches=True)
    part = make_plan(selection(100), None, CHEAP, whole.seconds / 2, in_batches=True)
    assert (len(whole.prompts), part.of) == (100, 100)
    assert 10 < len(part.prompts) < 100
    assert part.seconds < 0.7 * whole.seconds


def test_an_answer_is_scored_at_every_token() -> None:
    other = (*ANSWER[:12], RIVAL, *ANSWER[13:])
    reading = score(ToyScorer(), PROMPT, answer(ids=other))
    assert len(reading.scored.margins) == len(ANSWER)
    assert set(reading.scored.margins) == {1.0}
    assert [(one.index, one.likeliest, one.gap) for one in reading.scored.diverged] == [(12, ANSWER[12], 1.0)]


def test_a_batch_takes_from_the_margin_what_it_takes() -> None:
    scorer, one = ToyScorer(), answer()
    found = read_in_batches(scorer, PROMPT, one, score(scorer, PROMPT, one), Alignment(5, 2))
    assert found.places == [2, 7, 12, 17, 22, 27, 32, 37]
    assert found.losses == pytest.approx([0.1, *[0.4] * 7])  # the first batch is narrower: nothing is borrowed


def test_an_engine_that_keeps_nothing_is_no_scorer() -> None:
    with pytest.raises(EngineError, match="tokens where 1 were new"):
        score(ToyScorer(keeps=False), PROMPT, answer())
