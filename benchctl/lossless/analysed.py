"""The analysis of a run with the verdicts of this room: what every caller of `analyse` gets.

Pure: reads no file beyond the run's own, and equal records give equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchctl.analysis.analyse import Condition, analyse, conditions_of
from benchctl.analysis.answers import find_consistency
from benchctl.analysis.cells import failed_cells
from benchctl.analysis.conditions.split import Group
from benchctl.analysis.conditions.sweep import where_not_judged
from benchctl.analysis.frame import Frame
from benchctl.analysis.results import Analysis, Losslessness, SelfConsistency
from benchctl.analysis.verdict import label_lossy
from benchctl.data.audits import Audit
from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData
from benchctl.lossless.conclude import UNSCORED, audit_parts
from benchctl.lossless.explain import Evidence
from benchctl.lossless.not_judged import find_not_judged
from benchctl.lossless.prefixes import find_evidence
from benchctl.lossless.selection import Selection, select_answers
from benchctl.lossless.two_servers import attribute
from benchctl.lossless.verdicts import find_losslessness, greedy
from benchctl.recipes.schema import STATED_NATS


def analyse_run(run: RunData, *, baseline: str | None = None) -> Analysis:
    """Analyse a run against its baseline, or the named one. Raises UsageError when no arm has that name."""
    return analyse(run, judge, baseline=baseline)


def judge(conditions: Sequence[Condition]) -> dict[str, Losslessness]:
    """Return the verdict on every compared arm, from its answers and what was scored and is kept with the run."""
    return _judge(conditions, _compared_of(conditions))


def _judge(
    conditions: Sequence[Condition],
    names: Sequence[str],
    *,
    audit: Audit | None = None,
    reason: str = UNSCORED,
    explained: tuple[Condition, Evidence] | None = None,
) -> dict[str, Losslessness]:
    """Judge the named arms.

    `audit`: in place of the stored ones; `reason`: why what is not scored was not; `explained`: what was replayed of a
    condition, in place of what is stored.
    """
    alone = any(condition.group.judged for condition in conditions)
    scored = [(audit or audit_of(run), select_answers(own, names)) for run, own in _by_part(conditions)]
    audits = audit_parts(scored, reason=reason, nats=stated_nats(conditions[0].group.run.manifest))
    found = {}
    for condition in conditions:
        frame = condition.frame
        if explained is not None and explained[0] is condition:
            evidence = explained[1]
        else:
            evidence = find_evidence(condition.group.run, frame.arms[frame.baseline])
        evidence = replace(evidence, audits=audits)
        for arm in condition.compared:
            if frame.arms[arm] in names:
                found[frame.arms[arm]] = _assess(condition.of(arm), arm, evidence, alone=alone)
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
    found = attribute(found, frame, answers)
    if group.run.integrity.reason is not None and found.verdict != "not judged":
        found = found.model_copy(update={"verdict": "undetermined", "reason": group.run.integrity.reason})
    return label_lossy(found, frame)


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
        """Of the condition whose divergences a replay can explain: greedy, one request at a time."""
        self.stored: Evidence = find_evidence(self._explained.group.run, self.frame.arms[self.frame.baseline])
        """What was replayed and is kept with the run."""
        self.audit: Audit | None = audit_of(run)
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
    def unjudged(self) -> str | None:
        """Where losslessness is not assessed, and why; `None` where it is everywhere."""
        return where_not_judged([condition.group for condition in self._conditions])

    @property
    def failed_cells(self) -> list[str]:
        """`block 2, spec_d4: reason` of every cell that failed or did not run what the recipe requests."""
        return [f"{name}: {reason}" for frame in self.frames for name, reason, _ in failed_cells(frame)]

    @property
    def selection(self) -> Selection:
        """The answers that an audit scores."""
        return select_answers(self.parts, self._chosen)

    def verdicts(
        self, evidence: Evidence | None = None, *, audit: Audit | None = None, reason: str = UNSCORED
    ) -> list[Losslessness]:
        """Assess every arm. `evidence` and `audit`: what was replayed and scored, in place of what is stored; `reason`:
        why what is not scored was not."""
        explained = (self._explained, evidence or self.stored)
        return list(_judge(self._conditions, self._chosen, audit=audit, reason=reason, explained=explained).values())

    def consistency(self) -> list[SelfConsistency]:
        """Whether each arm of the run gives the same answers in every block."""
        return [
            find_consistency(condition.frame, condition.answers, arm)
            for condition in self._conditions
            for arm in range(len(condition.frame.arms))
        ]


def audit_of(run: RunData) -> Audit | None:
    """Return the run's stored audit where it is of the run's own engine and model."""
    return run.audit if run.audit and run.manifest and run.audit.of(run.manifest) else None


def _recipe_arms(frame: Frame) -> dict[str, str]:
    """The recipe's name of each arm; an arm that the manifest does not know has its own."""
    known = frame.manifest.compared() if frame.manifest else {}
    return {name: known[name].of if name in known else name for name in frame.arms}


def stated_nats(manifest: Manifest | None) -> float:
    """Return within how many nats the engine of a run's stated power accepts the runner-up, by its recipe."""
    stated = ((manifest.recipe if manifest else {}).get("lossless") or {}).get("detect_nats")
    return stated if isinstance(stated, (int, float)) and stated > 0 else STATED_NATS


def _lost_lines(run: RunData) -> int:
    """Unreadable lines that may hide a record: without a manifest nothing else shows that it is missing."""
    return 0 if run.manifest else len(run.damaged)
