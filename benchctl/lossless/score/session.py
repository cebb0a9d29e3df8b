"""`benchctl verify-lossless`: scores what is not scored yet of a run's answers, and judges the arms.

A run's target is launched again alone and reads divergences and whole answers: a single process serves both, and a
single file takes what it reads, so that judging it again launches no engine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from rich.console import Console
from rich.text import Text

from benchctl.analysis.conditions.split import parts_of
from benchctl.analysis.losslessness import because
from benchctl.analysis.output_results import Losslessness, LosslessVerdict, SelfConsistency
from benchctl.data.machines import AXIS as MACHINE
from benchctl.data.pool import pooled
from benchctl.data.scores import AnswerKey, TargetScores
from benchctl.data.store import RunData, open_run
from benchctl.engines.scoring import PrefillScorer, Scorer
from benchctl.errors import EngineError, UsageError
from benchctl.lossless.judge.audit import NOT_SCORED, PREFIXES
from benchctl.lossless.judge.divergence import NOT_REPLAYED
from benchctl.lossless.judge.run import OutputComparison
from benchctl.lossless.judge.selection import Selection
from benchctl.lossless.score.continuing import lacking_widths, prompts_beside, read_continuation
from benchctl.lossless.score.plan import (
    AnswerPlan,
    AnswerToScore,
    ScoringPlan,
    cost_of,
    lacks_shared,
    plan_answers,
    plan_prefixes,
    prefixes_to_score,
    widths_of,
)
from benchctl.lossless.score.reading import (
    ReadAnswer,
    read_answer,
    read_by_decoding,
    read_in_batches,
    read_shared,
    score,
)
from benchctl.lossless.score.relaunch import Relaunch, ScoringOutcome, Target
from benchctl.lossless.score.replaying import replay_run
from benchctl.lossless.score.scores_file import ScoresFile, Show
from benchctl.measurement.progress import shown_steps
from benchctl.measurement.run import signals_interrupt
from benchctl.recipes.groups import recipe_arm
from benchctl.text import spoken

LEAST_S = 45.0
"""The whole answers of a run of a few seconds may be scored for so long."""
SHARED_S = 20.0
"""At least so long the noise of shared batches is measured."""

Announce = Callable[[ScoringPlan], None]
"""Called once, before whole answers are read, with what will be."""


OFFLINE = because("divergence-offline")
UNSCORED_OFFLINE = because("offline")
ELSEWHERE = because("several-machines")


@dataclass(frozen=True)
class Verified:
    """The verdicts on a run's arms, with every difference scored as far as possible."""

    outputs: OutputComparison
    verdicts: list[Losslessness]
    consistency: list[SelfConsistency]
    scores: TargetScores | None = None
    """Of a run of several parts `None`: each has its own."""
    failure: EngineError | None = None
    """The engine's failure, where no difference could be scored because of it."""

    def baseline_of(self, arm: str) -> str:
        """Return the arm that `arm` is compared with."""
        return next(frame.arms[frame.baseline] for frame in self.outputs.frames if arm in frame.arms)

    def only(self, *accepted: LosslessVerdict) -> bool:
        """Whether every arm that can be judged has any of these verdicts; false where none can be."""
        verdicts = [arm.verdict for arm in self.verdicts if arm.verdict != "not judged"]
        return bool(verdicts) and all(verdict in accepted for verdict in verdicts)


@dataclass(frozen=True)
class Request:
    """What is asked of a run's output: of every arm, or of `arms`, against `baseline`."""

    baseline: str | None = None
    arms: list[str] | None = None
    offline: bool = False
    """Whether no engine is started: what is stored decides."""
    budget_min: float | None = None
    """How long whole answers may be scored."""
    binary: str | None = None
    models_dir: Path | None = None
    trusted: bool = False
    quiet: bool = False


