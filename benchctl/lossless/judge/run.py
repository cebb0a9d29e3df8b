"""The analysis of a run with the verdicts of this room: what every caller of `analyse` gets.

Pure: reads no file beyond the run's own, and equal records give equal numbers. Two cases have rules of their own:

- Overlapping requests, and sampled answers beside greedy ones, are not judged by their answers. What a request shares a
  batch with changes how its numbers are rounded, and with it which of two near-equal tokens is chosen: on these engines
  two runs of the same concurrent requests without any speculation differ. A difference from the baseline then shows
  nothing about speculation, and equality is chance. Of sampled answers only the distribution can be compared. A request
  that failed, a record that is damaged and an answer that is empty or a loop are flaws all the same.
- Where arm and baseline are two servers that ran already, is a violation speculation's, or another difference's?
  benchctl knows how engines that it launches were started, and refuses arms that differ in more than speculation. Of
  two endpoints it knows what they report, which is little: `-fa off` or another KV type is in no answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from benchctl.analysis.analyse import Condition, analyse, conditions_of
from benchctl.analysis.answers import Answers, degeneration, find_consistency
from benchctl.analysis.cells import attestations, failed_cells, speculates
from benchctl.analysis.conditions.results import NotJudged
from benchctl.analysis.conditions.split import Group
from benchctl.analysis.conditions.sweep import where_not_judged
from benchctl.analysis.frame import Frame
from benchctl.analysis.losslessness import ArmAudit, ControlTest
from benchctl.analysis.results import Analysis, Comparison, Losslessness, LosslessVerdict, SelfConsistency
from benchctl.analysis.scope import by_process, find_scope
from benchctl.analysis.verdict import label_lossy
from benchctl.data.scores import TargetScores
from benchctl.data.store import RunData
from benchctl.lossless.judge.audit import NOT_SCORED, UNSCORED, audit_parts, audit_summary, power_sentence, stated_nats
from benchctl.lossless.judge.control import control_sentence, find_controls
from benchctl.lossless.judge.divergence import Evidence, changed_scores, find_evidence
from benchctl.lossless.judge.selection import Selection, select_answers
from benchctl.lossless.judge.verdicts import find_losslessness, greedy, plainly_equal
from benchctl.words import sweep as sweep_words

VOUCHED = "only_speculation_differs"
"""The key of `engine` by which a user vouches for it."""
CONTROL = "-control"
"""What follows an arm's name in that of its control: a server that was started as the arm's, without speculation."""
_OWN = ("speculative", "speculation", "/metrics", "draft")
"""Words of what a server reports that differ because it speculates."""


def analyse_run(run: RunData, *, baseline: str | None = None) -> Analysis:
    """Analyse a run against its baseline, or the named arm. Raises UsageError when no arm has that name."""
    return analyse(run, judge, baseline=baseline)


def judge(conditions: Sequence[Condition]) -> dict[str, Losslessness]:
    """Return the verdict on every compared arm, from its answers and what was scored and is kept with the run."""
    return _judge(conditions, _compared_of(conditions))


def _judge(
    conditions: Sequence[Condition],
    names: Sequence[str],
    *,
    reason: str = UNSCORED,
    explained: tuple[Condition, Evidence] | None = None,
) -> dict[str, Losslessness]:
    """Judge the named arms.

    `reason`: why what is not scored was not; `explained`: what was scored of a condition and its part, in place of what
    is stored.
    """
    alone = any(condition.group.judged for condition in conditions)
    part, known = (explained[0].group.run.part, explained[1].scores) if explained else (None, None)
    scored = [
        (known if explained and run.part == part else scores_of(run), select_answers(own, names))
        for run, own in _by_part(conditions)
    ]
    if reason == UNSCORED:
        reason = next(filter(None, (changed_scores(run) for run, _ in _by_part(conditions))), reason)
    audits = audit_parts(scored, reason=reason, nats=stated_nats(conditions[0].group.run.manifest))
    by_part = {run.part: own for (run, _), (own, _) in zip(_by_part(conditions), scored, strict=True)}
    processes = by_process(record for condition in conditions for record in condition.group.run.records)
    controls = find_controls(conditions, names, by_part, audits)
    found = {}
    for condition in conditions:
        frame = condition.frame
        if explained is not None and explained[0] is condition:
            evidence = explained[1]
        else:
            evidence = find_evidence(condition.group.run, frame.arms[frame.baseline])
        unscored = None if reason in (UNSCORED, NOT_SCORED) else reason
        evidence = replace(evidence, audits=audits, controls=controls, unscored=unscored)
        for arm in condition.compared:
            if frame.arms[arm] in names:
                then = condition.of(arm)
                assessed, scope = _assess(then, arm, evidence, alone=alone), find_scope(then.frame, arm, processes)
                found[frame.arms[arm]] = assessed.model_copy(update={"scope": scope})
    return found


def _compared_of(conditions: Sequence[Condition]) -> list[str]:
    return [condition.frame.arms[arm] for condition in conditions for arm in condition.compared]


def _by_part(conditions: Sequence[Condition]) -> list[tuple[RunData, list[tuple[Group, Frame]]]]:
    """Return the conditions of every part of a run, with what was scored of it."""
    found: dict[str | None, list[tuple[Group, Frame]]] = {}
    for condition in conditions:
        found.setdefault(condition.group.run.part, []).append((condition.group, condition.frame))
    return [(own[0][0].run, own) for own in found.values()]


def _assess(condition: Condition, arm: int, evidence: Evidence, *, alone: bool) -> Losslessness:
    group, frame, answers = condition.group, condition.frame, condition.answers
    if not group.judged:
        audit = evidence.audits.get(frame.arms[arm])
        found = find_not_judged(group, frame, answers, arm, judged_elsewhere=alone, audit=audit)
    else:
        found = find_losslessness(frame, answers, arm, evidence=evidence, lost_lines=_lost_lines(group.run))
    found = _controlled(found, evidence.controls.get(frame.arms[arm]))
    found = attribute(found, frame, answers)
    if group.run.integrity.reason is not None and found.verdict != "not judged":
        found = found.model_copy(update={"verdict": "undetermined", "reason": group.run.integrity.reason})
    return label_lossy(found, frame)


def _controlled(found: Losslessness, test: ControlTest | None) -> Losslessness:
    """Return the verdict with the test against a control, which makes a violation of what scores left undetermined."""
    if test is None or found.verdict not in ("undetermined", "not judged") or not test.outside:
        return found
    verdict = "violation" if test.violates else found.verdict
    if verdict == "not judged":
        return found.model_copy(update={"control": test})
    return found.model_copy(
        update={"verdict": verdict, "control": test, "reason": f"{control_sentence(test)} {found.reason}"}
    )


def scores_of(run: RunData) -> TargetScores | None:
    """Return the run's stored scores where they are of the run's own engine and model."""
    return run.scores if run.scores and run.manifest and run.scores.of(run.manifest) else None


def _recipe_arms(frame: Frame) -> dict[str, str]:
    """The recipe's name of each arm; an arm that the manifest does not know has its own."""
    known = frame.manifest.compared() if frame.manifest else {}
    return {name: known[name].of if name in known else name for name in frame.arms}


