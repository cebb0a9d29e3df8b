"""The life of a cell: an engine process, from its launch to its entry in the manifest.

Launch, health, attest, make ready; then answers, each safe on disk before the next is requested; then attest again and
stop. Whatever the engine does wrong ends this cell and no other.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from benchctl.data.cell import Cell, CellStatus
from benchctl.data.identity import home_relative
from benchctl.data.record import RecordError
from benchctl.data.writer import LOGS, FolderWriter
from benchctl.engines.base import Attestation, Engine, Launch, Server
from benchctl.engines.common.log import name_log
from benchctl.engines.scoring import Scorer, ScoringEngine
from benchctl.errors import EngineError, StorageError
from benchctl.machine.monitor import EngineMemory, Watch
from benchctl.measurement.plan import CellKey, CellPlan, EarlierProcesses
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.recording import (
    attestation_record,
    cell_error,
    memory_record,
    now,
    read_memory,
    require_attested,
)
from benchctl.recipes.schema import GREEDY, Recipe, Sampling


class _Stops(Protocol):
    def stop(self) -> int | None: ...


Running = TypeVar("Running", bound=_Stops)


@dataclass
class CellContext:
    """What all cells of a run share."""

    recipe: Recipe
    engine: Engine | Mapping[str, Engine]
    """One engine for all arms, or an engine by arm."""
    launches: Mapping[str, Launch]
    writer: FolderWriter
    files: Sequence[Path] = ()
    """Models and binaries: a run whose files change is two experiments."""
    earlier: Mapping[CellKey, EarlierProcesses] = field(default_factory=dict)
    """The earlier processes of resumed cells."""
    context_text: str = field(default="", kw_only=True)
    """What pads prompts, where an arm has a context length."""
    progress: RunProgress = field(default_factory=RunProgress, kw_only=True)
    failures: dict[str, str] = field(default_factory=dict, init=False)
    """Failures that were reported so far, and the first cell of each: an identical failure then refers to it."""

    def __post_init__(self) -> None:
        # Size and time: cheap, where hashing the files again would warm the page cache.
        self._stamps = {file: _stamp(file) for file in self.files}

    def require_unchanged(self) -> None:
        """Raise EngineError (`launch`) when any of the files is no longer what it was."""
        changed = [str(file) for file, stamp in self._stamps.items() if _stamp(file) != stamp]
        if changed:
            raise EngineError(
                f"Changed since the run began: {', '.join(changed)}.",
                kind="launch",
                fix="Start a new run, with files that stay as they are.",
            )

    def engine_of(self, arm: str) -> Engine:
        """Return what starts an arm."""
        return self.engine[arm] if isinstance(self.engine, Mapping) else self.engine


class EngineCell:
    """A process of a cell: `open`, `measure`, `close`; once it is `over`, these do nothing."""

    def __init__(self, plan: CellPlan, context: CellContext) -> None:
        self.plan = plan
        self.context = context
        self.over = False
        """Whether the process has ended and is in the manifest."""
        self.ready = False
        """Whether it was launched, attested and made ready."""
        self.answers = 0
        """Requests that ended well."""
        self.failures: list[RecordError] = []
        self.watch: Watch | None = None
        """What watches the machine while prompts are measured; cells that are up at the same time share it."""
        self.server: Server | None = None
        attempt, self._log = _next_attempt(plan, context)
        self._clock = time.perf_counter()
        self._memory = EngineMemory()
        self.stored = Cell(
            block=plan.block,
            arm=plan.arm.name,
            order=plan.order,
            attempt=attempt,
            status="interrupted",
            started_at=now(),
            wall_s=0.0,
            load_before=os.getloadavg()[0],
            log=f"{LOGS}/{self._log.name}",
        )
        """What the manifest gets of it, once it has ended."""

    def prepare(self, server: Server) -> None:
        """Make a healthy, attested engine ready; raises EngineError."""

    def measure(self) -> None:
        """Make every request of the plan."""
        raise NotImplementedError

    def disturbance(self) -> str | None:
        """Return in words what disturbed the process, so that it should be measured again; `None`: nothing did."""
        return None

    def complete(self, server: Server) -> int | None:
        """Do what remains once nothing is timed any more; return the tokens that were drafted. Raises EngineError."""
        raise NotImplementedError

    def open(self) -> None:
        """Launch the engine, attest it and make it ready."""
        with self.failing_alone():
            self.context.progress.cell_started(self.plan)
            self.context.require_unchanged()
            arm = self.plan.arm.name
            self.server = self.context.engine_of(arm).start(self.context.launches[arm], self._log)
            self.stored.startup_s = time.perf_counter() - self._clock
            self._attest(self.server, None)
            self.prepare(self.server)
            self._memory = read_memory(self.server)
            self.ready = True
            self.context.progress.cell_ready(self.plan)

    def close(self) -> None:
        """Complete what was measured, attest once more, and stop."""
        with self.failing_alone():
            if self.server is None:
                return
            self._attest(self.server, self.complete(self.server))
            self._attest_earlier_answers()
            if self.failures and not self.answers:
                first = self.failures[0]
                tail = self.server.log_tail()
                raise EngineError(f"Every request failed: {first.message}", kind=first.kind, log_tail=tail)
            self._end("finished")

    def interrupt(self) -> None:
        """Stop where it is, unless it is over: a resumed run does the rest."""
        if not self.over:
            with contextlib.suppress(StorageError):  # a full disk is what may have interrupted it
                self._end("interrupted")

    @contextlib.contextmanager
    def failing_alone(self) -> Iterator[None]:
        """Let the engine's failures end this cell, and nothing else."""
        try:
            yield
        except EngineError as failure:
            failure.fix = failure.fix and name_log(failure.fix, self._log)
            self._end("failed", failure)

    def _end(self, status: CellStatus, error: EngineError | None = None) -> None:
        stored, server = self.stored, self.server
        stored.memory = memory_record(server, self._memory)
        stored.status, stored.exit_status = status, None if server is None else server.stop()
        self.server = None
        stored.wall_s = time.perf_counter() - self._clock
        stored.error = None if error is None else cell_error(error, self._log)
        stored.watch = None if self.watch is None else self.watch.disturbance
        self.context.writer.add_cell(stored)
        self.over = True
        if error is not None:
            self._report(error)
        elif status != "interrupted":
            self.context.progress.cell_ended(self.plan, None)

    def _report(self, error: EngineError) -> None:
        """Report why the cell failed: once in full, with the log's path; an identical failure refers to the first."""
        progress, failures = self.context.progress, self.context.failures
        signature = f"{error.kind}: {re.sub('[0-9]+', '#', error.what)}"  # ports and process numbers differ
        if signature in failures:
            progress.cell_ended(self.plan, f"for the same reason as {failures[signature]}")
            return
        failures[signature] = self.plan.name
        progress.cell_ended(self.plan, home_relative(error.what))
        for line in error.log_tail:
            progress.note(f"  | {home_relative(line)}")
        if error.fix:
            progress.note(f"  {error.fix}")
        if self._log.exists():
            progress.note(f"  Log: {self._log}")

    def _attest(self, server: Server, drafted: int | None) -> None:
        attestation = server.attest(drafted)
        self.stored.attestation = attestation_record(attestation, self._log)
        require_attested(attestation, server)

    def _attest_earlier_answers(self) -> None:
        """Check the answers of the cell's earlier processes against this process's attestation."""
        drafted, attestation = _earlier(self.plan, self.context).drafted, self.stored.attestation
        if not drafted or attestation is None or self.server is None:
            return
        evidence = [*attestation.evidence, f"Answers of an earlier process of this cell drafted {drafted} tokens."]
        if attestation.state == "off":
            reason = f"{evidence[-1]} This arm has no speculation."
            failed = Attestation("failed", tuple(evidence), reason=reason)
            self.stored.attestation = attestation_record(failed, self._log)
            require_attested(failed, self.server)
        elif attestation.state == "idle":
            self.stored.attestation = attestation.model_copy(update={"state": "active", "evidence": evidence})


