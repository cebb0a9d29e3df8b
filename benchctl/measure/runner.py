"""The runner: the cells of a plan, block by block, in the order that the recipe's schedule asks for.

`blocks`: the arms of a block one after the other, each with the machine to itself. `interleaved`: the engines of all
arms of a block stay up together, and every prompt goes round the arms, so that what the machine does to one arm it does
to all. One request is in flight at a time, unless the arm's condition says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from benchctl.data.writer import RunWriter
from benchctl.engines.base import Engine, Launch
from benchctl.machine.monitor import Watch
from benchctl.measure.cell import Bench, LiveCell
from benchctl.measure.load_generator import allow_connections
from benchctl.measure.plan import CellPlan, turns
from benchctl.measure.progress import RunProgress
from benchctl.measure.unchanged_files import SameFiles
from benchctl.recipes.schema import Recipe


class Runner:
    """Runs cells of one recipe on one engine into one run folder."""

    def __init__(
        self,
        recipe: Recipe,
        engine: Engine,
        launches: dict[str, Launch],
        writer: RunWriter,
        files: Sequence[Path] = (),
    ) -> None:
        self.recipe = recipe
        self.engine = engine
        self.launches = launches
        self.writer = writer
        self.files = SameFiles(files)

    def run(self, plan: list[CellPlan], progress: RunProgress) -> None:
        """Run every cell. Raises KeyboardInterrupt (after recording the cut-off cells) and StorageError."""
        if any(cell.arm.overlapping for cell in plan):
            allow_connections()
        bench = Bench(self.recipe, self.engine, self.launches, self.writer, self.files, progress)
        for together in self._together(plan):
            _run_together(together, bench)

    def _together(self, plan: list[CellPlan]) -> Iterator[list[CellPlan]]:
        """Yield the cells whose engines are up at the same time."""
        if self.recipe.schedule == "interleaved":
            yield from (list(cells) for _, cells in groupby(plan, key=lambda cell: cell.block))
        else:
            yield from ([cell] for cell in plan)


def _run_together(plans: list[CellPlan], bench: Bench) -> None:
    """Give every cell its engine, its turns and its end; what is not over when this is left was interrupted."""
    cells: list[LiveCell] = []
    try:
        for plan in plans:
            cells.append(LiveCell(plan, bench))
            cells[-1].begin()
        with Watch() as watch:
            for cell in cells:
                cell.watch = watch
            if plans[0].arm.overlapping:  # such a cell is alone: `interleaved` takes no other
                cells[0].ask_together()
            else:
                for place, item, order in turns(plans):
                    cells[place].ask(item, order)
        for cell in cells:
            cell.finish()
    finally:
        for cell in cells:
            cell.interrupt()
