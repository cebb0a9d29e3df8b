"""A cell while it lives: one engine process, from its launch to its entry in the manifest.

Launch, health, attest, warm up; then answers, each safe on disk before the next is asked; then attest again and stop.
Whatever the engine does wrong ends this cell and no other.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.identity import home_relative
from benchctl.data.manifest import AttestationRecord, Cell, CellStatus
from benchctl.data.writer import LOGS, RunWriter
from benchctl.engines.base import Engine, Launch, Server
from benchctl.errors import EngineError, StorageError
from benchctl.machine.monitor import Watch
from benchctl.measure.plan import CellPlan
from benchctl.measure.progress import RunProgress
from benchctl.measure.recording import attestation_record, cell_error, must_hold, now, watch_record
from benchctl.measure.requests import Asking
from benchctl.measure.unchanged_files import SameFiles
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe


@dataclass(frozen=True)
class Bench:
    """What all cells of a run share."""

    recipe: Recipe
    engine: Engine
    launches: dict[str, Launch]
    writer: RunWriter
    files: SameFiles
    progress: RunProgress


class LiveCell:
    """One process of a cell: `begin`, `ask` for every prompt, `finish`. Once it is over, these do nothing."""

    def __init__(self, plan: CellPlan, bench: Bench) -> None:
        self.plan = plan
        self.over = False
        """Whether the process has ended and stands in the manifest."""
        self.watch: Watch | None = None
        """What looks at the machine while prompts are measured; cells that are up together share one."""
        self._bench = bench
        self._attempt, self._log = _next_attempt(plan, bench.writer)
        self._began, self._clock = now(), time.perf_counter()
        self._load = os.getloadavg()[0]
        self._startup: float | None = None
        self._server: Server | None = None
        self._attestation: AttestationRecord | None = None
        self._asking: Asking | None = None

    def begin(self) -> None:
        """Launch the engine, attest it and warm it up."""
        with self._at_own_cost():
            self._bench.progress.cell_started(self.plan)
            self._bench.files.check()
            self._server = self._bench.engine.start(self._bench.launches[self.plan.arm.name], self._log)
            self._startup = time.perf_counter() - self._clock
            self._attest(self._server, None)
            bench = self._bench
            self._asking = Asking(self._server, self.plan, self._attempt, bench.recipe, bench.writer, bench.progress)
            self._asking.warm_up()
            self._bench.progress.cell_ready(self.plan)

    def ask(self, item: PromptItem, order: int) -> None:
        """Measure one prompt; `order` is what its record says of the arm's turn."""
        with self._at_own_cost():
            if self._asking is not None:
                self._asking.ask(item, order)

    def ask_together(self) -> None:
        """Measure every prompt of the plan, several in flight at a time."""
        with self._at_own_cost():
            if self._asking is not None:
                self._asking.ask_together(self.plan.prompts, self.plan.order)

    def finish(self) -> None:
        """Fetch what streams withheld, attest once more, and stop."""
        with self._at_own_cost():
            if self._server is not None and self._asking is not None:
                self._asking.recover()
                self._attest(self._server, self._asking.drafted)
                if not self._asking.answers:
                    first = self._asking.failures[0]
                    tail = self._server.log_tail()
                    raise EngineError(f"Every request failed: {first.message}", kind=first.kind, log_tail=tail)
                self._end("finished")

    def interrupt(self) -> None:
        """Stop where it is, unless it is over: a resumed run measures the rest."""
        if not self.over:
            with contextlib.suppress(StorageError):  # a full disk is what may have interrupted it
                self._end("interrupted")

    @contextlib.contextmanager
    def _at_own_cost(self) -> Iterator[None]:
        """Let the engine's failures end this cell, and nothing else."""
        try:
            yield
        except EngineError as failure:
            self._end("failed", failure)

    def _end(self, status: CellStatus, error: EngineError | None = None) -> None:
        exit_status = None if self._server is None else self._server.stop()
        self._server = self._asking = None
        self._bench.writer.add_cell(
            Cell(
                block=self.plan.block,
                arm=self.plan.arm.name,
                order=self.plan.order,
                attempt=self._attempt,
                status=status,
                started_at=self._began,
                wall_s=time.perf_counter() - self._clock,
                startup_s=self._startup,
                load_before=self._load,
                exit_status=exit_status,
                log=f"{LOGS}/{self._log.name}",
                attestation=self._attestation,
                error=None if error is None else cell_error(error),
                watch=None if self.watch is None else watch_record(self.watch.seen),
            )
        )
        self.over = True
        if status != "interrupted":
            self._tell(error)

    def _tell(self, error: EngineError | None) -> None:
        progress = self._bench.progress
        progress.cell_ended(self.plan, None if error is None else home_relative(error.what))
        for line in error.log_tail if error else ():
            progress.note(f"  | {home_relative(line)}")
        if error and error.fix:
            progress.note(f"  {error.fix}")

    def _attest(self, server: Server, drafted: int | None) -> None:
        found = server.attest(drafted)
        self._attestation = attestation_record(found)
        must_hold(found, server)


def _next_attempt(plan: CellPlan, writer: RunWriter) -> tuple[int, Path]:
    """Return the number of a new process of a cell, and its log; one that a killed benchctl left is not overwritten."""
    attempt = sum((cell.block, cell.arm) == (plan.block, plan.arm.name) for cell in writer.manifest.cells)
    while True:
        log = writer.folder / LOGS / f"block{plan.block}-{plan.arm.name}{f'.{attempt}' if attempt else ''}.log"
        if not log.exists():
            return attempt, log
        attempt += 1
