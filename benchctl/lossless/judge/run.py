"""The analysis of a run with the verdicts of this room: what every caller of `analyse` gets.

Pure: reads no file beyond the run's own, and equal records give equal numbers.

Overlapping requests, and sampled answers beside greedy ones, are not judged by their answers. What a request shares a
batch with changes how its numbers are rounded, and with it which of two near-equal tokens is chosen: on these engines
two runs of the same concurrent requests without any speculation differ. A difference from the baseline then shows
nothing about speculation, and equality is chance. Of sampled answers only the distribution can be compared. A request
that failed, a record that is damaged and an answer that is empty or a loop are flaws all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from benchctl.analysis.analyse import Condition, analyse, conditions_of
from benchctl.analysis.answers import Answers, degeneration, find_consistency
from benchctl.analysis.cells import failed_cells, identity_of
from benchctl.analysis.conditions.results import NotJudged
from benchctl.analysis.conditions.split import ConditionRun
from benchctl.analysis.conditions.sweep import where_not_judged
from benchctl.analysis.frame import Frame
from benchctl.analysis.losslessness import ArmAudit, ControlTest, Reason, Validity, because
from benchctl.analysis.output_results import Losslessness, LosslessVerdict, SelfConsistency
from benchctl.analysis.results import Analysis
from benchctl.analysis.scope import by_process, find_scope
from benchctl.data.pool import with_further
from benchctl.data.scores import TargetScores
from benchctl.data.store import RunData
from benchctl.lossless.judge.attribution import attribute
from benchctl.lossless.judge.audit import NOT_SCORED, NOT_VERIFIED, audit_parts, stated_nats
from benchctl.lossless.judge.control import find_controls
from benchctl.lossless.judge.divergence import Evidence, changed_scores, find_evidence
from benchctl.lossless.judge.replay import ArmSteps, JudgedReplay, judge_replays, select_steps
from benchctl.lossless.judge.selection import Selection, select_answers
from benchctl.lossless.judge.validity import find_validity, with_validity
from benchctl.lossless.judge.verdicts import greedy, judge_arm
from benchctl.lossless.judge.widths import width_groups
from benchctl.recipes.adapters import SYNTHETIC
from benchctl.words.lossless import worded


def analyse_run(run: RunData, *, baseline: str | None = None) -> Analysis:
    """Analyse a run against its baseline, or the named arm. Raises UsageError when no arm has that name."""
    return analyse(run, judge, baseline=baseline)


def judge(conditions: Sequence[Condition]) -> dict[str, Losslessness]:
    """Return the verdict on every compared arm, from its answers and what was scored and is kept with the run."""
    conditions = [_with_further(condition) for condition in conditions]
    return _judge(conditions, _compared_of(conditions))


def _with_further(condition: Condition) -> Condition:
    """Return a condition with what was asked of its arms after the run."""
    run = with_further(condition.group.run)
    same = run is condition.group.run
    return condition if same else Condition.of_group(replace(condition.group, run=run))


def _judge(
    conditions: Sequence[Condition],
    names: Sequence[str],
    *,
    reason: Reason = NOT_VERIFIED,
    scored: tuple[Condition, Evidence] | None = None,
) -> dict[str, Losslessness]:
    """Judge the named arms.

    `reason`: why what is not scored was not; `scored`: the evidence on a condition and its part, in place of what is
    stored.
    """
    any_judged = any(condition.group.judged for condition in conditions)
    parts = _by_part(conditions)
    scores = {run.part: scores_of(run) for run, _ in parts}
    if scored is not None:
        scores[scored[0].group.run.part] = scored[1].scores
    if reason.code in ("not-verified", "offline"):
        reason = next(filter(None, (changed_scores(run) for run, _ in parts)), reason)
    replays = _judge_replays(parts, scores, names)
    undecided = [name for name in names if name not in replays or not replays[name].summary.decides]
    selections = [(scores[run.part], select_answers(groups, undecided)) for run, groups in parts]
    first_run = conditions[0].group.run
    manifest = first_run.manifest
    times_asked = manifest.further.times if manifest and manifest.further else 0
    times_asked += max(0, len(first_run.names) - 1)  # a run that is joined to others is more evidence, as prompts are
    audits = audit_parts(selections, reason=reason, nats=stated_nats(manifest), times_asked=times_asked)
    processes = by_process(record for condition in conditions for record in condition.group.run.records)
    controls = find_controls(conditions, names, scores, audits, times_asked=times_asked)
    validities = find_validity([(condition.frame, condition.compared) for condition in conditions])
    verdicts = {}
    for condition in conditions:
        frame = condition.frame
        if scored is not None and scored[0] is condition:
            evidence = scored[1]
        else:
            evidence = find_evidence(condition.group.run, frame.arms[frame.baseline])
        unscored = None if reason in (NOT_VERIFIED, NOT_SCORED) else reason
        evidence = replace(evidence, audits=audits, replays=replays, controls=controls, unscored=unscored)
        for arm in condition.compared:
            if frame.arms[arm] in names:
                of_arm, validity = condition.of(arm), validities.get(frame.arms[arm])
                verdict = _judge_condition(of_arm, arm, evidence, validity, any_judged=any_judged)
                if verdict.verdict == "exact" and (widths := width_groups(frame, verdict)) is not None:
                    verdict = verdict.model_copy(update={"reasons": (*verdict.reasons, widths)})
                scope = find_scope(of_arm.frame, arm, processes)
                verdicts[frame.arms[arm]] = worded(verdict.model_copy(update={"scope": scope}))
    return verdicts


def _judge_replays(
    parts: Sequence[tuple[RunData, list[tuple[ConditionRun, Frame]]]],
    scores: Mapping[str | None, TargetScores | None],
    names: Sequence[str],
) -> dict[str, JudgedReplay]:
    """Return what was replayed of the named arms, by arm; nothing of a part of which nothing has tried to."""
    judged: dict[str, JudgedReplay] = {}
    for run, groups in parts:
        of_part = scores[run.part]
        if of_part is not None and of_part.replays is not None:
            for group, frame in groups:
                judged |= judge_replays(group, frame, of_part.replays, names)
    return judged


def _compared_of(conditions: Sequence[Condition]) -> list[str]:
    return [condition.frame.arms[arm] for condition in conditions for arm in condition.compared]


def _by_part(conditions: Sequence[Condition]) -> list[tuple[RunData, list[tuple[ConditionRun, Frame]]]]:
    """Return the conditions of every part of a run, with what was scored of it."""
    parts: dict[str | None, list[tuple[ConditionRun, Frame]]] = {}
    for condition in conditions:
        parts.setdefault(condition.group.run.part, []).append((condition.group, condition.frame))
    return [(groups[0][0].run, groups) for groups in parts.values()]


def _judge_condition(
    condition: Condition, arm: int, evidence: Evidence, validity: Validity | None, *, any_judged: bool
) -> Losslessness:
    group, frame, answers = condition.group, condition.frame, condition.answers
    name = frame.arms[arm]
    if group.judged:
        verdict = judge_arm(frame, answers, arm, evidence=evidence, lost_lines=_lost_lines(group.run))
    else:
        audit = evidence.audits.get(name)
        verdict = judge_by_scores(group, frame, answers, arm, judged_elsewhere=any_judged, audit=audit)
        replayed = evidence.replays.get(name)
        if replayed is not None and verdict.audit is not None:
            reasons = (*verdict.reasons, because("replay"))
            verdict = verdict.model_copy(update={"replay": replayed.summary, "reasons": reasons})
    verdict = with_validity(_controlled(verdict, evidence.controls.get(name)), validity)
    verdict = attribute(verdict, frame, answers)
    if group.run.integrity.reason is not None and verdict.verdict != "not judged":
        damaged = because("damaged-evidence", message=group.run.integrity.reason)
        verdict = verdict.model_copy(update={"verdict": "undetermined", "reasons": (damaged,)})
    return _label_lossy(verdict, frame)


def _controlled(verdict: Losslessness, test: ControlTest | None) -> Losslessness:
    """Return the verdict with the test against a control, which makes a violation of what scores left undetermined."""
    if test is None or verdict.verdict not in ("undetermined", "not judged") or not test.outside:
        return verdict
    word = "violation" if test.violates else verdict.verdict
    if word == "not judged":
        return verdict.model_copy(update={"control": test})
    return verdict.preceded(because("control"), verdict=word, control=test)


def _label_lossy(verdict: Losslessness, frame: Frame) -> Losslessness:
    """Return the verdict with the arm's settings that are lossy by design; with any, it is a violation."""
    identity = identity_of(frame.manifest, verdict.arm)
    settings = identity.lossy if identity else []
    if not settings:
        return verdict
    equal = verdict.verdict == "identical"
    lossy = because("lossy-by-design", settings=", ".join(settings), synthetic=SYNTHETIC in settings, equal=equal)
    return verdict.preceded(lossy, verdict="violation", lossy=settings)