def verify(run: RunData, request: Request) -> Verified:
    """Compare answers, score what is not scored yet, and judge.

    Raises UsageError, for an arm that the run does not have before anything is scored, and StorageError.

    Each part of a run with axes is scored on its own target, in turn. A run measured on unlike machines of
    a cluster is not scored.
    """
    arms, baseline, parts = request.arms, request.baseline, parts_of(run)
    if arms:
        comparable = OutputComparison(run, baseline=baseline)
        for name in arms:
            if name not in comparable.names:
                fix = f"The arms are: {', '.join(comparable.arms)}."
                raise UsageError(f"There is no arm {name!r} to compare.", where="--arm", fix=fix)
    elsewhere = run.manifest is not None and any(MACHINE in setup.axes for setup in run.manifest.setups)
    budget = None if request.budget_min is None else request.budget_min / len(parts)
    request = replace(request, offline=request.offline or elsewhere, budget_min=budget)
    if len(parts) == 1:
        return _verified(parts[0], request)
    compared = run.manifest.compared().values() if run.manifest else ()
    chosen = replace(request, baseline=None if baseline is None else recipe_arm(compared, baseline))
    scored, failures = {}, []
    for part in parts:
        names = {name for arm in part.manifest.arms for name in (arm.name, arm.of)} if part.manifest else set()
        if arms and not names & set(arms):
            continue
        of_this_part = _verified(part, chosen)
        scored[part.part or ""] = of_this_part.scores
        failures += [of_this_part.failure] if of_this_part.failure is not None else []
    outputs = OutputComparison(replace(run, of_parts={**run.of_parts, **scored}), baseline=baseline, arms=arms)
    unscored = ELSEWHERE if elsewhere else UNSCORED_OFFLINE if request.offline else NOT_SCORED
    verdicts = outputs.verdicts(reason=unscored)
    failure = next((_if_nothing(problem, verdicts) for problem in failures), None)
    return Verified(outputs, verdicts, outputs.consistency(), failure=failure)


def verify_pooled(runs: Sequence[RunData], request: Request) -> tuple[RunData, Verified]:
    """Score each run as `verify` does, and judge every arm by the evidence of all of them.

    Returns what they are together. Raises UsageError for runs that are not of one workload before any is scored, and as
    `verify`.
    """
    pooled(runs)
    failures = [verify(run, request).failure for run in runs]
    together = pooled([open_run(run.folder) for run in runs])
    outputs = OutputComparison(together, baseline=request.baseline, arms=request.arms)
    verdicts = outputs.verdicts(reason=UNSCORED_OFFLINE if request.offline else NOT_SCORED)
    failure = next((_if_nothing(problem, verdicts) for problem in filter(None, failures)), None)
    return together, Verified(outputs, verdicts, outputs.consistency(), together.scores, failure)


def _verified(run: RunData, request: Request) -> Verified:
    """Score and judge a run of a single target, or a part of a run."""
    outputs = OutputComparison(run, baseline=request.baseline, arms=request.arms)
    if request.offline:
        stored = outputs.stored
        reason = OFFLINE if stored.reason == NOT_REPLAYED else stored.reason
        verdicts = outputs.verdicts(replace(stored, reason=reason), reason=UNSCORED_OFFLINE)
        return Verified(outputs, verdicts, outputs.consistency(), stored.scores)
    name = outputs.frame.arms[outputs.frame.baseline]
    target = Target(run, name, binary=request.binary, models_dir=request.models_dir, trusted=request.trusted)
    with signals_interrupt(), target:
        return _scored(target, outputs, request)


def _scored(target: Target, outputs: OutputComparison, request: Request) -> Verified:
    """Score a run's divergences that are not scored yet, then whole answers, and judge it."""
    session, evidence, failure = ScoringSession(target, outputs.stored.scores), outputs.stored, None
    budget_s = session.budget_s(request.budget_min)
    with shown_steps("Replaying answers on the target alone", quiet=request.quiet) as show:
        taken_s = replay_run(session, outputs.steps, show, budget_s)
    budget_s = max(LEAST_S if request.budget_min is None else 0.0, budget_s - taken_s)
    evidence = replace(evidence, scores=session.scores, noise={})
    verdicts = outputs.verdicts(evidence)
    open_verdicts = [row for row in verdicts if row.replay is None or not row.replay.decides]
    stored_verdicts = [verdict for verdict in open_verdicts if verdict.arm in outputs.frame.arms]
    prefixes = prefixes_to_score(outputs.frame, stored_verdicts)
    if any(prefix.divergences for prefix in prefixes) and not _is_scored(stored_verdicts):
        with shown_steps("Scoring what differs", quiet=request.quiet) as show:
            outcome = session.score_prefixes(prefixes, show)
        failure = outcome.error
        reason = because("divergence-not-replayed")
        if outcome.reason:
            reason = because("divergence-failed", message=outcome.reason)
        by_answer = {
            answer: because("divergence-failed", message=message) for answer, message in outcome.by_answer.items()
        }
        evidence = replace(evidence, scores=session.scores, reason=reason, by_answer=by_answer, noise={})
    unscored = NOT_SCORED
    differing = outputs.selection(verdicts)
    selection = differing if differing.arms else differing.equal_alone()
    if selection.arms:
        with shown_steps("Scoring whole answers", quiet=request.quiet) as show:
            outcome = session.score_answers(
                selection,
                show,
                budget_s=budget_s,
                announce=None if request.quiet else _announce,
            )
        unscored = because("failed", message=outcome.reason) if outcome.reason else NOT_SCORED
        evidence = replace(evidence, scores=session.scores, noise={})  # more is known of the noise now
        failure = failure or (outcome.error if differing.arms else None)
    verdicts = outputs.verdicts(evidence, reason=unscored)
    return Verified(outputs, verdicts, outputs.consistency(), session.scores, _if_nothing(failure, verdicts))