def _lost_lines(run: RunData) -> int:
    """Unreadable lines that may hide a record: without a manifest nothing else shows that it is missing."""
    return 0 if run.manifest else len(run.damaged)


def find_not_judged(
    group: Group,
    frame: Frame,
    answers: Answers,
    arm: int,
    *,
    judged_elsewhere: bool,
    audit: ArmAudit | None = None,
) -> Losslessness:
    """Return the verdict on an arm of a condition where equal and different answers show nothing.

    `judged_elsewhere`: whether the run has a condition where they do. `audit`: of overlapping requests, what scoring
    the arm's own answers on the target alone found; that needs no equality with the baseline.
    """
    if audit is not None and (audit.lacking is None or audit.answers):
        return _audited(frame, answers, arm, audit)
    why = sweep_words.OVERLAPPING if group.overlapping else sweep_words.SAMPLED
    flaws = [sentence for kind in _flaws(frame, answers, arm) for sentence in kind]
    if not judged_elsewhere:
        reason = f"{why}, and nothing was measured one request at a time."
    elif flaws:
        reason = f"{why}, so that answers are not compared here."
    else:
        place = "one request at a time was measured" if group.overlapping else "they are greedy"
        reason = f"{why}; whether the arm is lossless is assessed where {place}."
    return Losslessness(
        arm=frame.arms[arm],
        verdict="not judged" if judged_elsewhere and not flaws else "undetermined",
        reason=" ".join([reason, *flaws]),
        counts={},
        comparisons=[],
    )


