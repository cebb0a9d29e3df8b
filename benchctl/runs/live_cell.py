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

from benchctl.engines.base import Completion, Engine, Launch, Rendered, Server
from benchctl.errors import EngineError, StorageError
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe
from benchctl.records import SCHEMA_VERSION, Phase, Record, RecordError, sha256_text, sha256_tokens
from benchctl.runs.identity import homely
from benchctl.runs.manifest import AttestationRecord, Cell, CellStatus
from benchctl.runs.plan import CellPlan
from benchctl.runs.progress import RunProgress
from benchctl.runs.recording import answer_fields, attestation_record, cell_error, measured_fields, must_hold, now
from benchctl.runs.same_files import SameFiles
from benchctl.runs.watch import Watch
from benchctl.runs.writer import LOGS, RunWriter

REQUEST_ONLY = frozenset({"http"})
"""Failures that cost one request; every other kind leaves an engine that cannot be trusted with the next one."""

WARMUP_PROMPT = Prompt(prompt="The harbour was quiet that morning, and the boats lay still. One, two, three, four,")
"""Never a prompt of the suite: a drafter that remembers across requests would meet its own answer again."""
WARMUP_TOKENS = 32


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
        self._drafted: int | None = None
        self._answers = 0
        self._failures: list[RecordError] = []
        self._withheld: list[tuple[Record, Rendered, Completion]] = []

    def begin(self) -> None:
        """Launch the engine, attest it and warm it up."""
        with self._at_own_cost():
            self._bench.progress.cell_started(self.plan)
            self._bench.files.check()
            self._server = self._bench.engine.start(self._bench.launches[self.plan.arm.name], self._log)
            self._startup = time.perf_counter() - self._clock
            self._attest(self._server)
            self._warm_up(self._server)
            self._bench.progress.cell_ready(self.plan)

    def ask(self, item: PromptItem, order: int) -> None:
        """Measure one prompt; `order` is what its record says of the arm's turn."""
        with self._at_own_cost():
            if self._server is not None:
                self._ask(self._server, item, order)

    def finish(self) -> None:
        """Fetch what streams withheld, attest once more, and stop."""
        with self._at_own_cost():
            if self._server is not None:
                self._recover(self._server)
                self._attest(self._server)
                if not self._answers:
                    first = self._failures[0]
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
        self._server = None
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
                watch=None if self.watch is None else self.watch.seen,
            )
        )
        self.over = True
        if status != "interrupted":
            self._tell(error)

    def _tell(self, error: EngineError | None) -> None:
        progress = self._bench.progress
        progress.cell_ended(self.plan, None if error is None else homely(error.what))
        for line in error.log_tail if error else ():
            progress.note(f"  | {homely(line)}")
        if error and error.fix:
            progress.note(f"  {error.fix}")

    def _attest(self, server: Server) -> None:
        found = server.attest(self._drafted)
        self._attestation = attestation_record(found)
        must_hold(found, server)

    def _warm_up(self, server: Server) -> None:
        sampling = self._bench.recipe.sampling
        brief = sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, WARMUP_TOKENS)})
        for number in range(self._bench.recipe.warmup):
            record = self._record("warmup", number, self.plan.order, "warmup")
            rendered = server.render(WARMUP_PROMPT)
            completion = server.complete(rendered, brief)
            self._count(completion)
            seen = {"prompt_sha": sha256_text(rendered.text)}
            kept = record.model_copy(update=measured_fields(completion) | seen)  # as evidence, without its text
            self._bench.writer.append(kept)

    def _ask(self, server: Server, item: PromptItem, order: int) -> None:
        progress, writer = self._bench.progress, self._bench.writer
        progress.asked(self.plan, item.task, item.prompt_idx)
        record = self._record(item.task, item.prompt_idx, order, "measure")
        try:
            rendered = server.render(item.prompt)
            record = record.model_copy(update={"prompt_sha": sha256_text(rendered.text)})
            completion = server.complete(rendered, self._bench.recipe.sampling, progress.tokens)
        except EngineError as failure:
            error = RecordError(kind=failure.kind, message=failure.what)
            writer.append(record.model_copy(update={"error": error}))
            self._failures.append(error)
            progress.answered(self.plan, None)
            if failure.kind in REQUEST_ONLY and server.alive():
                return
            raise
        record = record.model_copy(update=measured_fields(completion) | answer_fields(completion))
        writer.append(record)
        self._count(completion)
        self._answers += 1
        if completion.token_gap is not None:
            self._withheld.append((record, rendered, completion))
        progress.answered(self.plan, completion)

    def _count(self, completion: Completion) -> None:
        if completion.ledger.drafted is not None:
            self._drafted = (self._drafted or 0) + completion.ledger.drafted

    def _recover(self, server: Server) -> None:
        """Fetch token ids that streams withheld, once nothing is timed any more; a second line replaces the record."""
        for record, rendered, completion in self._withheld:
            ids = server.recover_token_ids(rendered, self._bench.recipe.sampling, completion)
            if ids is not None:
                known = {"token_ids": list(ids), "token_sha": sha256_tokens(ids), "token_gap": None}
                self._bench.writer.append(record.model_copy(update=known))

    def _record(self, task: str, prompt_idx: int, order: int, phase: Phase) -> Record:
        return Record(
            label=self.plan.arm.name,
            task=task,
            prompt_idx=prompt_idx,
            rep=self.plan.block,
            schema=SCHEMA_VERSION,
            run=self._bench.writer.manifest.run,
            block=self.plan.block,
            order=order,
            attempt=self._attempt,
            phase=phase,
            started_at=now(),
        )


def _next_attempt(plan: CellPlan, writer: RunWriter) -> tuple[int, Path]:
    """Return the number of a new process of a cell, and its log; one that a killed benchctl left is not overwritten."""
    attempt = sum((cell.block, cell.arm) == (plan.block, plan.arm.name) for cell in writer.manifest.cells)
    while True:
        log = writer.folder / LOGS / f"block{plan.block}-{plan.arm.name}{f'.{attempt}' if attempt else ''}.log"
        if not log.exists():
            return attempt, log
        attempt += 1
