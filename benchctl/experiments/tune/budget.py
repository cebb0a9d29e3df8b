"""What a search may cost: the baseline timed beforehand, blocks sized to the budget, and what is left for fresh data.

A search by successive halving (Jamieson & Talwalkar 2016) gives each rung the same share of the time: the fewer arms
are left, the more blocks each of them gets. Nothing is dropped on less than `LEAST_BLOCKS` blocks.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.errors import UsageError
from benchctl.measure.cell import running
from benchctl.measure.requests import as_warm_up, warm_up
from benchctl.recipes.schema import Recipe
from benchctl.recipes.speculation import DRAFTS
from benchctl.text import spoken

if TYPE_CHECKING:
    from benchctl.data.store import RunData
    from benchctl.measure.prepare import Prepared

LEAST_BLOCKS = 2
"""Of a rung: no single block decides anything."""
MOST_BLOCKS = 8
FRESH_BLOCKS = (3, 5, 12)
"""Of the fresh data: below three there is no interval, five make it much narrower, more than twelve hardly."""
FRESH_SHARE = 0.35
"""Of the budget, for measuring what was chosen afresh; less only where the search would not fit at all."""
KEPT_BACK = 0.05
"""Of what is left for fresh data: what cells cost is estimated from earlier ones, and was 4 % more in a kept search."""
_SLOW_ARM = 2.0
"""How much longer than the baseline an arm with a draft model is taken to need before it is measured."""


@dataclass(frozen=True)
class ArmCost:
    """Seconds of a process of an arm."""

    overhead_s: float
    """Starting, warming up and stopping."""
    answer_s: float
    """A prompt."""

    def cell(self, prompts: int) -> float:
        """Seconds of a process that answers so many prompts."""
        return self.overhead_s + prompts * self.answer_s

    def slower(self, factor: float) -> ArmCost:
        """The same with answers that take longer; so does the warm-up, which is part of the overhead."""
        return ArmCost(self.overhead_s * factor, self.answer_s * factor)


@dataclass(frozen=True)
class Design:
    """A search that fits the budget."""

    arms: tuple[str, ...]
    prompts_per_block: int
    left_out: tuple[str, ...]
    """The last arms of the list, which do not fit."""


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
        answers = [asyncio.run(server.complete(server.render(asked.prompt), brief)) for asked in prepared.prompts[:2]]
        answered_at = time.perf_counter()
    stopping_s = time.perf_counter() - answered_at
    token_s = min(
        reply.decode_s / max(1, reply.after_first or reply.least_after_first or 0) for reply in (warm, *answers)
    )
    answer_s = min(answer.ttft_s for answer in answers) + token_s * recipe.sampling.max_tokens
    return ArmCost(ready - began + stopping_s, answer_s)


def guesses(recipe: Recipe, baseline: ArmCost) -> dict[str, ArmCost]:
    """Return what each arm is taken to cost before it is measured."""
    return {
        arm.name: baseline.slower(_SLOW_ARM)
        if arm.speculation and any(name in DRAFTS for name in arm.speculation.types)
        else baseline
        for arm in recipe.arms
    }


def measured_costs(run: RunData, guessed: Mapping[str, ArmCost]) -> dict[str, ArmCost]:
    """Return what each arm cost in the processes that finished, and its estimate where none has."""
    walls: dict[str, float] = defaultdict(float)
    cells: dict[str, int] = defaultdict(int)
    answers: dict[str, list[float]] = defaultdict(list)
    for cell in run.manifest.cells if run.manifest else []:
        if cell.status == "finished":
            walls[cell.arm] += cell.wall_s
            cells[cell.arm] += 1
    for record in run.records:
        if record.phase == "measure" and record.e2e_s is not None:
            answers[record.label].append(record.e2e_s)
    found = dict(guessed)
    for arm, count in cells.items():
        if answers[arm]:
            overhead = max(0.0, walls[arm] - sum(answers[arm])) / count
            found[arm] = ArmCost(overhead, sum(answers[arm]) / len(answers[arm]))
    return found


def block_cost(arms: Collection[str], baseline: str, costs: Mapping[str, ArmCost], prompts: int) -> float:
    """Return the seconds of a block: the baseline and every arm."""
    return sum(costs[arm].cell(prompts) for arm in (baseline, *arms))


def fit(
    recipe: Recipe, costs: Mapping[str, ArmCost], prompts: int, tasks: int, budget_s: float, spent_s: float = 0.0
) -> Design:
    """Size a search for `budget_s` seconds: as many arms as fit, then as many prompts a block as fit.

    `prompts`, `tasks`: of the suite. `spent_s`: what is used of the budget already. Raises UsageError, with the least
    budget, where no arm fits.
    """
    baseline = recipe.baseline
    arms = [arm.name for arm in recipe.arms if arm.name != baseline]

    def searching(chosen: Sequence[str], each: int) -> float:
        by_cost = sorted(chosen, key=lambda arm: -costs[arm].cell(each))  # the dear ones may be those that stay
        return sum(LEAST_BLOCKS * block_cost(by_cost[:left], baseline, costs, each) for left in rungs_of(len(by_cost)))

    def fresh(chosen: Sequence[str]) -> float:
        dearest = max(chosen, key=lambda arm: costs[arm].cell(tasks))
        return FRESH_BLOCKS[0] * block_cost([dearest], baseline, costs, tasks)

    least = spent_s + min(searching([arm], 1) + fresh([arm]) for arm in arms)
    if budget_s < least:
        raise UsageError(
            f"A budget of {spoken(budget_s)} is too short for {LEAST_BLOCKS} blocks of one arm and "
            f"{FRESH_BLOCKS[0]} fresh ones on this machine.",
            where="--budget",
            fix=f"The least is --budget {int(least * 1.1 / 60) + 1}m; shorter answers (--set sampling.max_tokens=32) "
            "or fewer tasks need less.",
        )
    kept = arms
    while len(kept) > 1 and spent_s + searching(kept, 1) + fresh(kept) > budget_s:
        kept = kept[:-1]
    available_s = budget_s - spent_s - max(FRESH_SHARE * budget_s, fresh(kept))
    each = max((count for count in range(1, prompts + 1) if searching(kept, count) <= available_s), default=1)
    return Design(tuple(kept), each, tuple(arms[len(kept) :]))


def rungs_of(arms: int) -> list[int]:
    """Return how many arms each rung has: half of those before, rounded down, until a single arm is left."""
    rungs = [arms]
    while rungs[-1] > 3:
        rungs.append(rungs[-1] // 2)
    return rungs


def rung_blocks(left_s: float, rungs: int, block_s: float) -> int:
    """Return how many blocks a rung gets where so many rungs share so many seconds."""
    return max(LEAST_BLOCKS, min(MOST_BLOCKS, int(left_s / max(1, rungs) / block_s)))


def fresh_design(
    left_s: float, per_task: int, tasks: int, baseline: ArmCost, arm: ArmCost, prompts: int
) -> tuple[int, int | None]:
    """Return how many fresh blocks fit, and how many prompts of each task they have (`None`: all).

    As many prompts as still leave five blocks, else a prompt of each task; then as many blocks as fit.
    """
    least, good, most = FRESH_BLOCKS

    def fitting(limit: int) -> int:
        count = min(prompts, limit * tasks)
        return int(left_s / (baseline.cell(count) + arm.cell(count)))

    limit = max((number for number in range(1, per_task + 1) if fitting(number) >= good), default=1)
    return max(least, min(most, fitting(limit))), None if limit >= per_task else limit
