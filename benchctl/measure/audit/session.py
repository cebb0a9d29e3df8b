"""The audit: a run's distinct answers, scored whole on the target alone in one engine process, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchctl.analysis.audit.selection import Selection
from benchctl.data.audits import AUDIT, Audit
from benchctl.data.store import RunData
from benchctl.data.writer import write_whole
from benchctl.engines.base import PrefillScorer, Scorer
from benchctl.errors import BenchctlError, EngineError, StorageError
from benchctl.measure.audit.plan import AnswerPlan, AuditPlan, cost_of, make_plan, seconds_of
from benchctl.measure.audit.reading import read_by_decoding, read_in_batches, score
from benchctl.measure.replay.relaunch import Relaunch, RelaunchError, relaunch
from benchctl.measure.replay.session import KEPT_EVERY_S, is_other, origin_of
from benchctl.measure.run import signals_interrupt

LEAST_S = 45.0
"""A run of a few seconds may be audited for so long."""

Announce = Callable[[AuditPlan], None]
"""Called once, before anything is read, with what will be."""
Advance = Callable[[int, int, str], None]
"""Called with how many prompts of how many are read, and which comes next."""


@dataclass
class AuditOutcome:
    """What an audit brought."""

    audit: Audit | None
    """With everything that was there before; `None` when nothing is known."""
    reason: str | None = None
    """Why nothing, or nothing more, could be read; the end of a sentence."""
    error: EngineError | None = None
    """The engine's failure, where that was it."""


def audit_run(
    run: RunData,
    selection: Selection,
    *,
    baseline: str,
    stored: Audit | None,
    budget_s: float | None = None,
    binary: str | None = None,
    models_dir: Path | None = None,
    trusted: bool = False,
    announce: Announce | None = None,
    advance: Advance | None = None,
) -> AuditOutcome:
    """Score the selected answers and measure the noise; keep everything in the run's folder.

    `budget_s`: how long reading may take; as long as the run's own requests took where it is not given. Raises
    StorageError, and KeyboardInterrupt; what was read until then is kept.
    """
    outcome = AuditOutcome(stored)
    budget_s = max(LEAST_S, seconds_of(run.records)) if budget_s is None else budget_s
    cost = cost_of(run.records, baseline)
    plan = make_plan(selection, stored, cost, budget_s, in_batches=True)
    if not plan.prompts:
        return outcome
    try:
        with signals_interrupt():
            again = relaunch(run, baseline, binary=binary, models_dir=models_dir, trusted=trusted)
            with again.scorer(run.folder, "audit") as scorer:
                if isinstance(scorer, PrefillScorer):
                    own = {answer.key for answer in selection.own}
                    selection = selection.with_own_answers()
                    plan = make_plan(selection, stored, cost, budget_s, in_batches=False)
                else:
                    own = set()
                if announce is not None:
                    announce(plan)
                outcome.audit = stored or Audit.model_validate(
                    origin_of(run, baseline, scorer)
                    | {"shape": "prefill" if isinstance(scorer, PrefillScorer) else "decode"}
                )
                _Session(run, again, scorer, outcome, own, advance).read(plan)
    except RelaunchError as error:
        outcome.reason = str(error)
    except EngineError as error:
        outcome.reason, outcome.error = f"the engine failed: {error.what}", error
    except StorageError:
        raise
    except BenchctlError as error:
        outcome.reason = error.what
    return outcome


class _Session:
    """One process that reads a plan."""

    def __init__(
        self,
        run: RunData,
        again: Relaunch,
        scorer: Scorer,
        outcome: AuditOutcome,
        own: set[tuple[str, int, str | None, str]],
        advance: Advance | None,
    ) -> None:
        self._run, self._again, self._scorer, self._outcome = run, again, scorer, outcome
        self._own = own
        self._advance = advance
        self._kept_at = time.monotonic()

    def read(self, plan: AuditPlan) -> None:
        """Read prompt by prompt until the time is over; the file is written every few seconds and at the end."""
        audit = self._outcome.audit
        assert audit is not None, "made before reading"
        start, before = time.monotonic(), audit.seconds
        try:
            for number, prompt in enumerate(plan.prompts):
                if number and time.monotonic() - start > plan.budget_s:
                    break
                for one in prompt:
                    self._progress(number, len(plan.prompts), f"{one.answer.task}/{one.answer.prompt_idx}")
                    self._read_answer(one, audit)
                    audit.seconds = before + time.monotonic() - start
                    self._keep(audit, due=time.monotonic() - self._kept_at > KEPT_EVERY_S)
            self._progress(len(plan.prompts), len(plan.prompts), "done")
        finally:
            self._keep(audit, due=True)

    def _read_answer(self, plan: AnswerPlan, audit: Audit) -> None:
        answer = plan.answer
        prompt = self._again.prompts.get((answer.task, answer.prompt_idx))
        if prompt is None:
            self._outcome.reason = self._again.prompts_lack
            return
        rendered = self._scorer.render(prompt)
        if is_other(rendered.text, rendered.token_ids, answer):
            self._outcome.reason = "the engine now renders the prompt otherwise"
            return
        reading = score(self._scorer, rendered.token_ids, answer)
        if not plan.scored:
            audit.answers.append(reading.scored)
        for alignment in plan.alignments:
            audit.passes.append(read_in_batches(self._scorer, rendered.token_ids, answer, reading, alignment))
        decoded = {one.answer for one in audit.passes if one.width == 0}
        if answer.key in self._own and answer.key not in decoded:
            audit.passes.append(read_by_decoding(self._scorer, rendered.token_ids, answer, reading))

    def _progress(self, done: int, total: int, what: str) -> None:
        if self._advance is not None:
            self._advance(done, total, what)

    def _keep(self, audit: Audit, *, due: bool) -> None:
        if due:
            write_audit(self._run.folder, audit)
            self._kept_at = time.monotonic()


def write_audit(folder: Path, audit: Audit) -> None:
    """Replace `audit.json` atomically. Raises StorageError."""
    write_whole(folder / AUDIT, audit.model_dump_json(by_alias=True))
