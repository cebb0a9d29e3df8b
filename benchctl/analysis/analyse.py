"""From a run to everything that was found in it. Pure: reads no file, and equal records give equal numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchctl.analysis.acceptance import find_acceptance
from benchctl.analysis.answers import Answers, find_answers, find_consistency
from benchctl.analysis.audit.conclude import UNSCORED, audit_parts
from benchctl.analysis.audit.results import ArmAudit
from benchctl.analysis.audit.selection import Selection, select_answers
from benchctl.analysis.breakeven import find_breakeven, measured_arms
from benchctl.analysis.cells import failed_cells
from benchctl.analysis.conditions.not_judged import find_not_judged, where_not_judged
from benchctl.analysis.conditions.split import Group, split
from benchctl.analysis.conditions.sweep import find_sweep, join
from benchctl.analysis.cost import find_cost
from benchctl.analysis.counters import find_counters
from benchctl.analysis.disturbances import check_disturbances
from benchctl.analysis.frame import Frame, make_frame
from benchctl.analysis.lossless import find_losslessness, greedy
from benchctl.analysis.lossy import label_lossy
from benchctl.analysis.next_experiment import find_decision
from benchctl.analysis.precision import find_stopping
from benchctl.analysis.replay.explain import Evidence
from benchctl.analysis.replay.prefixes import find_evidence
from benchctl.analysis.resources import find_resources
from benchctl.analysis.results import (
    Acceptance,
    Analysis,
    Cost,
    Losslessness,
    SelfConsistency,
    SpeedUp,
    Verdict,
)
from benchctl.analysis.rounds.model import find_rounds
from benchctl.analysis.speeds import Speed, compared_arms, find_speeds
from benchctl.analysis.speedup import (
    find_speedups,
    find_throughput,
)
from benchctl.analysis.verdict import distrusted, find_verdict, select
from benchctl.analysis.warnings import find_warnings
from benchctl.data.audits import Audit
from benchctl.data.store import RunData
from benchctl.recipes.groups import ComparedArm, by_label


def analyse(run: RunData, *, baseline: str | None = None) -> Analysis:
    """Analyse a run against its baseline, or the named one. Raises UsageError when no arm has that name.

    Where a run varies concurrency, rate or temperature, every arm is compared with the baseline of its own condition.
    """
    groups = split(run, baseline)
    frames = [make_frame(group.run.records, group.run.manifest, group.baseline) for group in groups]
    alone = any(group.judged for group in groups)
    speeds = find_speeds(groups, frames)
    audits = audit_parts([(audit_of(part), select_answers(own)) for part, own in _by_part(groups, frames)])
    compared = _compared_arms(run, frames, baseline)
    parts = [
        _analyse(group, frame, compared, speeds, audits, alone=alone)
        for group, frame in zip(groups, frames, strict=True)
    ]
    found, manifest = parts[0], run.manifest
    if manifest is not None and groups[0].key is not None:
        verdicts = [verdict for part in parts for verdict in part.verdicts]
        sweep = find_sweep(manifest, groups, frames, verdicts)
        found = join(parts, sweep, check_disturbances(replace(frames[0], manifest=manifest)))
    of = {name: row.of for name, row in manifest.compared().items()} if manifest else {}
    own = baseline is None or manifest is None or of.get(baseline, baseline) == of.get(manifest.baseline)
    levels = found.sweep.levels if found.sweep else []
    found = found.model_copy(
        update={
            "stopping": find_stopping(manifest, found.speedups, levels) if own else None,
            "breakeven": None if run.integrity.damage else find_breakeven(measured_arms(found, manifest)),
        }
    )
    return found.model_copy(update={"decision": find_decision(found, run)})


def _compared_arms(run: RunData, frames: Sequence[Frame], baseline: str | None) -> dict[str, ComparedArm]:
    """Return what each arm is compared with, those included that only the records name."""
    bare = [row for frame in frames for row in by_label(frame.arms, frame.arms[frame.baseline]).items()]
    return dict(bare) | (run.manifest.compared(baseline) if run.manifest else {})


def _by_part(groups: Sequence[Group], frames: Sequence[Frame]) -> list[tuple[RunData, list[tuple[Group, Frame]]]]:
    """Return the conditions of every part of a run, with what was scored of it."""
    found: dict[str | None, list[tuple[Group, Frame]]] = {}
    for group, frame in zip(groups, frames, strict=True):
        found.setdefault(group.run.part, []).append((group, frame))
    return [(own[0][0].run, own) for own in found.values()]


def _analyse(
    group: Group,
    frame: Frame,
    compared: dict[str, ComparedArm],
    speeds: Mapping[str, Speed],
    audits: Mapping[str, ArmAudit],
    *,
    alone: bool,
) -> Analysis:
    """Analyse the arms of one condition.

    `compared`: of the whole run; `speeds`: of `_speeds`; `alone`: whether losslessness is assessed in any condition.
    """
    run = group.run
    answers = find_answers(frame)
    counters = find_counters(frame)
    consistency = [find_consistency(frame, answers, arm) for arm in range(len(frame.arms))]
    evidence = replace(find_evidence(run, frame.arms[frame.baseline]), audits=audits)
    warm_ups = [record for record in run.records if record.phase == "warmup"]
    throughput = [row for arm in range(len(frame.arms)) for row in find_throughput(frame, arm)]
    verdicts: list[Verdict] = []
    speedups: list[SpeedUp] = []
    acceptance: list[Acceptance] = []
    losslessness: list[Losslessness] = []
    costs: list[Cost] = []
    for arm in compared_arms(frame):
        speed, then = speeds[frame.arms[arm]], frame.until(frame.blocks_of(arm))
        speedup = speed.rows
        counted, said = (counters, answers) if then is frame else (find_counters(then), find_answers(then))
        accepted = find_acceptance(then, counted, arm)
        cost = find_cost(then, counted, arm, speedup, accepted)
        lossless = _assess(group, then, said, arm, evidence, alone=alone)
        verdict = find_verdict(then, speedup, accepted, lossless, cost, speed.claimed, speed.whole)
        verdicts.append(verdict if run.integrity.reason is None else distrusted(verdict, run.integrity.reason))
        speedups += speedup
        acceptance += accepted
        losslessness.append(lossless)
        costs.append(cost)
    return Analysis(
        run=run.name,
        recipe=run.manifest.recipe_name if run.manifest else run.folder.name,
        baseline=frame.arms[frame.baseline],
        arms=list(frame.arms),
        compared=compared,
        tasks=list(frame.tasks),
        blocks=len(frame.blocks),
        records=len(frame.records),
        failed_cells=[f"{name}: {reason}" for name, reason, _ in failed_cells(frame)],
        verdicts=select(verdicts),
        speedups=speedups,
        second_cells=[] if frame.again is None else find_speedups(replace(frame, again=None), frame.again),
        acceptance=acceptance,
        throughput=throughput,
        losslessness=losslessness,
        consistency=consistency,
        costs=costs,
        rounds=find_rounds(frame, counters, speedups, acceptance, costs, run.costs),
        resources=find_resources(frame),
        warnings=find_warnings(frame, counters, answers, speedups, consistency, run.damaged, warm_ups, run.integrity),
    )


def _assess(group: Group, frame: Frame, answers: Answers, arm: int, evidence: Evidence, *, alone: bool) -> Losslessness:
    if not group.judged:
        audit = evidence.audits.get(frame.arms[arm])
        found = find_not_judged(group, frame, answers, arm, judged_elsewhere=alone, audit=audit)
    else:
        found = find_losslessness(frame, answers, arm, evidence=evidence, lost_lines=_lost_lines(group.run))
    if group.run.integrity.reason is not None and found.verdict != "not judged":
        found = found.model_copy(update={"verdict": "undetermined", "reason": group.run.integrity.reason})
    return label_lossy(found, frame)


class OutputComparison:
    """Every arm's answers beside the baseline's, laid out once; assessed again when more is known of the forks."""

    def __init__(self, run: RunData, *, baseline: str | None = None, arms: list[str] | None = None) -> None:
        """`arms` limits which are assessed: by name, or all of a recipe's arm. Raises UsageError when no arm is called
        `baseline`."""
        self.groups = split(run, baseline)
        self.frames = [make_frame(group.run.records, group.run.manifest, group.baseline) for group in self.groups]
        self._answers = [find_answers(frame) for frame in self.frames]
        explained = next(
            (number for number, group in enumerate(self.groups) if group.judged and greedy(self.frames[number])),
            0,
        )
        self.frame: Frame = self.frames[explained]
        """Of the condition whose forks a replay can explain: greedy, one request at a time."""
        self.stored: Evidence = find_evidence(self.groups[explained].run, self.frame.arms[self.frame.baseline])
        """What was replayed and is kept with the run."""
        self.audit: Audit | None = audit_of(run)
        """What was scored and is kept with the run."""
        self._of = [_recipe_arms(frame) for frame in self.frames]
        self._arms = [
            [arm for arm in compared_arms(frame) if not arms or {frame.arms[arm], of[frame.arms[arm]]} & set(arms)]
            for frame, of in zip(self.frames, self._of, strict=True)
        ]
        name = self.frame.arms[self.frame.baseline]
        self.baseline: str = name if len(self.frames) == 1 else self._of[explained][name]
        """What every arm is compared with: an arm, or the recipe's name of it, which each condition has an arm of."""

    @property
    def parts(self) -> list[tuple[Group, Frame]]:
        """Every condition with its records."""
        return list(zip(self.groups, self.frames, strict=True))

    @property
    def arms(self) -> list[str]:
        """Every arm that can be assessed."""
        return [frame.arms[arm] for frame in self.frames for arm in compared_arms(frame)]

    @property
    def names(self) -> set[str]:
        """What `arms` accepts: those, and the recipe's arms that they are under a condition."""
        return {
            name
            for frame, of in zip(self.frames, self._of, strict=True)
            for arm in compared_arms(frame)
            for name in (frame.arms[arm], of[frame.arms[arm]])
        }

    @property
    def unjudged(self) -> str | None:
        """Where losslessness is not assessed, and why; `None` where it is everywhere."""
        return where_not_judged(self.groups)

    @property
    def failed_cells(self) -> list[str]:
        """`block 2, spec_d4: reason` of every cell that failed or did not run what the recipe requests."""
        return [f"{name}: {reason}" for frame in self.frames for name, reason, _ in failed_cells(frame)]

    @property
    def selection(self) -> Selection:
        """The answers that an audit scores."""
        return select_answers(self.parts, self._chosen)

    @property
    def _chosen(self) -> list[str]:
        return [frame.arms[arm] for frame, arms in zip(self.frames, self._arms, strict=True) for arm in arms]

    def verdicts(
        self, evidence: Evidence | None = None, *, audit: Audit | None = None, reason: str = UNSCORED
    ) -> list[Losslessness]:
        """Assess every arm. `evidence` and `audit`: what was replayed and scored, in place of what is stored; `reason`:
        why what is not scored was not."""
        alone = any(group.judged for group in self.groups)
        parts = _by_part(self.groups, self.frames)
        chosen = self._chosen
        audits = audit_parts(
            [(audit or audit_of(part), select_answers(own, chosen)) for part, own in parts], reason=reason
        )
        found = []
        for group, frame, answers, arms in zip(self.groups, self.frames, self._answers, self._arms, strict=True):
            stored = self.stored if frame is self.frame else find_evidence(group.run, frame.arms[frame.baseline])
            known = replace(evidence if evidence and frame is self.frame else stored, audits=audits)
            for arm in arms:
                then = frame.until(frame.blocks_of(arm))
                said = answers if then is frame else find_answers(then)
                found.append(_assess(group, then, said, arm, known, alone=alone))
        return found

    def consistency(self) -> list[SelfConsistency]:
        """Whether each arm of the run gives the same answers in every block."""
        return [
            find_consistency(frame, answers, arm)
            for frame, answers in zip(self.frames, self._answers, strict=True)
            for arm in range(len(frame.arms))
        ]


def audit_of(run: RunData) -> Audit | None:
    """Return the run's stored audit where it is of the run's own engine and model."""
    return run.audit if run.audit and run.manifest and run.audit.of(run.manifest) else None


def _recipe_arms(frame: Frame) -> dict[str, str]:
    """The recipe's name of each arm; an arm that the manifest does not know has its own."""
    known = frame.manifest.compared() if frame.manifest else {}
    return {name: known[name].of if name in known else name for name in frame.arms}


def _lost_lines(run: RunData) -> int:
    """Unreadable lines that may hide a record: without a manifest nothing else shows that it is missing."""
    return 0 if run.manifest else len(run.damaged)
