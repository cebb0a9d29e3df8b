from __future__ import annotations

import time
from typing import Any

import pytest

from benchctl.measure.plan import make_plan
from benchctl.measure.time_left import TimeLeft
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Seconds that pass only when a test says so."""
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])

    def passes(more: float) -> None:
        seconds[0] += more

    return passes


def test_each_arm_is_counted_at_its_own_pace(recipe: Recipe, prompts: list[PromptItem], clock: Any) -> None:
    left = TimeLeft(make_plan(recipe, prompts))  # two arms, two blocks, two prompts
    assert left.left() is None
    for arm, start_s in (("baseline", 1), ("spec", 3)):
        left.cell_started(arm)
        clock(start_s)
        left.cell_ready(arm)
    for arm, answer_s in (("baseline", 10), ("spec", 5)):
        for _ in prompts:
            clock(answer_s)
            left.answered(arm)
        left.cell_ended(arm, unanswered=0)
    assert left.left() == pytest.approx((1 + 2 * 10) + (3 + 2 * 5)), "one more block"
    left.extend(make_plan(recipe, prompts, blocks=[2]))
    assert left.left() == pytest.approx(2 * 34)


def test_requests_in_flight_together_share_their_time(recipe: Recipe, prompts: list[PromptItem], clock: Any) -> None:
    left = TimeLeft(make_plan(recipe, prompts, blocks=[0, 1, 2]))
    left.cell_started("baseline")
    left.cell_ready("baseline")
    clock(6)
    left.answered("baseline")  # both were sent at once, and ended at once
    left.answered("baseline")
    left.cell_ended("baseline", unanswered=0)
    assert left.left() == pytest.approx(5 * 2 * 3), "ten requests to come at half of six seconds each"


def test_what_a_dead_engine_did_not_answer_is_not_coming(recipe: Recipe, prompts: list[PromptItem], clock: Any) -> None:
    left = TimeLeft(make_plan(recipe, prompts, blocks=[0]))
    left.cell_started("baseline")
    left.cell_ready("baseline")
    clock(4)
    left.answered("baseline")
    left.cell_ended("baseline", unanswered=1)
    left.cell_started("spec")
    left.cell_ended("spec", unanswered=2)
    assert left.left() == 0