def scores_of(run: RunData) -> TargetScores | None:
    """Return the run's stored scores where they are of the run's own engine and model."""
    return run.scores if run.scores and run.manifest and run.scores.of(run.manifest) else None


def _recipe_arms(frame: Frame) -> dict[str, str]:
    """The recipe's name of each arm; an arm that the manifest does not know has its own."""
    compared = frame.manifest.compared() if frame.manifest else {}
    return {name: compared[name].of if name in compared else name for name in frame.arms}


def _lost_lines(run: RunData) -> int:
    """Unreadable lines that may hide a record: without a manifest nothing else shows that it is missing."""
    return 0 if run.manifest else len(run.damaged)


def judge_by_scores(
    group: ConditionRun,
    frame: Frame,
    answers: Answers,
    arm: int,
    *,
    judged_elsewhere: bool,
    audit: ArmAudit | None = None,
) -> Losslessness:
    """Return the verdict on an arm of a condition where equal and different answers show nothing.

    `judged_elsewhere`: whether the run has a condition where they do. `audit`: of overlapping requests, what scoring
    the arm's own answers on the target alone showed; that needs no equality with the baseline.
    """
    unfit, degenerate = _flaws(frame, answers, arm)
    flaws = tuple(flaw for flaw in (unfit, degenerate) if flaw is not None)
    if audit is not None and (audit.lacking is None or audit.answers):
        tested = audit.lacking is None and not audit.violates
        consistent = tested and audit.shows and unfit is None
        verdict: LosslessVerdict = "consistent with the target" if consistent else "undetermined"
        verdict = "violation" if audit.violates else verdict
        reasons = (*((because("power"),) if tested else ()), because("audit"), *flaws)
    else:
        verdict, code, audit = "undetermined", "not-compared", None
        if not judged_elsewhere:
            code = "nothing-judged"
        elif not flaws:
            verdict, code = "not judged", "judged-elsewhere"
        reasons = (because(code, overlapping=group.overlapping), *flaws)
    return Losslessness(arm=frame.arms[arm], verdict=verdict, reasons=reasons, counts={}, comparisons=[], audit=audit)


