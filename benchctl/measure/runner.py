"""The runner: the cells of a plan, block by block, in the order of the recipe's schedule.

`blocks`: the arms of a block in turn, each with the machine to itself. `interleaved`: the engines of all
arms of a block stay up together, and every prompt goes round the arms, so that what the machine does to any arm it does
to all. One request is in flight at a time, unless the arm's condition says otherwise.

Where the baseline of a condition cannot start in the first block, nothing could be compared with it: what else there is
under that condition is not started.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Protocol

from benchctl.data.store import RunData, collector_paused
from benchctl.data.writer import FolderWriter, RunWriter
from benchctl.engines.base import Engine, Launch, Server
from benchctl.machine.monitor import Watch
from benchctl.measure.cell import CellContext, EngineCell, FileStamps
from benchctl.measure.plan import CellKey, CellPlan, EarlierProcesses, turns
from benchctl.measure.prepare import Prepared
from benchctl.measure.progress import RunProgress
from benchctl.measure.requests import CellRequests, allow_connections
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.groups import GroupKey
from benchctl.recipes.schema import Recipe

MakeCell = Callable[[CellPlan, CellContext], EngineCell]


class MeasuredCell(EngineCell):
    """A cell whose answers are records of the run."""

    def prepare(self, server: Server) -> None:
        """Warm the engine up."""
        self._requests = CellRequests(server, self.plan, self.attempt, self.context)
        self._requests.warm_up()

    def measure(self) -> None:
        """Measure every prompt of the plan, one at a time or by the arm's condition."""
        if self.plan.arm.overlapping and self.plan.prompts:
            with self.failing_alone():
                if self.ready and not self.over:
                    self._requests.send_overlapping(self.plan.prompts, self.plan.order)
            return
        for item in self.plan.prompts:
            self.measure_one(item, self.plan.order)

    def measure_one(self, item: PromptItem, order: int) -> None:
        """Measure a prompt; `order`: the arm's turn, as recorded."""
        with self.failing_alone():
            if self.ready and not self.over:
                self._requests.send(item, order)

    def complete(self, server: Server) -> int | None:
        """Fetch token ids that streams lacked."""
        self._requests.recover()
        self.answers, self.failures = self._requests.answers, self._requests.failures
        return self._requests.drafted


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


class Runner:
    """Runs cells of a recipe into a folder."""

    def __init__(
        self,
        recipe: Recipe,
        engine: Engine | Mapping[str, Engine],
        launches: dict[str, Launch],
        writer: FolderWriter,
        files: Sequence[Path] = (),
        earlier: Mapping[CellKey, EarlierProcesses] | None = None,
        make_cell: MakeCell = MeasuredCell,
        context_text: str = "",
        *,
        stop_at_failure: bool = False,
    ) -> None:
        """`engine`: of all arms, or by arm."""
        self.recipe = recipe
        self.engine = engine
        self.launches = launches
        self.writer = writer
        self.files = FileStamps(files)
        self._earlier = earlier or {}
        self._make_cell = make_cell
        self._context_text = context_text
        self.stopped = False
        """Whether a failure ended the run, as requested."""
        self._stop_at_failure = stop_at_failure
        self._failures: dict[str, str] = {}
        self._without_baseline: set[GroupKey] = set()

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
        context = CellContext(
            self.recipe,
            self.engine,
            self.launches,
            self.writer,
            self.files,
            progress,
            self._earlier,
            self._failures,
            self._context_text,
        )
        for cells in self._up_at_once(plan):
            left = [cell for cell in cells if cell.group not in self._without_baseline]
            if left:
                self._run_at_once(left, context)
            if self.stopped:
                progress.note("Stopped at the first failure (-x).")
                return

    def _up_at_once(self, plan: list[CellPlan]) -> Iterator[list[CellPlan]]:
        """Yield the cells whose engines are up at the same time: of an interleaved block those of a setup's group."""
        if self.recipe.schedule == "interleaved":
            yield from (list(cells) for _, cells in groupby(plan, key=lambda cell: (cell.block, cell.arm.group)))
        else:
            yield from ([cell] for cell in plan)

    def _run_at_once(self, plans: list[CellPlan], context: CellContext) -> None:
        """Give every cell its engine, its turns and its end; what is not over when this is left was interrupted."""
        cells: list[EngineCell] = []
        try:
            for plan in plans:
                cells.append(self._make_cell(plan, context))
                cells[-1].open()
                if self._leaves_nothing_to_compare(cells[-1]):
                    self._end_condition(plan, context.progress)
                    return
            with Watch() as watch, collector_paused():
                for cell in cells:
                    cell.watch = watch
                if len(cells) == 1:  # the only cell with overlapping requests: `interleaved` takes no other
                    cells[0].measure()
                else:
                    for place, item, order in turns(plans):
                        cell = cells[place]
                        assert isinstance(cell, MeasuredCell)
                        cell.measure_one(item, order)
            for cell in cells:
                cell.close()
        finally:
            for cell in cells:
                cell.interrupt()
            self.stopped = self._stop_at_failure and any(cell.failed or cell.failures for cell in cells)

    def _leaves_nothing_to_compare(self, cell: EngineCell) -> bool:
        if cell.plan.block or cell.ready:
            return False
        return self.recipe.compared[cell.plan.arm.name].is_baseline

    def _end_condition(self, plan: CellPlan, progress: RunProgress) -> None:
        self._without_baseline.add(plan.group)
        what = "The run ends here" if self.ended else f"No arm is measured under the condition of {plan.arm.name}"
        progress.note(f"{what}: its baseline cannot start, so there would be nothing to compare with.")
