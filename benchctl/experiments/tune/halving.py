"""The search itself: rungs of short blocks, after each of which the slower half of the arms is dropped.

Every block has the baseline and all remaining arms, each in a fresh process, and measures the next few prompts of
the suite. An arm's standing is its speed-up over all blocks that it was in. The rungs are in the manifest, so that a
search that was cut off is resumed where it was. Standings choose what is measured again and are no result: the largest
of several noisy values is biased upwards (the winner's curse).

The baseline is timed beforehand, and blocks are sized to the budget. Each rung has the same share of the time
(Jamieson & Talwalkar 2016): the fewer arms are left, the more blocks each of them gets. Nothing is dropped on less than
`LEAST_BLOCKS` blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchctl.analysis.cells import states
from benchctl.analysis.conditions.load import throughput_by_block
from benchctl.analysis.frame import make_frame
from benchctl.analysis.speed_table import speed_table
from benchctl.analysis.speedup import pooled
from benchctl.data.manifest import Tuning, TuningRung
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.errors import UsageError
from benchctl.measurement.plan import ArmCost, CellPlan, by_turns, make_plan, measured, unclosed
from benchctl.measurement.prepare import Prepared
from benchctl.measurement.progress import RunProgress
from benchctl.recipes.schema import Recipe
from benchctl.recipes.speculation import DRAFTS, Speculation
from benchctl.text import one_line, spoken

LEAST_BLOCKS = 2
"""Smallest number of blocks of a rung: a single block must not decide."""
MOST_BLOCKS = 8
FRESH_BLOCKS = (3, 5, 12)
"""Least, good and largest number of fresh blocks. Below three there is no interval; more than twelve hardly help."""
FRESH_SHARE = 0.35
"""Share of the budget for measuring the choice again; less only if the search would not fit otherwise."""
KEPT_BACK = 0.05
"""Share of the time for fresh data that is held in reserve: in a kept search, cells took 4 % longer than estimated."""
_SLOW_ARM = 2.0
"""Assumed slowdown of an arm with a draft model, before it is measured."""


@dataclass(frozen=True)
class Design:
    """A search that fits the budget."""

    arms: tuple[str, ...]
    prompts_per_block: int
    left_out: tuple[str, ...]
    """Arms that do not fit, the last ones of the list."""


def drafts(speculation: Speculation | None) -> bool:
    """Return whether a model drafts."""
    return speculation is not None and any(name in DRAFTS for name in speculation.types)


def guesses(recipe: Recipe, baseline: ArmCost) -> dict[str, ArmCost]:
    """Return what each arm is taken to cost before it is measured."""
    return {arm.name: baseline.slower(_SLOW_ARM) if drafts(arm.speculation) else baseline for arm in recipe.arms}


def measured_costs(run: RunData) -> dict[str, ArmCost]:
    """Return what each arm of a search cost in the processes that finished, and its estimate where none has."""
    manifest = run.manifest
    assert manifest is not None and manifest.tuning is not None
    at_once = {arm.name: arm.concurrency for arm in manifest.arms}
    walls: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[float]] = defaultdict(list)
    for cell in manifest.cells:
        if cell.status == "finished" and cell.discarded is None:
            walls[cell.arm].append(cell.wall_s)
    for record in run.records:
        if record.phase == "measure" and record.e2e_s is not None:
            answers[record.label].append(record.e2e_s / at_once[record.label])
    measured = {
        arm: ArmCost(max(0.0, sum(cells) - sum(answers[arm])) / len(cells), sum(answers[arm]) / len(answers[arm]))
        for arm, cells in walls.items()
        if answers[arm]
    }
    return {arm: ArmCost(*guessed) for arm, guessed in manifest.tuning.guessed.items()} | measured


def block_cost(arms: Collection[str], baseline: str, costs: Mapping[str, ArmCost], prompts: int) -> float:
    """Return the seconds of a block: the baseline and every arm."""
    return sum(costs[arm].cell(prompts) for arm in (baseline, *arms))


def fresh_cost(arms: Iterable[str], baseline: str, costs: Mapping[str, ArmCost], tasks: int) -> float:
    """Return the seconds that the least of fresh data takes, of whichever arm is chosen: a prompt of each task."""
    return FRESH_BLOCKS[0] * max(block_cost([arm], baseline, costs, tasks) for arm in arms)


def fit(
    recipe: Recipe,
    costs: Mapping[str, ArmCost],
    prompts: int,
    tasks: int,
    budget_s: float,
    spent_s: float = 0.0,
    fewest: int = 1,
) -> Design:
    """Size a search for `budget_s` seconds: as many arms as fit, then as many prompts a block as fit.

    `prompts`, `tasks`: of the suite. `fewest`: prompts of a block. `spent_s`: what is used of the budget already.
    Raises UsageError, with the least budget, where no arm fits.
    """
    baseline = recipe.baseline
    arms = [arm.name for arm in recipe.arms if arm.name != baseline]

    def searching(chosen: Sequence[str], per_block: int) -> float:
        by_cost = sorted(chosen, key=lambda arm: -costs[arm].cell(per_block))  # the expensive arms may stay
        rungs = rungs_of(len(by_cost))
        return LEAST_BLOCKS * sum(block_cost(by_cost[:arms_left], baseline, costs, per_block) for arms_left in rungs)

    fresh = partial(fresh_cost, baseline=baseline, costs=costs, tasks=tasks)
    shortest_s = spent_s + min(searching([arm], fewest) + fresh([arm]) for arm in arms)
    if budget_s < shortest_s:
        raise UsageError(
            f"A budget of {spoken(budget_s)} is too short for {LEAST_BLOCKS} blocks of one arm and "
            f"{FRESH_BLOCKS[0]} fresh ones on this machine.",
            where="--budget",
            fix=f"The least is --budget {int(shortest_s * 1.1 / 60) + 1}m; shorter answers "
            "(--set sampling.max_tokens=32) or fewer tasks need less.",
        )
    searched = arms
    while len(searched) > 1 and spent_s + searching(searched, fewest) + fresh(searched) > budget_s:
        searched = searched[:-1]
    available_s = budget_s - spent_s - max(FRESH_SHARE * budget_s, fresh(searched))
    per_block = max(
        (count for count in range(fewest, prompts + 1) if searching(searched, count) <= available_s), default=fewest
    )
    return Design(tuple(searched), per_block, tuple(arms[len(searched) :]))


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
    fewest, enough, max_blocks = FRESH_BLOCKS

    def fitting(limit: int) -> int:
        count = min(prompts, limit * tasks)
        return int(left_s / (baseline.cell(count) + arm.cell(count)))

    limit = max((number for number in range(1, per_task + 1) if fitting(number) >= enough), default=1)
    return max(fewest, min(max_blocks, fitting(limit))), None if limit >= per_task else limit


@dataclass(frozen=True)
class Standing:
    """The standing of an arm in a search."""

    arm: str
    speedup: float | None
    """Over the baseline, each block's pooled pairs (with several requests at a time its total throughput), in the
    median of blocks (geometric for an even number), so that one disturbed block decides little; `None` where there are
    no pairs, as when its engine cannot start."""
    blocks: int
    """Number of blocks with pairs of this arm."""
    drafted: int | None
    """Tokens; `None` where not reported."""

    @property
    def races(self) -> bool:
        """Whether it answered, so that it may be chosen."""
        return self.speedup is not None

    @property
    def value(self) -> float:
        """The speed-up by which it is ranked: without a draft token it did the baseline's work, which is exactly 1."""
        return 1.0 if self.drafted == 0 else self.speedup or 0.0

    def __str__(self) -> str:
        if self.speedup is None:
            return f"{one_line(self.arm)} no answer"
        return f"{one_line(self.arm)} {self.speedup:.2f}×{' (never drafted)' if self.drafted == 0 else ''}"