def _if_nothing(failure: EngineError | None, verdicts: list[Losslessness]) -> EngineError | None:
    """Return the engine's failure where no difference is scored."""
    scored = any(
        comparison.divergence and comparison.divergence.margin is not None
        for arm in verdicts
        for comparison in arm.comparisons
    )
    return None if scored else failure


def _announce(plan: ScoringPlan) -> None:
    """Print how long scoring whole answers will take, before it begins."""
    answers = sum(len(prompt) for prompt in plan.prompts)
    share = f" of {plan.total_prompts}" if len(plan.prompts) < plan.total_prompts else ""
    time = f"about {spoken(plan.seconds)}, at most {spoken(plan.budget_s)}"
    message = f"Scoring {answers} whole answers to {len(plan.prompts)}{share} prompts on the target alone: {time}"
    Console(stderr=True).print(Text(f"{message} (less: --audit-minutes)."), soft_wrap=True)


def _is_scored(verdicts: list[Losslessness]) -> bool:
    """Whether every divergence that can be scored has been."""
    divergences = [
        divergence for arm in verdicts for comparison in arm.comparisons for divergence in comparison.divergences
    ]
    scorable = [
        divergence
        for divergence in divergences
        if divergence.unit == "token" and divergence.arm_token is not None and divergence.width
    ]
    return all(divergence.noise_floor is not None for divergence in scorable)


