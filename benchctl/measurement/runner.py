"""The runner: the cells of a plan, block by block, in the order of the recipe's schedule.

`blocks`: the arms of a block in turn, each with the machine to itself. `interleaved`: the engines of all
arms of a block stay up together, and every prompt goes round the arms, so that what the machine does to any arm it does
to all. One request is in flight at a time, unless the arm's condition says otherwise.

Where the baseline of a condition cannot start in the first block, nothing could be compared with it: what else there is
under that condition is not started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from benchctl.data.store import RunData, collector_paused
from benchctl.data.writer import RunWriter
from benchctl.machine.monitor import Watch
from benchctl.measurement.cell import CellContext, EngineCell
from benchctl.measurement.plan import CellPlan, turns
from benchctl.measurement.prepare import Prepared
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.requests import MeasuredCell, allow_connections
from benchctl.recipes.groups import GroupKey
from benchctl.recipes.schema import Recipe

MakeCell = Callable[[CellPlan, CellContext], EngineCell]


class Search(Protocol):
    """What chooses the cells of a run that searches for the fastest arm."""

    def blocks(self, prepared: Prepared, writer: RunWriter, progress: RunProgress) -> Iterator[list[CellPlan]]:
        """Yield the cells block by block until an arm is chosen."""
        ...

    def best_yet(self, run: RunData) -> str:
        """Return what a search that was cut off has found, in sentences."""
        ...


class CellRunner(Protocol):
    """What measures cells, here or elsewhere."""

    stopped: bool

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be measured."""
        ...

    def get_ready(self, progress: RunProgress) -> None:
        """Do what comes before the first cell."""
        ...

    def run(self, plan: list[CellPlan], progress: RunProgress) -> None:
        """Measure these cells."""
        ...


class Nodes(Protocol):
    """Other machines that measure a run."""

    @property
    def where(self) -> str:
        """What `--on` named."""
        ...

    def runner(self, prepared: Prepared, writer: RunWriter, context_text: str, *, stop_at_failure: bool) -> CellRunner:
        """Return what measures a run's cells there."""
        ...

    def discard_unfinished(self, writer: RunWriter, recipe: Recipe, plan: Iterable[CellPlan]) -> None:
        """Let no group of a resumed run count of which something is left to measure."""
        ...


@dataclass
class Runner(CellContext):
    """Runs cells of a recipe into a folder, and is what they share."""

    make_cell: MakeCell = MeasuredCell
    stop_at_failure: bool = field(default=False, kw_only=True)
    stopped: bool = field(default=False, init=False)
    """Whether a failure ended the run, as requested."""
    _without_baseline: set[GroupKey] = field(default_factory=set, init=False)

    @property
    def ended(self) -> bool:
        """Whether nothing is left to measure: a failure was to end it, or no condition has a baseline that starts."""
        return self.stopped or set(map(self.recipe.group_of, self.recipe.arms)) <= self._without_baseline

    def get_ready(self, progress: RunProgress) -> None:
        """Find what measures; here this machine does."""

    def run(self, plan: list[CellPlan], progress: RunProgress) -> None:
        """Run every cell. Raises KeyboardInterrupt (after recording the cut-off cells) and StorageError."""
        if any(cell.arm.overlapping for cell in plan):
            allow_connections()
        self.progress = progress
        for cells in self._up_at_once(plan):
            remaining = [cell for cell in cells if cell.group not in self._without_baseline]
            if remaining and (disturbance := self._run_at_once(remaining)) is not None:
                progress.note(
                    f"warning: {', '.join(cell.name for cell in remaining)}: measured again, since {disturbance}."
                )
                progress.more(remaining)
                self._run_at_once(remaining)
            if self.stopped:
                progress.note("Stopped at the first failure (-x).")
                return

    def _up_at_once(self, plan: list[CellPlan]) -> Iterator[list[CellPlan]]:
        """Yield the cells whose engines are up at the same time: of an interleaved block those of a setup's group."""
        if self.recipe.schedule == "interleaved":
            yield from (list(cells) for _, cells in groupby(plan, key=lambda cell: (cell.block, cell.arm.group)))
        else:
            yield from ([cell] for cell in plan)

    def _run_at_once(self, plans: list[CellPlan]) -> str | None:
        """Give every cell its engine, its turns and its end; what is not over when this is left was interrupted.

        Return what disturbed them, in words, where they are to be measured again for that: once, and then all, as they
        were measured in turns. Their records are kept, and none counts.
        """
        cells: list[EngineCell] = []
        disturbance: str | None = None
        try:
            for plan in plans:
                cells.append(self.make_cell(plan, self))
                cells[-1].open()
                if self._leaves_nothing_to_compare(cells[-1]):
                    self._end_condition(plan)
                    return None
            with Watch() as watch, collector_paused():
                for cell in cells:
                    cell.watch = watch
                if len(cells) == 1:  # the only cell with overlapping requests: `interleaved` takes no other
                    cells[0].measure()
                else:
                    for index, item, order in turns(plans):
                        cell = cells[index]
                        assert isinstance(cell, MeasuredCell)
                        cell.measure_one(item, order)
            if not any(cell.over for cell in cells) and not self._repeated(plans):
                disturbance = next(filter(None, (cell.disturbance() for cell in cells)), None)
            for cell in cells:
                cell.stored.discarded = disturbance
                cell.close()
        finally:
            for cell in cells:
                cell.interrupt()
            self.stopped = self.stop_at_failure and any(cell.stored.error or cell.failures for cell in cells)
        return None if self.stopped else disturbance

    def _repeated(self, plans: list[CellPlan]) -> bool:
        """Whether any of these cells was measured again already, now or before the run was resumed."""
        keys = {(plan.block, plan.arm.name) for plan in plans}
        return any(cell.discarded and (cell.block, cell.arm) in keys for cell in self.writer.manifest.cells)

    def _leaves_nothing_to_compare(self, cell: EngineCell) -> bool:
        if cell.plan.block or cell.ready:
            return False
        return self.recipe.compared[cell.plan.arm.name].is_baseline

    def _end_condition(self, plan: CellPlan) -> None:
        self._without_baseline.add(plan.group)
        effect = "The run ends here" if self.ended else f"No arm is measured under the condition of {plan.arm.name}"
        self.progress.note(f"{effect}: its baseline cannot start, so there would be nothing to compare with.")