def find_standings(run: RunData, arms: Sequence[str]) -> list[Standing]:
    """Return the standings of `arms`: first those that may be chosen, the fastest first."""
    frame = make_frame(run.records, run.manifest)
    arm_numbers = {name: number for number, name in enumerate(frame.arms)}
    at_once = max((arm.concurrency for arm in run.manifest.arms), default=1) if run.manifest else 1
    standings = []
    for name in arms:
        table = speed_table(frame, arm_numbers[name])
        sums, (blocks, _) = table.sums(table.timed), np.nonzero(table.timed)
        ratios = [pooled(sums[blocks == block]) or np.nan for block in np.unique(blocks)]
        if at_once > 1:
            ratios = throughput_by_block(frame, arm_numbers[name], at_once)
        drafted = [frame.records[row].draft_n for row in frame.row_at[arm_numbers[name]][table.timed]]
        reported = [count for count in drafted if count is not None]
        standings.append(
            Standing(
                arm=name,
                speedup=float(np.exp(np.median(np.log(ratios)))) if ratios else None,
                blocks=len(ratios),
                drafted=sum(reported) if reported else 0 if set(states(frame, name)) == {"idle"} else None,
            )
        )
    return sorted(standings, key=lambda standing: (not standing.races, -standing.value, standing.drafted == 0))


