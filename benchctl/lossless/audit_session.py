"""The audit: a run's distinct answers, scored whole on the target alone in an engine process, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchctl.data.audits import AUDIT, Audit, DivergedToken, NullPass, ScoredAnswer
from benchctl.data.replays import of_part
from benchctl.data.store import RunData
from benchctl.data.writer import write_scores
from benchctl.engines.base import PrefillScorer, Scorer, Scores
from benchctl.errors import EngineError
from benchctl.lossless.audit_plan import Alignment, AnswerPlan, AuditPlan, cost_of, lacks_shared, make_plan, seconds_of
from benchctl.lossless.divergence_session import KEPT_EVERY_S, is_other, origin_of, read_steps
from benchctl.lossless.relaunch import Outcome, Relaunch, Target
from benchctl.lossless.selection import Answer, Selection
from benchctl.lossless.shared_batches import DIGITS, TOP, AuditedAnswer, loss, read_shared

LEAST_S = 45.0
"""A run of a few seconds may be audited for so long."""
SHARED_S = 20.0
"""At least so long the noise of shared batches is measured."""

Announce = Callable[[AuditPlan], None]
"""Called once, before anything is read, with what will be."""
Advance = Callable[[int, int, str], None]
"""Called with how many prompts of how many are read, and which comes next."""


@dataclass
class AuditOutcome(Outcome):
    """The result of an audit."""

    audit: Audit | None = None
    """With everything that was there before; `None` when nothing is known."""


def audit_run(
    target: Target,
    selection: Selection,
    *,
    stored: Audit | None,
    budget_s: float | None = None,
    announce: Announce | None = None,
    advance: Advance | None = None,
) -> AuditOutcome:
    """Score the selected answers and measure the noise; keep everything in the run's folder.

    `budget_s`: how long reading may take; as long as the run's own requests took where it is not given. Raises
    StorageError, and KeyboardInterrupt; what was read until then is kept.
    """
    run, outcome = target.run, AuditOutcome(audit=stored)
    budget_s = max(LEAST_S, seconds_of(run.records)) if budget_s is None else budget_s
    plan = make_plan(selection, stored, cost_of(run.records, target.baseline), budget_s, in_batches=True)
    until = time.monotonic() + budget_s
    with outcome.keeping_failures():
        if plan.prompts:
            _read(target, selection, plan, outcome, announce, advance)
        audit = outcome.audit
        target.stop()
        for width, slots, of in selection.shared if audit is not None and audit.shape == "decode" else ():
            if audit is not None and lacks_shared(audit, width, slots):
                _read_shared(run, target.again(of), audit, selection, width, slots, until)
    return outcome


def _read(
    target: Target,
    selection: Selection,
    plan: AuditPlan,
    outcome: AuditOutcome,
    announce: Announce | None,
    advance: Advance | None,
) -> None:
    """Score a plan's answers, and the baseline's own where scores are of prefill: its noise is against decoding."""
    run, own = target.run, set()
    with target.scorer() as scorer:
        at_once = isinstance(scorer, PrefillScorer)
        if at_once:
            own = {answer.key for answer in selection.own}
            cost = cost_of(run.records, target.baseline)
            plan = make_plan(selection.with_own_answers(), outcome.audit, cost, plan.budget_s, in_batches=False)
        if announce is not None:
            announce(plan)
        origin = origin_of(run, target.baseline, scorer) | {"shape": "prefill" if at_once else "decode"}
        outcome.audit = outcome.audit or Audit.model_validate(origin)
        _Session(run, target.again(), scorer, outcome, own, advance).read(plan)


def _read_shared(
    run: RunData, again: Relaunch, audit: Audit, selection: Selection, width: int, slots: int, until: float
) -> None:
    """Measure the noise of batches of `width` tokens of each of `slots` requests, on the answers that were scored."""
    scored = {earlier.key: earlier for earlier in audit.answers}
    start = time.monotonic()
    with again.slot_scorer(run.folder, f"audit-{slots}x{width}") as scorer:
        usable = []
        for group in selection.prompts:
            for answer in group:
                prompt = again.prompts.get((answer.task, answer.prompt_idx))
                if prompt is None or answer.key not in scored:
                    continue
                rendered = again.render(scorer, prompt)
                if not is_other(rendered.text, rendered.token_ids, answer):
                    usable.append(AuditedAnswer(scored[answer.key], tuple(rendered.token_ids), answer.token_ids))
        try:
            least = start + SHARED_S  # what was scored before it may have taken all of the time
            read_shared(scorer, usable, audit, width=width, slots=slots, until=max(until, least))
        finally:
            audit.seconds += time.monotonic() - start
            write_audit(run, audit)


class _Session:
    """A process that reads a plan."""

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
                for answer in prompt:
                    self._progress(number, len(plan.prompts), f"{answer.answer.task}/{answer.answer.prompt_idx}")
                    self._read_answer(answer, audit)
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
        rendered = self._again.render(self._scorer, prompt)
        if is_other(rendered.text, rendered.token_ids, answer):
            self._outcome.reason = "the engine now renders the prompt differently"
            return
        reading = score(self._scorer, rendered.token_ids, answer)
        if not plan.scored:
            audit.answers.append(reading.scored)
        for alignment in plan.alignments:
            audit.passes.append(read_in_batches(self._scorer, rendered.token_ids, answer, reading, alignment))
        decoded = {pass_.answer for pass_ in audit.passes if pass_.width == 0}
        if answer.key in self._own and answer.key not in decoded:
            audit.passes.append(read_by_decoding(self._scorer, rendered.token_ids, answer, reading))

    def _progress(self, done: int, total: int, what: str) -> None:
        if self._advance is not None:
            self._advance(done, total, what)

    def _keep(self, audit: Audit, *, due: bool) -> None:
        if due:
            write_audit(self._run, audit)
            self._kept_at = time.monotonic()


def write_audit(run: RunData, audit: Audit) -> None:
    """Replace `audit.json` of a run, or of a part of one, atomically. Raises StorageError."""
    assert run.manifest is not None, "a run without a manifest cannot be launched again"
    write_scores(run.folder, of_part(AUDIT, run.part), audit.model_dump_json(by_alias=True), run.manifest)


@dataclass(frozen=True)
class ReadAnswer:
    """An answer as scored, with what a second reading is compared with."""

    scored: ScoredAnswer
    likeliest: tuple[int, ...]


def score(scorer: Scorer, prompt: Sequence[int], answer: Answer) -> ReadAnswer:
    """Score every token of an answer. Raises EngineError, also where the engine keeps no cache of a prefix."""
    scores = scores_of(scorer, prompt, answer.token_ids, TOP)
    margins = [_margin(place) for place in scores]
    diverged = []
    for index, (place, token) in enumerate(zip(scores, answer.token_ids, strict=True)):
        best, known = place.logprobs[place.likeliest], place.logprobs.get(token)
        gap = best - (min(place.logprobs.values()) if known is None else known)
        if token != place.likeliest and gap > 0:
            diverged.append(
                DivergedToken(
                    index=index, likeliest=place.likeliest, gap=round(gap, DIGITS), gap_is_least=known is None
                )
            )
    scored = ScoredAnswer(
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        prompt_sha=answer.prompt_sha,
        token_sha=answer.token_sha,
        margins=margins,
        diverged=diverged,
    )
    return ReadAnswer(scored, tuple(place.likeliest for place in scores))


def read_in_batches(
    scorer: Scorer, prompt: Sequence[int], answer: Answer, reading: ReadAnswer, alignment: Alignment
) -> NullPass:
    """Read an answer in batches and compare it with its scores. Raises EngineError."""
    places, losses = [], []
    scorer.read_prompt(prompt, 1)
    counted = dict(alignment.ends(len(answer.token_ids)))
    for end, new, scores in read_steps(
        scorer, prompt, answer.token_ids, counted, lambda place: TOP if counted[place] else 1
    ):
        _check(scores, new)
        if counted[end]:
            places.append(end)
            losses.append(_loss(reading, end, scores))
    return _null_pass(answer, places, losses, alignment.width, alignment.first, alignment.skipped)


def read_by_decoding(scorer: Scorer, prompt: Sequence[int], answer: Answer, reading: ReadAnswer) -> NullPass:
    """Decode an answer that is the target's own again, for an engine whose scores are of prefill. Raises EngineError.

    Ends where the target goes another way than the answer.
    """
    places, losses = [0], [_loss(reading, 0, scorer.read_prompt(prompt, TOP))]
    for place, new, scores in read_steps(
        scorer, prompt, answer.token_ids, range(1, len(answer.token_ids)), lambda _: TOP
    ):
        if scores.evaluated != new:
            break
        places.append(place)
        losses.append(_loss(reading, place, scores))
    return _null_pass(answer, places, losses, 0, 0, 0)


def scores_of(scorer: Scorer, prompt: Sequence[int], answer: Sequence[int], top: int) -> list[Scores]:
    """Score an answer as greedy decoding evaluates it, or at once where the engine cannot do that."""
    if isinstance(scorer, PrefillScorer):
        return scorer.score_answer(prompt, answer, top)
    scores = [scorer.read_prompt(prompt, top)]
    for _, new, read in read_steps(scorer, prompt, answer, range(1, len(answer)), lambda _: top):
        _check(read, new)
        scores.append(read)
    return scores


def _margin(scores: Scores) -> float:
    best, second = list(scores.logprobs.values())[:2]
    return round(best - second, DIGITS)


def _loss(reading: ReadAnswer, place: int, scores: Scores) -> float:
    return loss(reading.scored.margins[place], reading.likeliest[place], scores)


def _null_pass(
    answer: Answer, places: list[int], losses: list[float], width: int, first: int, skipped: int
) -> NullPass:
    return NullPass(
        task=answer.task,
        prompt_idx=answer.prompt_idx,
        prompt_sha=answer.prompt_sha,
        token_sha=answer.token_sha,
        width=width,
        first=first,
        skipped=skipped,
        places=places,
        losses=losses,
    )


def _check(scores: Scores, expected: int) -> None:
    if scores.evaluated != expected:
        raise EngineError(
            f"The engine evaluated {scores.evaluated} tokens where {expected} were new.",
            kind="protocol",
            fix="It does not keep the cache of a prefix, so nothing can be scored on it.",
        )
