"""A scoring session: a run's target, launched again alone, reads divergences and whole answers; all of it is kept.

A single process serves both, and a single file takes what it reads, so that assessing it again launches no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

from benchctl import __version__
from benchctl.data.identity import home_relative
from benchctl.data.record import sha256_text
from benchctl.data.scores import SCORES, AnswerKey, TargetScores, of_part
from benchctl.data.writer import write_scores
from benchctl.engines.base import PrefillScorer, Renders, Scorer
from benchctl.lossless.plan import (
    AnswerPlan,
    AnswerToScore,
    ScoringPlan,
    cost_of,
    lacks_shared,
    plan_answers,
    plan_prefixes,
    widths_of,
)
from benchctl.lossless.reading import ReadAnswer, read_answer, read_by_decoding, read_in_batches, read_shared, score
from benchctl.lossless.relaunch import Outcome, Relaunch, Target
from benchctl.lossless.selection import Answer, Selection
from benchctl.measure.recording import now

KEPT_EVERY_S = 5.0
"""The file is written whole; a killed benchctl loses no more than this."""
LEAST_S = 45.0
"""The whole answers of a run of a few seconds may be scored for so long."""
SHARED_S = 20.0
"""At least so long the noise of shared batches is measured."""
_RENDERED_DIFFERENTLY = "the engine now renders the prompt differently"

Announce = Callable[[ScoringPlan], None]
"""Called once, before whole answers are read, with what will be."""
Show = Callable[[str, int, int], None]
"""Called with what comes next, and how many answers or prompts of how many are done."""


class ScoringSession:
    """Adds to a run's scores; everything that is read is kept in the run's folder, however reading ends."""

    def __init__(self, target: Target, stored: TargetScores | None) -> None:
        self.scores = stored
        """With everything that was there before; `None` when nothing is known."""
        self._target = target
        self._changed = False
        self._written_at = time.monotonic()

    def score_prefixes(self, answers: Sequence[AnswerToScore], show: Show) -> Outcome:
        """Score the divergences of `answers` and a sample of prefixes without any.

        Raises StorageError, and KeyboardInterrupt.
        """
        outcome = Outcome()
        with outcome.keeping_failures():
            again = self._target.again()
            usable = [answer for answer in answers if (answer.task, answer.prompt_idx) in again.prompts]
            lacking = {(answer.task, answer.prompt_idx) for answer in answers} - again.prompts.keys()
            outcome.by_answer = dict.fromkeys(lacking, again.prompts_lack)
            sampled = self.scores.sampled if self.scores else []
            plans = plan_prefixes(usable, sampled)
            if not plans:
                return outcome
            show("starting the target alone", 0, len(plans))
            with self._target.scorer() as scorer, self._kept():
                scores = self._begun(scorer)
                for number, plan in enumerate(plans):
                    where = (plan.answer.task, plan.answer.prompt_idx)
                    show(f"{where[0]}/{where[1]}", number, len(plans))
                    prompt = _prompt_of(again, scorer, plan.answer)
                    if prompt is None:
                        outcome.by_answer[where] = _RENDERED_DIFFERENTLY
                        continue
                    positions, decoded = read_answer(scorer, prompt, plan)
                    scores.add(positions)
                    scores.add_decoded(decoded)
                    self._keep_soon()
                scores.sampled = sorted({*sampled, *widths_of(usable)})
                self._changed = True
            show("done", len(plans), len(plans))
        return outcome

    def score_answers(
        self, selection: Selection, show: Show, *, budget_s: float | None = None, announce: Announce | None = None
    ) -> Outcome:
        """Score the selected answers whole and measure the noise.

        `budget_s`: how long reading may take; as long as the run's own requests took where it is not given. Raises
        StorageError, and KeyboardInterrupt.
        """
        outcome, records = Outcome(), self._target.run.records
        budget_s = max(LEAST_S, sum(record.e2e_s or 0.0 for record in records)) if budget_s is None else budget_s
        cost = cost_of(records, self._target.baseline)
        plan = plan_answers(selection, self.scores, cost, budget_s, in_batches=True)
        until = time.monotonic() + budget_s
        with outcome.keeping_failures():
            if plan.prompts:
                with self._target.scorer() as scorer, self._kept():
                    own = set[AnswerKey]()
                    if isinstance(scorer, PrefillScorer):  # its noise is against decoding the baseline's own answers
                        own = {answer.key for answer in selection.own}
                        both = selection.with_own_answers()
                        plan = plan_answers(both, self.scores, cost, budget_s, in_batches=False)
                    if announce is not None:
                        announce(plan)
                    self._read_plan(scorer, plan, own, outcome, show)
            self._target.stop()
            scores = self.scores
            if scores is None or not scores.answers or scores.shape != "decode":
                return outcome
            for width, slots, baseline in selection.shared:
                if lacks_shared(scores, width, slots):
                    self._read_shared(scores, self._target.again(baseline), selection, width, slots, until)
        return outcome

    def _read_plan(self, scorer: Scorer, plan: ScoringPlan, own: set[AnswerKey], outcome: Outcome, show: Show) -> None:
        """Read prompt by prompt until the time is over."""
        scores = self._begun(scorer)
        if not scores.answers:
            scores.shape = "prefill" if isinstance(scorer, PrefillScorer) else "decode"
        start, before = time.monotonic(), scores.seconds
        for number, prompt in enumerate(plan.prompts):
            if number and time.monotonic() - start > plan.budget_s:
                break
            for planned in prompt:
                show(f"{planned.answer.task}/{planned.answer.prompt_idx}", number, len(plan.prompts))
                self._read_planned(scorer, scores, planned, own, outcome)
                scores.seconds = before + time.monotonic() - start
                self._keep_soon()
        show("done", len(plan.prompts), len(plan.prompts))

    def _read_planned(
        self, scorer: Scorer, scores: TargetScores, plan: AnswerPlan, own: set[AnswerKey], outcome: Outcome
    ) -> None:
        answer, again = plan.answer, self._target.again()
        if (answer.task, answer.prompt_idx) not in again.prompts:
            outcome.reason = again.prompts_lack
            return
        prompt = _prompt_of(again, scorer, answer)
        if prompt is None:
            outcome.reason = _RENDERED_DIFFERENTLY
            return
        reading = score(scorer, prompt, answer)
        if not plan.scored:
            scores.answers.append(reading.scored)
        scores.passes += [read_in_batches(scorer, reading, alignment) for alignment in plan.alignments]
        if answer.key in own and not any(read.answer == answer.key for read in scores.passes if read.width == 0):
            scores.passes.append(read_by_decoding(scorer, reading))

    def _read_shared(
        self, scores: TargetScores, again: Relaunch, selection: Selection, width: int, slots: int, until: float
    ) -> None:
        """Measure the noise of batches of `width` tokens of each of `slots` requests, on scored answers."""
        scored = {earlier.answer: earlier for earlier in scores.answers}
        start = time.monotonic()
        with again.slot_scorer(self._target.run.folder, f"audit-{slots}x{width}") as scorer, self._kept():
            usable = []
            for answer in chain.from_iterable(selection.prompts):
                known = scored.get(answer.key)
                prompt = _prompt_of(again, scorer, answer) if known else None
                if known is not None and prompt is not None:
                    usable.append(ReadAnswer(known, prompt, answer.token_ids))
            try:
                least = start + SHARED_S  # what was scored before it may have taken all of the time
                read_shared(scorer, usable, scores, width=width, slots=slots, until=max(until, least))
            finally:
                scores.seconds += time.monotonic() - start
                self._changed = True

    def _begun(self, scorer: Scorer) -> TargetScores:
        """Return the run's scores, begun with what reads them where there are none."""
        if self.scores is None:
            manifest = self._target.run.manifest
            assert manifest is not None, "a run without a manifest cannot be launched again"
            self.scores = TargetScores(
                run=manifest.run,
                benchctl_version=__version__,
                made_at=now(),
                baseline=self._target.baseline,
                command=[home_relative(word) for word in scorer.command],
                engine_sha256=manifest.engine.details.get("sha256"),
                siblings=manifest.engine.details.get("siblings") or {},
                model=manifest.target.files,
            )
        return self.scores

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Write what was read meanwhile when this is left, however it is."""
        try:
            yield
        finally:
            if self._changed:
                self._write()

    def _keep_soon(self) -> None:
        self._changed = True
        if time.monotonic() - self._written_at > KEPT_EVERY_S:
            self._write()

    def _write(self) -> None:
        """Replace the scores of a run, or of a part of it, atomically. Raises StorageError."""
        run = self._target.run
        assert run.manifest is not None and self.scores is not None, "begun before it is written"
        text = self.scores.model_dump_json(by_alias=True)
        write_scores(run.folder, of_part(SCORES, run.part), text, run.manifest)
        self._changed, self._written_at = False, time.monotonic()


def _prompt_of(again: Relaunch, scorer: Renders, answer: Answer) -> tuple[int, ...] | None:
    """Return the tokens of the prompt that was answered; `None` where that is not what it renders to now."""
    prompt = again.prompts.get((answer.task, answer.prompt_idx))
    if prompt is None:
        return None
    rendered = again.render(scorer, prompt)
    same_text = answer.prompt_sha is None or sha256_text(rendered.text) == answer.prompt_sha
    same_length = answer.prompt_tokens is None or len(rendered.token_ids) == answer.prompt_tokens
    return rendered.token_ids if same_text and same_length else None