def _flaws(frame: Frame, answers: Answers, arm: int) -> tuple[Reason | None, Reason | None]:
    """Return what is flawed: answers of the arm or the baseline that are missing or damaged, and the arm's degenerate
    ones where the baseline's is not, which scores judge as any other."""
    unfit, degenerate = [], []
    for prompt, (task, index) in enumerate(frame.prompts):
        for block, number in enumerate(frame.blocks):
            ours, theirs = (int(frame.row_at[side, block, prompt]) for side in (arm, frame.baseline))
            if frame.pooled and min(ours, theirs) < 0:
                continue
            cell = f"block {number + 1}, {task}/{index}"
            flaws = [
                f"{cell}: {side} {answers.flaw[row]}"
                for row, side in ((theirs, "the baseline's"), (ours, "the arm's"))
                if answers.flaw[row] is not None
            ]
            unfit += flaws
            if flaws or answers.plain[ours]:
                continue
            fault = degeneration(frame.records[ours])
            if fault and not degeneration(frame.records[theirs]):
                degenerate.append(f"{cell}: it {fault}")
    return (
        because("unfit-answers", count=len(unfit), first=unfit[0]) if unfit else None,
        because("degenerate-answers", count=len(degenerate), first=degenerate[0]) if degenerate else None,
    )