def any_drafted(standings: Sequence[Standing]) -> bool:
    """Return whether some arm drafted; if none did, there is nothing to choose."""
    return any(standing.races and standing.drafted != 0 for standing in standings)


def best_yet(run: RunData) -> str:
    """Return what a search that was cut off has found so far, in sentences."""
    tuning = run.manifest.tuning if run.manifest else None
    if tuning is None or not tuning.rungs:
        return "Nothing was measured yet, so there is no result."
    searched = find_standings(run, tuning.rungs[0].arms)
    first = next((standing for standing in searched if standing.races and standing.arm in tuning.rungs[-1].arms), None)
    if first is None or not any_drafted(searched):
        return "No arm has drafted anything yet that could be compared with no speculation."
    blocks = "1 block" if first.blocks == 1 else f"{first.blocks} blocks"
    return (
        f"Best so far: {one_line(first.arm)}, {first.value:.2f}× no speculation over {blocks}. It was selected as "
        "the largest of several and not measured again, so expect less; this is no result."
    )


@dataclass(frozen=True)
class Halving:
    """The rungs of a search: what `benchctl.measurement.run` asks which cells come next."""

    prepared: Prepared
    writer: RunWriter
    progress: RunProgress

    @classmethod
    def blocks(cls, prepared: Prepared, writer: RunWriter, progress: RunProgress) -> Iterator[list[CellPlan]]:
        """Yield the cells block by block until an arm is chosen; a search that was cut off goes on."""
        return cls(prepared, writer, progress)._blocks()

    best_yet = staticmethod(best_yet)

    @property
    def _tuning(self) -> Tuning:
        tuning = self.writer.manifest.tuning
        assert tuning is not None
        return tuning

    def _blocks(self) -> Iterator[list[CellPlan]]:
        tuning, recipe, manifest = self._tuning, self.prepared.recipe, self.writer.manifest
        while not tuning.ended:
            if not tuning.rungs:
                self._open([arm.name for arm in recipe.arms if arm.name != recipe.baseline])
            rung = tuning.rungs[-1]
            remaining = [f"{len(rung.arms)} arms"] if len(tuning.rungs) == 1 else rung.arms
            self.progress.standing(_heading(tuning), remaining)
            for block in range(rung.first_block, rung.first_block + rung.blocks):
                cells = self._left_of(block, rung)
                manifest.blocks = max(manifest.blocks, block + 1)
                self.writer.save()
                if cells:
                    self.progress.more(cells)
                    yield cells
                self.progress.standing(_heading(tuning), list(map(str, find_standings(self._run(), rung.arms))))
            self._close(rung)

    def _run(self) -> RunData:
        return open_run(self.writer.folder, check=False)

    def _left_of(self, block: int, rung: TuningRung) -> list[CellPlan]:
        per_block, recipe = self._tuning.prompts_per_block, self.prepared.recipe
        prompts = by_turns(self.prepared.prompts)
        asked_prompts = [prompts[index % len(prompts)] for index in range(block * per_block, (block + 1) * per_block)]
        arms = [arm for arm in recipe.arms if arm.name in rung.arms or arm.name == recipe.baseline]
        earlier = self._run()
        done = measured(earlier, per_block)
        return make_plan(
            recipe.model_copy(update={"arms": arms}),
            asked_prompts,
            done,
            [block],
            unclosed=unclosed(earlier, done),
        )

    def _open(self, arms: list[str]) -> None:
        """Begin a rung: as many blocks as its share of what is left allows."""
        tuning = self._tuning
        block_s = block_cost(arms, self.prepared.recipe.baseline, self._costs(), tuning.prompts_per_block)
        blocks = rung_blocks(self._seconds_left(arms), len(rungs_of(len(arms))), block_s)
        first = sum(rung.blocks for rung in tuning.rungs)
        tuning.rungs.append(TuningRung(arms=arms, first_block=first, blocks=blocks))
        self.writer.save()

    def _close(self, rung: TuningRung) -> None:
        """End a rung: the faster half stays, or fewer arms if the remaining time is too short."""
        tuning = self._tuning
        searched = find_standings(self._run(), tuning.rungs[0].arms)
        standings = [entrant for entrant in searched if entrant.arm in rung.arms]
        racing = [standing.arm for standing in standings if standing.races and any_drafted(searched)]
        keep = racing[: max(1, len(rung.arms) // 2)] if len(rung.arms) > 3 else racing[:1]
        costs, baseline = self._costs(), self.prepared.recipe.baseline
        while len(keep) > 1:
            needed_s = LEAST_BLOCKS * block_cost(keep, baseline, costs, tuning.prompts_per_block)
            if needed_s <= self._seconds_left(keep):
                break
            keep = keep[: len(keep) // 2]
        rung.kept = keep
        self.progress.note(_rung_summary(len(tuning.rungs), standings, keep))
        if len(keep) > 1:
            self._open(keep)
            return
        tuning.ended, tuning.chosen = True, next(iter(keep), None)
        self.writer.save()

    def _seconds_left(self, arms: list[str]) -> float:
        """Return the seconds that remain for searching, without the time reserved for fresh data."""
        tuning, costs = self._tuning, self._costs()
        tasks = len({item.task for item in self.prepared.prompts})
        fresh = fresh_cost(arms, self.prepared.recipe.baseline, costs, tasks)
        searching_s = tuning.budget_s - max(FRESH_SHARE * tuning.budget_s, fresh)
        return searching_s - tuning.timing_s - self.writer.manifest.spent_s

    def _costs(self) -> dict[str, ArmCost]:
        return measured_costs(self._run())


def _heading(tuning: Tuning) -> str:
    rung = tuning.rungs[-1]
    return f"Rung {len(tuning.rungs)} of {len(tuning.rungs) - 1 + len(rungs_of(len(rung.arms)))}, remaining"


def _rung_summary(number: int, standings: list[Standing], keep: list[str]) -> str:
    stay = ", ".join(str(standing) for standing in standings if standing.arm in keep)
    out = ", ".join(str(standing) for standing in standings if standing.arm not in keep)
    if not stay:
        return f"Rung {number}: no arm drafted anything that could be compared with no speculation ({out})."
    return f"Rung {number}: kept {stay}." + (f" Dropped: {out}." if out else "")
