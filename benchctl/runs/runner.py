"""The runner: every cell of a plan, one engine process each, its records safe on disk before the next begins.

For a cell: launch, health, attest, warm up, measure every prompt, attest again, stop. Whatever goes wrong costs that
cell and no other.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from benchctl.engines.base import Attestation, Completion, Engine, Launch, Rendered, Server
from benchctl.errors import EngineError, StorageError
from benchctl.prompts.suite import Prompt, PromptItem
from benchctl.recipes.schema import Recipe
from benchctl.records import SCHEMA_VERSION, Phase, Record, RecordError, sha256_text, sha256_tokens
from benchctl.runs.identity import homely
from benchctl.runs.manifest import AttestationRecord, Cell, CellError, CellStatus
from benchctl.runs.plan import CellPlan
from benchctl.runs.progress import RunProgress
from benchctl.runs.writer import LOGS, RunWriter

REQUEST_ONLY = frozenset({"http"})
"""Failures that cost one request; every other kind leaves an engine that cannot be trusted with the next one."""

WARMUP_PROMPT = Prompt(prompt="The harbour was quiet that morning, and the boats lay still. One, two, three, four,")
"""Never a prompt of the suite: a drafter that remembers across requests would meet its own answer again."""
WARMUP_TOKENS = 32


def now() -> str:
    """Return the time in ISO 8601 with its offset, to the millisecond."""
    return datetime.now(UTC).astimezone().isoformat(timespec="milliseconds")


@dataclass
class _Tally:
    """What a cell has done so far."""

    drafted: int | None = None
    answered: int = 0
    failed: list[RecordError] = field(default_factory=list)
    withheld: list[tuple[Record, Rendered, Completion]] = field(default_factory=list)

    def count(self, completion: Completion) -> None:
        if completion.ledger.drafted is not None:
            self.drafted = (self.drafted or 0) + completion.ledger.drafted


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
        self._files = {file: _stamp(file) for file in files}
        """Models and binaries as they were when they were hashed: a run whose files change is two experiments."""

    def run(self, plan: list[CellPlan], progress: RunProgress) -> None:
        """Run every cell. Raises KeyboardInterrupt (after recording the cut-off cell) and StorageError."""
        progress.begin(plan)
        try:
            for cell in plan:
                progress.cell_started(cell)
                outcome = self._cell(cell, progress)
                self.writer.add_cell(outcome)
                failure = None if outcome.error is None else outcome.error.message
                progress.cell_ended(cell, failure)
                if outcome.error is not None:
                    for line in outcome.error.log_tail:
                        progress.note(f"  | {line}")
                    if outcome.error.remedy:
                        progress.note(f"  {outcome.error.remedy}")
        finally:
            progress.end()

    def _cell(self, plan: CellPlan, progress: RunProgress) -> Cell:
        attempt = self._attempt(plan)
        suffix = f".{attempt}" if attempt else ""
        log = self.writer.folder / LOGS / f"block{plan.block}-{plan.arm.name}{suffix}.log"
        began, clock = now(), time.perf_counter()
        load = os.getloadavg()[0]
        startup: float | None = None
        server: Server | None = None
        attestation: Attestation | None = None
        status: CellStatus = "interrupted"
        error: EngineError | None = None
        exit_status: int | None = None
        try:
            self._same_files()
            server = self.engine.start(self.launches[plan.arm.name], log)
            startup = time.perf_counter() - clock
            attestation = server.attest(None)
            _must_hold(attestation, server)
            tally = self._measure(plan, server, progress)
            attestation = server.attest(tally.drafted)
            _must_hold(attestation, server)
            if not tally.answered:
                first = tally.failed[0]
                raise EngineError(f"Every request failed: {first.message}", kind=first.kind, log_tail=server.log_tail())
            status = "finished"
        except EngineError as failure:
            status, error = "failed", failure
        finally:
            if server is not None:
                exit_status = server.stop()
            outcome = Cell(
                block=plan.block,
                arm=plan.arm.name,
                order=plan.order,
                attempt=attempt,
                status=status,
                started_at=began,
                wall_s=time.perf_counter() - clock,
                startup_s=startup,
                load_before=load,
                exit_status=exit_status,
                log=f"{LOGS}/{log.name}",
                attestation=_stored(attestation),
                error=_cell_error(error),
            )
            if status == "interrupted":
                with contextlib.suppress(StorageError):  # a full disk is what may have interrupted it
                    self.writer.add_cell(outcome)
        return outcome

    def _attempt(self, plan: CellPlan) -> int:
        """Return how many processes this cell has had before the current one."""
        return sum((cell.block, cell.arm) == (plan.block, plan.arm.name) for cell in self.writer.manifest.cells)

    def _same_files(self) -> None:
        changed = [str(file) for file, stamp in self._files.items() if _stamp(file) != stamp]
        if changed:
            raise EngineError(
                f"Changed since the run began: {', '.join(changed)}.",
                kind="launch",
                fix="Start a new run, with files that stay as they are.",
            )

    def _measure(self, plan: CellPlan, server: Server, progress: RunProgress) -> _Tally:
        tally = _Tally()
        sampling = self.recipe.sampling
        brief = sampling.model_copy(update={"max_tokens": min(sampling.max_tokens, WARMUP_TOKENS)})
        for number in range(self.recipe.warmup):
            record = self._record(plan, "warmup", number, "warmup")
            completion = server.complete(server.render(WARMUP_PROMPT), brief)
            tally.count(completion)
            self.writer.append(record.model_copy(update=_measured(completion)))  # kept as evidence, without its text
        for item in plan.prompts:
            progress.asked(plan, item.task, item.prompt_idx)
            self._ask(plan, item, server, tally, progress)
        self._recover(server, tally)
        return tally

    def _ask(self, plan: CellPlan, item: PromptItem, server: Server, tally: _Tally, progress: RunProgress) -> None:
        record = self._record(plan, item.task, item.prompt_idx, "measure")
        try:
            rendered = server.render(item.prompt)
            record = record.model_copy(update={"prompt_sha": sha256_text(rendered.text)})
            completion = server.complete(rendered, self.recipe.sampling, progress.tokens)
        except EngineError as failure:
            error = RecordError(kind=failure.kind, message=failure.what)
            self.writer.append(record.model_copy(update={"error": error}))
            tally.failed.append(error)
            progress.answered(plan, None)
            if failure.kind in REQUEST_ONLY and server.alive():
                return
            raise
        record = record.model_copy(update=_measured(completion) | _said(completion))
        self.writer.append(record)
        tally.count(completion)
        tally.answered += 1
        if completion.token_gap is not None:
            tally.withheld.append((record, rendered, completion))
        progress.answered(plan, completion)

    def _recover(self, server: Server, tally: _Tally) -> None:
        """Fetch token ids that streams withheld, once nothing is timed any more; a second line replaces the record."""
        for record, rendered, completion in tally.withheld:
            ids = server.recover_token_ids(rendered, self.recipe.sampling, completion)
            if ids is not None:
                known = {"token_ids": list(ids), "token_sha": sha256_tokens(ids), "token_gap": None}
                self.writer.append(record.model_copy(update=known))

    def _record(self, plan: CellPlan, task: str, prompt_idx: int, phase: Phase) -> Record:
        return Record(
            label=plan.arm.name,
            task=task,
            prompt_idx=prompt_idx,
            rep=plan.block,
            schema=SCHEMA_VERSION,
            run=self.writer.manifest.run,
            block=plan.block,
            order=plan.order,
            attempt=self._attempt(plan),
            phase=phase,
            started_at=now(),
        )


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return size and time of a file, `None` when it is gone: cheap, where hashing again would warm the page cache."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _must_hold(attestation: Attestation, server: Server) -> None:
    if attestation.state == "failed":
        raise EngineError(
            attestation.reason or "The engine did not run as the recipe asked.",
            kind="attestation",
            fix=attestation.remedy,
            log_tail=server.log_tail(),
        )


def _measured(done: Completion) -> dict[str, object]:
    """The numbers of an answer, in the record's words."""
    ledger = done.ledger
    steps = done.n_predicted - 1
    return {
        "n_predicted": done.n_predicted,
        "tok_per_sec": steps / done.engine_decode_s if steps > 0 and done.engine_decode_s else None,
        "client_tok_per_sec": steps / done.decode_s if steps > 0 and done.decode_s > 0 else None,
        "prompt_per_sec": done.prompt_tokens / done.engine_prompt_s if done.engine_prompt_s else None,
        "prompt_tokens": done.prompt_tokens,
        "draft_n": ledger.drafted,
        "draft_n_accepted": ledger.accepted,
        "rounds": ledger.rounds,
        "drafted_by_position": _listed(ledger.drafted_by_position),
        "accepted_by_position": _listed(ledger.accepted_by_position),
        "finish_reason": done.finish_reason,
        "ttft_s": done.ttft_s,
        "decode_s": done.decode_s,
        "e2e_s": done.e2e_s,
        "engine_prompt_s": done.engine_prompt_s,
        "engine_decode_s": done.engine_decode_s,
    }


def _said(done: Completion) -> dict[str, object]:
    """The text and tokens of an answer, with their hashes."""
    ids = done.token_ids
    return {
        "content": done.text,
        "content_sha": sha256_text(done.text),
        "token_ids": _listed(ids),
        "token_sha": None if ids is None else sha256_tokens(ids),
        "token_gap": done.token_gap,
    }


def _listed(values: tuple[int, ...] | None) -> list[int] | None:
    return None if values is None else list(values)


def _stored(attestation: Attestation | None) -> AttestationRecord | None:
    if attestation is None:
        return None
    return AttestationRecord(
        state=attestation.state,
        evidence=[homely(line) for line in attestation.evidence],
        reason=attestation.reason,
        remedy=attestation.remedy,
    )


def _cell_error(error: EngineError | None) -> CellError | None:
    if error is None:
        return None
    return CellError(
        kind=error.kind,
        message=homely(error.what),
        remedy=error.fix,
        log_tail=[homely(line) for line in error.log_tail],
    )