class OutputComparison:
    """Every arm's answers beside the baseline's, laid out once; judged again when more is known of the divergences."""

    def __init__(self, run: RunData, *, baseline: str | None = None, arms: list[str] | None = None) -> None:
        """`arms` limits which are judged: by name, or all of a recipe's arm. Raises UsageError when no arm is called
        `baseline`."""
        self._conditions = [_with_further(condition) for condition in conditions_of(run, baseline)]
        self.frames = [condition.frame for condition in self._conditions]
        judged = (part for part in self._conditions if part.group.judged and greedy(part.frame))
        self._scored_condition = next(judged, self._conditions[0])
        self.frame: Frame = self._scored_condition.frame
        """Of the condition whose divergences can be scored: greedy, one request at a time."""
        self.stored: Evidence = find_evidence(self._scored_condition.group.run, self.frame.arms[self.frame.baseline])
        """What was scored and is kept with the run."""
        self._recipe_arm = {
            name: recipe_arm for frame in self.frames for name, recipe_arm in _recipe_arms(frame).items()
        }
        self._chosen = [name for name in self.arms if not arms or {name, self._recipe_arm[name]} & set(arms)]
        name = self.frame.arms[self.frame.baseline]
        self.baseline: str = name if len(self.frames) == 1 else self._recipe_arm[name]
        """What every arm is compared with: an arm, or the recipe's name of it, which each condition has an arm of."""

    @property
    def parts(self) -> list[tuple[ConditionRun, Frame]]:
        """Every condition with its records."""
        return [(condition.group, condition.frame) for condition in self._conditions]

    @property
    def arms(self) -> list[str]:
        """Every arm that can be judged."""
        return _compared_of(self._conditions)

    @property
    def names(self) -> set[str]:
        """What `arms` accepts: those, and the recipe's arms that they are under a condition."""
        return {name for arm in self.arms for name in (arm, self._recipe_arm[arm])}

    @property
    def not_judged(self) -> NotJudged | None:
        """Where losslessness is not judged; `None` where it is everywhere."""
        return where_not_judged([condition.group for condition in self._conditions])

    @property
    def failed_cells(self) -> list[str]:
        """`block 2, spec_d4: reason` of every cell that failed or did not run what the recipe requests."""
        return [f"{name}: {reason}" for frame in self.frames for name, reason, _ in failed_cells(frame)]

    @property
    def steps(self) -> list[list[ArmSteps]]:
        """What can be replayed, by condition: the answers of its baseline, then those of each arm."""
        selected = [select_steps(group, frame, self._chosen) for group, frame in self.parts]
        return [steps for steps in selected if len(steps) > 1 and steps[0].lacks is None]

    def selection(self, verdicts: Iterable[Losslessness]) -> Selection:
        """Return the answers that an audit scores: of the arms that replay does not decide by these verdicts."""
        decided = {row.arm for row in verdicts if row.replay is not None and row.replay.decides}
        return select_answers(self.parts, [name for name in self._chosen if name not in decided])

    def verdicts(self, evidence: Evidence | None = None, *, reason: Reason = NOT_VERIFIED) -> list[Losslessness]:
        """Judge every arm. `evidence`: what was scored, in place of what is stored; `reason`: why what is not scored
        was not."""
        scored = (self._scored_condition, evidence or self.stored)
        return list(_judge(self._conditions, self._chosen, reason=reason, scored=scored).values())

    def consistency(self) -> list[SelfConsistency]:
        """Whether each arm of the run gives the same answers in every block."""
        return [
            find_consistency(condition.frame, condition.answers, arm)
            for condition in self._conditions
            for arm in range(len(condition.frame.arms))
        ]