def _audited(frame: Frame, answers: Answers, arm: int, audit: ArmAudit) -> Losslessness:
    """Return the verdict on an arm of overlapping requests by its audit, whose noise is that of shared batches."""
    unfit, degenerate = _flaws(frame, answers, arm)
    tested = audit.lacking is None and not audit.violates
    unclear = unfit or not (tested and audit.shows)
    verdict: LosslessVerdict = "undetermined" if unclear else "consistent with the target"
    return Losslessness(
        arm=frame.arms[arm],
        verdict="violation" if audit.violates else verdict,
        reason=" ".join([*([power_sentence(audit)] if tested else []), audit_summary(audit), *unfit, *degenerate]),
        counts={},
        comparisons=[],
        audit=audit,
    )


def _flaws(frame: Frame, answers: Answers, arm: int) -> tuple[list[str], list[str]]:
    """Return what is flawed, at most a sentence each: answers of the arm or the baseline that are missing or damaged,
    and the arm's degenerate ones where the baseline's is not, which scores judge as any other."""
    unfit, degenerate = [], []
    for prompt, (task, index) in enumerate(frame.prompts):
        for block, number in enumerate(frame.blocks):
            ours, theirs = (int(frame.row_at[of, block, prompt]) for of in (arm, frame.baseline))
            place = f"block {number + 1}, {task}/{index}"
            wrong = [
                f"{place}: {whose} {answers.flaw[row]}"
                for row, whose in ((theirs, "the baseline's"), (ours, "the arm's"))
                if answers.flaw[row] is not None
            ]
            unfit += wrong
            if wrong or answers.plain[ours]:
                continue
            broken = degeneration(frame.records[ours])
            if broken and not degeneration(frame.records[theirs]):
                degenerate.append(f"{place}: it {broken}")
    return (
        [f"{_answers(len(unfit))} missing, failed or damaged ({unfit[0]})."] if unfit else [],
        [f"{_answers(len(degenerate))} degenerate where the baseline's is sound ({degenerate[0]})."]
        if degenerate
        else [],
    )


def _answers(count: int) -> str:
    return "1 answer is" if count == 1 else f"{count} answers are"


def attribute(found: Losslessness, frame: Frame, answers: Answers) -> Losslessness:
    """Return the verdict: of two servers a violation only where speculation alone differs, else undetermined."""
    if found.verdict != "violation" or not _two_servers(frame, found.arm):
        return found
    if _vouched(frame):
        said = f"That speculation alone differs between the servers is taken from engine.{VOUCHED}. {found.reason}"
        return found.model_copy(update={"reason": said})
    control = _control(frame, found.arm)
    if control is not None and plainly_equal(frame, answers, control).all():
        said = f"Without speculation its server gives the target's answers ({frame.arms[control]}). {found.reason}"
        return found.model_copy(update={"reason": said})
    comparisons = [_unattributed(comparison) for comparison in found.comparisons]
    counts = dict(sorted(Counter(comparison.outcome for comparison in comparisons).items()))
    reason = f"{_cause(frame, found.arm, control)} {found.reason}"
    update = {"verdict": "undetermined", "reason": reason, "comparisons": comparisons, "counts": counts}
    return found.model_copy(update=update)


def _cause(frame: Frame, arm: str, control: int | None) -> str:
    """Return what may make the arm differ, and how to find out which it is."""
    reported = _reported(frame, arm)
    if not speculates(frame, frame.arms.index(arm)):
        return f"It differs, and does not speculate: the servers differ in something else{reported}."
    told = (
        f"To tell them apart measure a server that is started as the arm's without speculation, as arm {arm}{CONTROL}, "
    )
    told += f"or vouch that speculation alone differs: engine.{VOUCHED}: true."
    if control is not None:
        told = (
            f"Its server differs without speculation, too ({frame.arms[control]}); start the baseline's as the arm's."
        )
    return f"It differs: speculation, or another difference between the servers{reported}. {told}"


def _two_servers(frame: Frame, arm: str) -> bool:
    urls = {planned.name: planned.url for planned in frame.manifest.arms} if frame.manifest else {}
    own = urls.get(arm)
    return own is not None and own != urls.get(frame.arms[frame.baseline])


def _vouched(frame: Frame) -> bool:
    engine = frame.manifest.recipe.get("engine") if frame.manifest else None
    return isinstance(engine, dict) and engine.get(VOUCHED) is True


