"""A run within a time: fewer prompts of each task, then fewer tasks, and blocks that end in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.engines.base import Launch
from benchctl.measurement import budget, estimate
from benchctl.measurement.budget import with_budget, within_budget
from benchctl.measurement.plan import ArmCost, CellPlan, make_plan
from benchctl.measurement.prepare import Prepared, PreparedSetup
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.prompts.load import Suite, load_suite
from benchctl.recipes.schema import Arm, AutoBlocks, Recipe
from benchctl.recipes.speculation import Speculation
from tests.measurement.toy_engine import ToyEngine, answer

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
    ("minutes", "limit", "tasks"), [(60, None, 7), (10, 2, 7), (6, 1, 7), (3.5, 1, 5), (1, 1, budget.FEWEST_TASKS)]
)
def test_few_prompts_fit_first(
    prepared: Prepared, minutes: float, limit: int | None, tasks: int, tmp_path: Path
) -> None:
    arms = len(prepared.recipe.arms)
    smaller = within_budget(prepared, tmp_path, 60 * minutes * arms / 2, drops_arms=False)
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
    assert len(within_budget(prepared, tmp_path, 300.0, drops_arms=False).prompts) == 2 * len(
        {item.task for item in prepared.prompts}
    )


def test_a_timed_target_says_how_long_the_plan_takes(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the memory's bandwidth a Q4_K_M of 1.5 B parameters was planned with 3 minutes and took 13."""
    models = SimpleNamespace(target=SimpleNamespace(size=1000), draft=SimpleNamespace(size=440))
    engine = prepared.recipe.engine.model_copy(update={"device": "cpu"})
    cpu: Any = prepared.recipe.model_copy(update={"engine": engine})
    nothing: Any = None
    pair: Any = models
    setup = PreparedSetup(cpu, nothing, nothing, pair)
    paced = replace(prepared, setups={None: setup}, pace=ArmCost(overhead_s=5.0, answer_s=5.0))
    monkeypatch.setattr(estimate, "earlier_timings", lambda *_: None)
    timings = estimate.timings_for(paced, None, Path())
    assert timings.of_plan(make_plan(paced.recipe, paced.prompts[:6], blocks=[0])) == pytest.approx(
        (5 + 5 + 6 * 5) + (5 + 1.86 * 5 + 6 * 1.86 * 5), rel=0.01
    ), "measured on two cores, depth 4: answers of 5.0 and 8.1 s, processes of 39 and 65 s"


def test_depths_that_nobody_named_are_left_out_where_the_budget_is_short(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "with_arms", lambda run, arms: replace(run, recipe=arms_of(run.recipe, arms)))
    depths = [
        prepared.recipe.arms[1].model_copy(update={"name": f"d{depth}", "speculation": of_depth(depth)})
        for depth in (2, 4, 8)
    ]
    deep = replace(prepared, recipe=arms_of(prepared.recipe, [prepared.recipe.arms[0], *depths]))
    smallest = SECONDS_EACH * 3 * 2 * budget.FEWEST_TASKS
    kept = within_budget(deep, tmp_path, smallest / budget.FIRST_SHARE, drops_arms=True)
    assert [arm.name for arm in kept.recipe.arms] == ["baseline", "d2"]
    named = within_budget(deep, tmp_path, smallest / budget.FIRST_SHARE, drops_arms=False)
    assert [arm.name for arm in named.recipe.arms] == ["baseline", "d2", "d4", "d8"]


def arms_of(recipe: Recipe, arms: list[Arm]) -> Recipe:
    return recipe.model_copy(update={"arms": arms})


def of_depth(depth: int) -> Speculation:
    return Speculation.model_validate({"type": "draft-simple", "max": depth})


EMPTY = replace(answer(), n_predicted=1, ttft_s=0.2, decode_s=0.0, e2e_s=0.2)


@pytest.mark.parametrize(("empty", "seconds"), [((2,), 0.1), ((1, 2, 3), 0.2)])
def test_answers_that_end_at_once_do_not_make_tokens_free(
    empty: tuple[int, ...], seconds: float, prepared: Prepared, tmp_path: Path
) -> None:
    """One such answer of three had a run planned as if its tokens took no time."""
    engine = ToyEngine(answers=lambda _, number: EMPTY if number in empty else answer())
    models = ResolvedPair(ResolvedModel("t", ()), None)
    setups: dict[str | None, PreparedSetup] = {None: PreparedSetup(prepared.recipe, engine, engine.probe(), models)}
    toy = replace(prepared, setups=setups, launches={"baseline": Launch(argv=("toy", "baseline"), env={})})
    tokens = prepared.recipe.sampling.max_tokens
    assert budget.time_baseline(toy, tmp_path / "log").answer_s == pytest.approx(seconds + seconds * tokens)