@contextlib.contextmanager
def running(engine: Running, log: Path | None = None) -> Iterator[Running]:
    """Stop what was started, a server or a scorer, when the `with` block ends.

    Its errors name its log, unless that is none, or goes with the block.
    """
    try:
        yield engine
    except EngineError as error:
        if log is not None:
            error.fix = error.fix and name_log(error.fix, log)
        raise
    finally:
        engine.stop()


def scoring(
    engine: ScoringEngine, launch: Launch, log: Path, sampling: Sampling = GREEDY
) -> contextlib.AbstractContextManager[Scorer]:
    """Have the target alone running for as long as the `with` block lasts. Raises EngineError."""
    return running(engine.start_scorer(launch, log, sampling), log)


def fresh_log(folder: Path, name: str, attempt: int = 0) -> tuple[int, Path]:
    """Return the first attempt from `attempt` on that left no log, and its log: an earlier log is kept."""
    while True:
        log = folder / LOGS / f"{name}{f'.{attempt}' if attempt else ''}.log"
        if not os.path.lexists(log):  # also a link that leads nowhere
            return attempt, log
        attempt += 1


def _earlier(plan: CellPlan, context: CellContext) -> EarlierProcesses:
    return context.earlier.get((plan.block, plan.arm.name), EarlierProcesses())


def _next_attempt(plan: CellPlan, context: CellContext) -> tuple[int, Path]:
    """Return the number of a new process of a cell, and its log; that of a killed benchctl is kept."""
    writer = context.writer
    entries = sum((cell.block, cell.arm) == (plan.block, plan.arm.name) for cell in writer.manifest.cells)
    attempt = max(entries, _earlier(plan, context).attempt + 1)
    return fresh_log(writer.folder, f"block{plan.block}-{plan.arm.name}", attempt)


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return size and time of a file, `None` when it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