class ScoringSession(ScoresFile):
    """Adds to a run's scores; everything that is read is kept in the run's folder, however reading ends."""

    def score_prefixes(self, answers: Sequence[AnswerToScore], show: Show) -> ScoringOutcome:
        """Score the divergences of `answers` and a sample of prefixes without any.

        Raises StorageError, and KeyboardInterrupt.
        """
        outcome = ScoringOutcome()
        with outcome.keeping_failures():
            relaunch = self.target.again()
            usable = [answer for answer in answers if (answer.task, answer.prompt_idx) in relaunch.prompts]
            lacking = {(answer.task, answer.prompt_idx) for answer in answers} - relaunch.prompts.keys()
            outcome.by_answer = dict.fromkeys(lacking, relaunch.prompts_lack)
            sampled = self.scores.sampled if self.scores else []
            plans = plan_prefixes(usable, sampled)
            if not plans:
                return outcome
            show("starting the target alone", 0, len(plans))
            with self.target.scorer() as scorer, self.writing():
                scores = self.scores_read_by(scorer)
                for number, plan in enumerate(plans):
                    where = (plan.answer.task, plan.answer.prompt_idx)
                    show(f"{where[0]}/{where[1]}", number, len(plans))
                    prompt = relaunch.prompt_of(scorer, plan.answer)
                    if prompt is None:
                        outcome.by_answer[where] = relaunch.no_prompt_of(plan.answer)
                        continue
                    scores.add(read_answer(scorer, prompt.token_ids, plan))
                    self.write_soon()
                scores.sampled = sorted({*sampled, *widths_of(usable)})
                self.changed = True
            show("done", len(plans), len(plans))
        return outcome

    def budget_s(self, minutes: float | None) -> float:
        """Return how long reading whole answers may take: as long as the run's own requests, where nothing is given."""
        if minutes is not None:
            return 60 * minutes
        return max(LEAST_S, sum(record.e2e_s or 0.0 for record in self.target.run.records))

    def score_answers(
        self, selection: Selection, show: Show, *, budget_s: float, announce: Announce | None = None
    ) -> ScoringOutcome:
        """Score the selected answers whole and measure the noise.

        `budget_s`: how long reading may take. Raises StorageError, and KeyboardInterrupt.
        """
        outcome, records = ScoringOutcome(), self.target.run.records
        cost = cost_of(records, self.target.baseline)
        plan = plan_answers(selection, self.scores, cost, budget_s, in_batches=True)
        until = time.monotonic() + budget_s
        with outcome.keeping_failures():
            if plan.prompts or lacking_widths(self.scores, selection.widths):
                with self.target.scorer() as scorer, self.writing():
                    own_answers = set[AnswerKey]()
                    if isinstance(scorer, PrefillScorer):  # its noise is against decoding the baseline's own answers
                        own_answers = {answer.key for answer in selection.baseline_answers}
                        with_own = selection.with_baseline_answers()
                        plan = plan_answers(with_own, self.scores, cost, budget_s, in_batches=False)
                    if announce is not None:
                        announce(plan)
                    self._read_plan(scorer, plan, own_answers, outcome, show)
                    self._read_continuations(scorer, selection.widths, until, show)
            self.target.stop()
            scores = self.scores
            if scores is None or not scores.answers or scores.shape != "decode":
                return outcome
            for width, slots, baseline in selection.shared:
                if lacks_shared(scores, width, slots):
                    self._read_shared(scores, self.target.again(baseline), selection, width, slots, until)
        return outcome

    def _read_plan(
        self, scorer: Scorer, plan: ScoringPlan, own_answers: set[AnswerKey], outcome: ScoringOutcome, show: Show
    ) -> None:
        """Read prompt by prompt until the time is over."""
        scores = self.scores_read_by(scorer)
        if not scores.answers:
            scores.shape = "prefill" if isinstance(scorer, PrefillScorer) else "decode"
        start, before = time.monotonic(), scores.seconds
        for number, prompt in enumerate(plan.prompts):
            if number and time.monotonic() - start > plan.budget_s:
                break
            for planned in prompt:
                show(f"{planned.answer.task}/{planned.answer.prompt_idx}", number, len(plan.prompts))
                self._read_planned(scorer, scores, planned, own_answers, outcome)
                scores.seconds = before + time.monotonic() - start
                self.write_soon()
        show("done", len(plan.prompts), len(plan.prompts))

    def _read_continuations(self, scorer: Scorer, widths: Sequence[int], until: float, show: Show) -> None:
        """Measure on further text what the run's answers are too few for, until the time is over."""
        scores, manifest = self.scores_read_by(scorer), self.target.run.manifest
        if manifest is None or scores.shape != "decode" or not scorer.in_batches or not scores.answers:
            return
        ends = manifest.target.facts.get("end_tokens") or ()
        start, before = time.monotonic(), scores.seconds
        for item in prompts_beside(manifest):
            missing = lacking_widths(scores, widths)
            if not missing or time.monotonic() > until:
                break
            show("measuring the noise on further text", min(map(scores.places_read, missing)), PREFIXES)
            read_continuation(scorer, item, scores, missing, ends)
            scores.seconds = before + time.monotonic() - start
            self.write_soon()

    def _read_planned(
        self,
        scorer: Scorer,
        scores: TargetScores,
        plan: AnswerPlan,
        own_answers: set[AnswerKey],
        outcome: ScoringOutcome,
    ) -> None:
        answer, relaunch = plan.answer, self.target.again()
        prompt = relaunch.prompt_of(scorer, answer)
        if prompt is None:
            outcome.reason = relaunch.no_prompt_of(answer)
            return
        reading = score(scorer, prompt.token_ids, answer)
        if not plan.scored:
            scores.answers.append(reading.scored)
        scores.passes += [read_in_batches(scorer, reading, alignment) for alignment in plan.alignments]
        if answer.key in own_answers and not any(
            read.answer == answer.key for read in scores.passes if read.width == 0
        ):
            scores.passes.append(read_by_decoding(scorer, reading))

    def _read_shared(
        self, scores: TargetScores, relaunch: Relaunch, selection: Selection, width: int, slots: int, until: float
    ) -> None:
        """Measure the noise of batches of `width` tokens of each of `slots` requests, on scored answers."""
        scored = {earlier.answer: earlier for earlier in scores.answers}
        start = time.monotonic()
        with relaunch.slot_scorer(self.target.run.folder, f"audit-{slots}x{width}") as scorer, self.writing():
            usable = [
                ReadAnswer(scored[answer.key], prompt.token_ids, answer.token_ids)
                for answer in chain.from_iterable(selection.prompts)
                if answer.key in scored and (prompt := relaunch.prompt_of(scorer, answer)) is not None
            ]
            try:
                earliest_end = start + SHARED_S  # what was scored before it may have taken all of the time
                read_shared(scorer, usable, scores, width=width, slots=slots, until=max(until, earliest_end))
            finally:
                scores.seconds += time.monotonic() - start
                self.changed = True