def _control(frame: Frame, arm: str) -> int | None:
    """Return the arm whose server is as this arm's without speculation, by its name; `None` where there is none."""
    name = f"{arm}{CONTROL}"
    number = frame.arms.index(name) if name in frame.arms else None
    return None if number is None or speculates(frame, number) or not _two_servers(frame, name) else number


def _reported(frame: Frame, arm: str) -> str:
    """Return what the two report unlike each other, as a clause; empty where that is nothing."""
    ours, theirs = (_facts(frame, name) for name in (arm, frame.arms[frame.baseline]))
    unlike = [(line, other) for page, line in ours.items() if (other := theirs.get(page, line)) != line]
    return f" (it reports {unlike[0][0]}; the baseline's {unlike[0][1]})" if unlike else ""


def _facts(frame: Frame, arm: str) -> dict[str, str]:
    """Return what an arm's server reported of itself, by page."""
    lines = [line for found in attestations(frame, arm) for line in found.evidence if line.startswith("GET ")]
    plain = [line for line in lines if not any(word in line for word in _OWN)]
    return {line.partition(":")[0]: line for line in plain}


def _unattributed(comparison: Comparison) -> Comparison:
    if comparison.outcome != "violation":
        return comparison
    return comparison.model_copy(update={"outcome": "differs"})


class OutputComparison:
    """Every arm's answers beside the baseline's, laid out once; judged again when more is known of the divergences."""

    def __init__(self, run: RunData, *, baseline: str | None = None, arms: list[str] | None = None) -> None:
        """`arms` limits which are assessed: by name, or all of a recipe's arm. Raises UsageError when no arm is called
        `baseline`."""
        self._conditions = conditions_of(run, baseline)
        self.frames = [condition.frame for condition in self._conditions]
        self._explained = next(
            (own for own in self._conditions if own.group.judged and greedy(own.frame)), self._conditions[0]
        )
        self.frame: Frame = self._explained.frame
        """Of the condition whose divergences scoring can explain: greedy, one request at a time."""
        self.stored: Evidence = find_evidence(self._explained.group.run, self.frame.arms[self.frame.baseline])
        """What was scored and is kept with the run."""
        self._of = {name: of for frame in self.frames for name, of in _recipe_arms(frame).items()}
        self._chosen = [name for name in self.arms if not arms or {name, self._of[name]} & set(arms)]
        name = self.frame.arms[self.frame.baseline]
        self.baseline: str = name if len(self.frames) == 1 else self._of[name]
        """What every arm is compared with: an arm, or the recipe's name of it, which each condition has an arm of."""

    @property
    def parts(self) -> list[tuple[Group, Frame]]:
        """Every condition with its records."""
        return [(condition.group, condition.frame) for condition in self._conditions]

    @property
    def arms(self) -> list[str]:
        """Every arm that can be assessed."""
        return _compared_of(self._conditions)

    @property
    def names(self) -> set[str]:
        """What `arms` accepts: those, and the recipe's arms that they are under a condition."""
        return {name for arm in self.arms for name in (arm, self._of[arm])}

    @property
    def not_judged(self) -> NotJudged | None:
        """Where losslessness is not assessed; `None` where it is everywhere."""
        return where_not_judged([condition.group for condition in self._conditions])

    @property
    def failed_cells(self) -> list[str]:
        """`block 2, spec_d4: reason` of every cell that failed or did not run what the recipe requests."""
        return [f"{name}: {reason}" for frame in self.frames for name, reason, _ in failed_cells(frame)]

    @property
    def selection(self) -> Selection:
        """The answers that an audit scores."""
        return select_answers(self.parts, self._chosen)

    def verdicts(self, evidence: Evidence | None = None, *, reason: str = UNSCORED) -> list[Losslessness]:
        """Assess every arm. `evidence`: what was scored, in place of what is stored; `reason`: why what is not scored
        was not."""
        explained = (self._explained, evidence or self.stored)
        return list(_judge(self._conditions, self._chosen, reason=reason, explained=explained).values())

    def consistency(self) -> list[SelfConsistency]:
        """Whether each arm of the run gives the same answers in every block."""
        return [
            find_consistency(condition.frame, condition.answers, arm)
            for condition in self._conditions
            for arm in range(len(condition.frame.arms))
        ]
