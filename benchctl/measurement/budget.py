"""A run that fits into a time: three blocks of few prompts first, and the rest of it for what is undecided."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchctl.errors import EngineError
from benchctl.measurement.cell import running
from benchctl.measurement.estimate import paced_timings, size_of, timings_for
from benchctl.measurement.plan import ArmCost, make_plan
from benchctl.measurement.prepare import Prepared, with_arms
from benchctl.measurement.requests import as_warm_up, warm_up
from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.schema import Arm, AutoBlocks, Recipe

DEFAULT_S = 300.0
"""The budget of a run without a recipe: what a newcomer waits for."""
FIRST_SHARE = 0.75
"""The share of the budget that the first blocks may take: the rest goes to what they leave undecided."""
TIMING_SHARE = 0.03
"""The share of the budget that the start of an engine may take that is only timed."""
UNTIMED_PROMPTS = 2
"""Of each task, where nothing is known of the engine's speed: of seven tasks these are a dozen and more."""
FEWEST_TASKS = 4
"""Tasks are left out only where a prompt of each takes too long, and never more than down to so many."""


def with_budget(recipe: Recipe, budget_s: float) -> Recipe:
    """Return the recipe with blocks that end within a time, after the first three."""
    rule = recipe.blocks if isinstance(recipe.blocks, AutoBlocks) else AutoBlocks()
    return recipe.model_copy(update={"blocks": rule.model_copy(update={"budget_min": budget_s / 60})})


def time_baseline(prepared: Prepared, log: Path) -> ArmCost:
    """Time a process of the baseline, unmeasured: how long it takes to start, and to answer. Raises EngineError.

    Of several answers the fastest counts: what slows others is mostly something else, and a search that was sized by
    it would leave out what fits.
    """
    recipe = prepared.recipe
    began = time.perf_counter()
    brief = as_warm_up(recipe.sampling)
    with running(prepared.of_baseline.engine.start(prepared.launches[recipe.baseline], log)) as server:
        _, warm = warm_up(server, recipe.sampling)
        ready = time.perf_counter()
        answers = [asyncio.run(server.complete(server.render(item.prompt), brief)) for item in prepared.prompts[:2]]
        answered_at = time.perf_counter()
    stopping_s = time.perf_counter() - answered_at
    replies = (warm, *answers)
    counted = [(reply.decode_s, reply.after_first or reply.least_after_first or 0) for reply in replies]
    token_s = min(
        (seconds / tokens for seconds, tokens in counted if tokens),
        default=min(reply.e2e_s for reply in replies),  # each ended at its first token
    )
    answer_s = min(answer.ttft_s for answer in answers) + token_s * recipe.sampling.max_tokens
    return ArmCost(ready - began + stopping_s, answer_s)


def within_budget(
    prepared: Prepared,
    results: Path,
    budget_s: float,
    *,
    drops_arms: bool,
    waiting: Callable[[str], None] | None = None,
) -> Prepared:
    """Return the run with as many prompts of each task as the first blocks have time for, at least one.

    By times of an earlier run below `results`, else of the target, which is timed now and said to `waiting` (`None`: it
    is not started), else by memory bandwidth. Where nothing is known: two prompts of each. `drops_arms`: where a prompt
    of each takes too long, the deepest drafts are left out.
    """
    timings = timings_for(prepared, None, results)
    if waiting is not None and not timings.known:
        prepared = _timed(prepared, budget_s, waiting)
        timings = paced_timings(prepared)
    smallest = prepared
    for smaller in _smaller(prepared, drops_arms=drops_arms):
        plan = make_plan(smaller.recipe, smaller.prompts)
        seconds = size_of(smaller, plan, timings).seconds
        if seconds is None:
            return _with_prompts(prepared, _tasks(prepared), UNTIMED_PROMPTS)
        if seconds <= FIRST_SHARE * budget_s:
            return smaller
        smallest = smaller
    return smallest


def _timed(prepared: Prepared, budget_s: float, waiting: Callable[[str], None]) -> Prepared:
    """Return the run with what a process of its baseline costs.

    By the memory's bandwidth alone runs were planned that took three times as long. An engine whose start alone would
    take too much of the budget is not timed, and neither is one that fails: the run will say so, with its log.
    """
    usual = adapter_of(prepared.recipe.engine.kind).usual
    if usual is not None and usual.start_s > TIMING_SHARE * budget_s:
        return prepared
    waiting("timing two answers of the target, to size the run")
    with TemporaryDirectory(prefix="benchctl-") as folder, suppress(EngineError):
        return replace(prepared, pace=time_baseline(prepared, Path(folder) / "timing.log"))
    return prepared


def _smaller(prepared: Prepared, *, drops_arms: bool) -> Iterator[Prepared]:
    """Yield the run smaller and smaller: as it is, then fewer prompts of each task, fewer tasks, fewer depths."""
    tasks = _tasks(prepared)
    most = max((sum(item.task == task for item in prepared.prompts) for task in tasks), default=1)
    yield prepared
    yield from (_with_prompts(prepared, tasks, limit) for limit in range(most - 1, 0, -1))
    yield from (_with_prompts(prepared, tasks[:count], 1) for count in range(len(tasks) - 1, FEWEST_TASKS - 1, -1))
    arms = [arm for arm in prepared.recipe.arms if arm.speculation is not None] if drops_arms else []
    for deepest in sorted(arms, key=_depth, reverse=True)[: len(arms) - 1]:
        kept = [arm for arm in prepared.recipe.arms if arm.speculation is None or _depth(arm) < _depth(deepest)]
        yield _with_prompts(with_arms(prepared, kept), tasks[:FEWEST_TASKS], 1)


def _depth(arm: Arm) -> int:
    return (arm.speculation.max or 0) if arm.speculation is not None else 0


def _tasks(prepared: Prepared) -> list[str]:
    return list(dict.fromkeys(item.task for item in prepared.prompts))


def _with_prompts(prepared: Prepared, tasks: list[str], limit: int) -> Prepared:
    kept = {task: [item for item in prepared.prompts if item.task == task][:limit] for task in tasks}
    prompts = tuple(item for item in prepared.prompts if item in kept.get(item.task, ()))
    changed = {"limit": limit, "tasks": tasks}
    recipe = prepared.recipe.model_copy(update={"prompts": prepared.recipe.prompts.model_copy(update=changed)})
    return replace(prepared, recipe=recipe, prompts=prompts)
