"""A run within a time: fewer prompts of each task, then fewer tasks, and blocks that end in time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.measurement import budget
from benchctl.measurement.budget import with_budget, within_budget
from benchctl.measurement.plan import CellPlan
from benchctl.measurement.prepare import Prepared
from benchctl.prompts.load import Suite, load_suite
from benchctl.recipes.schema import AutoBlocks, Recipe

SECONDS_EACH = 5.0


@pytest.fixture
def prepared(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    """Seven tasks of three prompts, of which every answer takes five seconds."""

    def size(_: Prepared, plan: list[CellPlan], *rest: Any) -> SimpleNamespace:
        return SimpleNamespace(seconds=SECONDS_EACH * sum(len(cell.prompts) for cell in plan))

    monkeypatch.setattr(budget, "size_of", size)
    monkeypatch.setattr(budget, "timings_for", lambda *_: None)
    suite: Suite = load_suite("default", recipe_folder=tmp_path)
    automatic = recipe.model_copy(update={"blocks": AutoBlocks()})
    return Prepared(automatic, tmp_path, suite, suite.select(None, 3), {}, [], {})


@pytest.mark.parametrize(
    ("minutes", "limit", "tasks"), [(60, None, 7), (10, 2, 7), (6, 1, 7), (4, 1, 5), (1, 1, budget.FEWEST_TASKS)]
)
def test_few_prompts_fit_first(
    prepared: Prepared, minutes: float, limit: int | None, tasks: int, tmp_path: Path
) -> None:
    arms = len(prepared.recipe.arms)
    smaller = within_budget(prepared, tmp_path, 60 * minutes * arms / 2)
    assert smaller.recipe.prompts.limit == (limit or prepared.recipe.prompts.limit)
    assert len({item.task for item in smaller.prompts}) == tasks
    assert len(smaller.prompts) == tasks * (limit or 3)
    again = smaller.suite.select(smaller.recipe.prompts.tasks, smaller.recipe.prompts.limit or 3)
    assert smaller.prompts == again, "a resumed run reads the same prompts of its recipe"


def test_a_budget_ends_the_blocks(recipe: Recipe) -> None:
    fixed = with_budget(recipe.model_copy(update={"blocks": 7}), 90.0)
    assert isinstance(fixed.blocks, AutoBlocks) and fixed.blocks.minutes == 1.5
    narrow = with_budget(recipe.model_copy(update={"blocks": AutoBlocks(half_width=0.1)}), 60.0)
    assert isinstance(narrow.blocks, AutoBlocks) and (narrow.blocks.half_width, narrow.blocks.minutes) == (0.1, 1.0)


def test_where_nothing_is_known_few_prompts_are_asked(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "size_of", lambda *_: SimpleNamespace(seconds=None))
    assert len(within_budget(prepared, tmp_path, 300.0).prompts) == 2 * len({item.task for item in prepared.prompts})
