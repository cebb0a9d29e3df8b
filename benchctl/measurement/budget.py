"""A run that fits into a time: three blocks of few prompts first, and the rest of it for what is undecided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchctl.measurement.estimate import size_of, timings_for
from benchctl.measurement.plan import make_plan
from benchctl.measurement.prepare import Prepared
from benchctl.recipes.schema import AutoBlocks, Recipe

DEFAULT_S = 300.0
"""The budget of a run without a recipe: what a newcomer waits for."""
FIRST_SHARE = 0.7
"""The share of the budget that the first blocks may take: the rest goes to what they leave undecided."""
UNTIMED_PROMPTS = 2
"""Of each task, where nothing is known of the engine's speed: of seven tasks these are a dozen and more."""
FEWEST_TASKS = 4
"""Tasks are left out only where a prompt of each takes too long, and never more than down to so many."""


def with_budget(recipe: Recipe, budget_s: float) -> Recipe:
    """Return the recipe with blocks that end within a time, after the first three."""
    rule = recipe.blocks if isinstance(recipe.blocks, AutoBlocks) else AutoBlocks()
    return recipe.model_copy(update={"blocks": rule.model_copy(update={"budget_min": budget_s / 60})})


def within_budget(prepared: Prepared, results: Path, budget_s: float) -> Prepared:
    """Return the run with as many prompts of each task as the first blocks have time for, at least one.

    By times of an earlier run below `results`, else by memory bandwidth. Where nothing is known: two prompts of each.
    """
    timings, smallest = timings_for(prepared, None, results), prepared
    for smaller in _smaller(prepared):
        plan = make_plan(smaller.recipe, smaller.prompts)
        seconds = size_of(smaller, plan, timings).seconds
        if seconds is None:
            return _with_prompts(prepared, _tasks(prepared), UNTIMED_PROMPTS)
        if seconds <= FIRST_SHARE * budget_s:
            return smaller
        smallest = smaller
    return smallest


def _smaller(prepared: Prepared) -> Iterator[Prepared]:
    """Yield the run with fewer and fewer prompts: as it is, then fewer of each task, then fewer tasks."""
    tasks = _tasks(prepared)
    most = max((sum(item.task == task for item in prepared.prompts) for task in tasks), default=1)
    yield prepared
    yield from (_with_prompts(prepared, tasks, limit) for limit in range(most - 1, 0, -1))
    yield from (_with_prompts(prepared, tasks[:count], 1) for count in range(len(tasks) - 1, FEWEST_TASKS - 1, -1))


def _tasks(prepared: Prepared) -> list[str]:
    return list(dict.fromkeys(item.task for item in prepared.prompts))


def _with_prompts(prepared: Prepared, tasks: list[str], limit: int) -> Prepared:
    kept = {task: [item for item in prepared.prompts if item.task == task][:limit] for task in tasks}
    prompts = tuple(item for item in prepared.prompts if item in kept.get(item.task, ()))
    changed = {"limit": limit, "tasks": tasks}
    recipe = prepared.recipe.model_copy(update={"prompts": prepared.recipe.prompts.model_copy(update=changed)})
    return replace(prepared, recipe=recipe, prompts=prompts)
