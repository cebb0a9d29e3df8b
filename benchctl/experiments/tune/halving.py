"""The search itself: rungs of short blocks, after each of which the slower half of the arms is dropped.

Every block has the baseline and all remaining arms, each in a fresh process, and measures the next few prompts of
the suite. An arm's standing is its speed-up over all blocks that it was in. The rungs are in the manifest, so that a
search that was cut off is resumed where it was. Standings choose what is measured again and are no result: the largest
of several noisy values is biased upwards (the winner's curse).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from benchctl.analysis.cells import states
from benchctl.analysis.frame import make_frame
from benchctl.analysis.speedup import pooled
from benchctl.data.manifest import Tuning, TuningRung
from benchctl.data.store import RunData, open_run
from benchctl.data.writer import RunWriter
from benchctl.experiments.tune.budget import (
    FRESH_BLOCKS,
    FRESH_SHARE,
    LEAST_BLOCKS,
    ArmCost,
    block_cost,
    measured_costs,
    rung_blocks,
    rungs_of,
)
from benchctl.measure.plan import CellPlan, by_turns, make_plan, measured, unclosed
from benchctl.measure.prepare import Prepared
from benchctl.measure.progress import RunProgress
from benchctl.text import one_line


@dataclass(frozen=True)
class Standing:
    """An arm of a search."""

    arm: str
    speedup: float | None
    """Over the baseline, each block's pooled pairs, in the median of blocks (geometric for an even number), so that one
    disturbed block decides little; `None` where there are no pairs, as when its engine cannot start."""
    blocks: int
    """That it has pairs in."""
    drafted: int | None
    """Tokens; `None` where not reported."""

    @property
    def races(self) -> bool:
        """Whether it may be chosen: it answered."""
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
    """Return where `arms` stand: those that may be chosen first, the fastest of them first."""
    frame = make_frame(run.records, run.manifest)
    place = {name: number for number, name in enumerate(frame.arms)}
    found = []
    for name in arms:
        ours, theirs = frame.pairs(place[name], frame.baseline)
        timed = np.isfinite(frame.decode_s[ours]) & np.isfinite(frame.decode_s[theirs])
        ours, theirs = ours[timed], theirs[timed]
        columns = [frame.decoded[ours], frame.decode_s[ours], frame.decoded[theirs], frame.baseline_s(theirs)]
        sums, blocks = np.stack(columns, axis=1), frame.block[ours]
        ratios = [pooled(sums[blocks == block]) or np.nan for block in np.unique(blocks)]
        drafted = [frame.records[row].draft_n for row in ours]
        reported = [count for count in drafted if count is not None]
        found.append(
            Standing(
                arm=name,
                speedup=float(np.exp(np.median(np.log(ratios)))) if ratios else None,
                blocks=len(ratios),
                drafted=sum(reported) if reported else 0 if set(states(frame, name)) == {"idle"} else None,
            )
        )
    return sorted(found, key=lambda standing: (not standing.races, -standing.value, standing.drafted == 0))


def any_drafted(standings: Sequence[Standing]) -> bool:
    """Whether some arm drafted: else there is nothing that a search could choose."""
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
    """The rungs of a search: what `benchctl.measure.run` asks which cells come next."""

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
        each, recipe = self._tuning.prompts_per_block, self.prepared.recipe
        prompts = by_turns(self.prepared.prompts)
        asked_prompts = [prompts[place % len(prompts)] for place in range(block * each, (block + 1) * each)]
        arms = [arm for arm in recipe.arms if arm.name in rung.arms or arm.name == recipe.baseline]
        earlier = self._run()
        done = measured(earlier, each)
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
        """End a rung: the faster half stays, or fewer where the time left is too short for them."""
        tuning = self._tuning
        searched = find_standings(self._run(), tuning.rungs[0].arms)
        standings = [entrant for entrant in searched if entrant.arm in rung.arms]
        racing = [standing.arm for standing in standings if standing.races and any_drafted(searched)]
        keep = racing[: max(1, len(rung.arms) // 2)] if len(rung.arms) > 3 else racing[:1]
        costs, baseline = self._costs(), self.prepared.recipe.baseline
        while len(keep) > 1:
            least = LEAST_BLOCKS * block_cost(keep, baseline, costs, tuning.prompts_per_block)
            if least <= self._seconds_left(keep):
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
        """Return the seconds that are left for searching, what the fresh data need put aside."""
        tuning, costs = self._tuning, self._costs()
        tasks = len({asked.task for asked in self.prepared.prompts})
        dearest = max(arms, key=lambda arm: costs[arm].cell(tasks))
        fresh = FRESH_BLOCKS[0] * block_cost([dearest], self.prepared.recipe.baseline, costs, tasks)
        searching_s = tuning.budget_s - max(FRESH_SHARE * tuning.budget_s, fresh)
        return searching_s - tuning.timing_s - self.writer.manifest.spent_s

    def _costs(self) -> dict[str, ArmCost]:
        guessed = {arm.name: ArmCost(*self._tuning.guessed[arm.name]) for arm in self.prepared.recipe.arms}
        return measured_costs(self._run(), guessed)


def _heading(tuning: Tuning) -> str:
    rung = tuning.rungs[-1]
    return f"Rung {len(tuning.rungs)} of {len(tuning.rungs) - 1 + len(rungs_of(len(rung.arms)))}, remaining"


def _rung_summary(number: int, standings: list[Standing], keep: list[str]) -> str:
    stay = ", ".join(str(standing) for standing in standings if standing.arm in keep)
    out = ", ".join(str(standing) for standing in standings if standing.arm not in keep)
    if not stay:
        return f"Rung {number}: no arm drafted anything that could be compared with no speculation ({out})."
    return f"Rung {number}: kept {stay}." + (f" Dropped: {out}." if out else "")
