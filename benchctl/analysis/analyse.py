"""From a run to everything that was found in it. Pure: reads no file, and equal records give equal numbers."""

from __future__ import annotations

from benchctl.analysis.acceptance import find_acceptance
from benchctl.analysis.answers import Answers, find_answers, find_consistency
from benchctl.analysis.cells import failed_cells
from benchctl.analysis.cost import find_cost
from benchctl.analysis.counters import find_counters
from benchctl.analysis.frame import Frame, make_frame
from benchctl.analysis.lossless import find_losslessness
from benchctl.analysis.lossy import label_lossy
from benchctl.analysis.precision import find_stopping
from benchctl.analysis.replay.judge import Evidence
from benchctl.analysis.replay.wanted import find_evidence
from benchctl.analysis.results import Acceptance, Analysis, Cost, Losslessness, SelfConsistency, SpeedUp, Verdict
from benchctl.analysis.speedup import find_speedups, find_throughput
from benchctl.analysis.verdict import find_verdict
from benchctl.analysis.warnings import find_warnings
from benchctl.runs.store import RunData


def analyse(run: RunData, *, baseline: str | None = None) -> Analysis:
    """Analyse a run against its baseline, or the named one. Raises UsageError when no arm has that name."""
    frame = make_frame(run.records, run.manifest, baseline)
    answers = find_answers(frame)
    counters = find_counters(frame)
    consistency = [find_consistency(frame, answers, arm) for arm in range(len(frame.arms))]
    evidence = find_evidence(run, frame.arms[frame.baseline])
    warm_ups = [record for record in run.records if record.phase == "warmup"]
    throughput = [row for arm in range(len(frame.arms)) for row in find_throughput(frame, arm)]
    verdicts: list[Verdict] = []
    speedups: list[SpeedUp] = []
    acceptance: list[Acceptance] = []
    losslessness: list[Losslessness] = []
    costs: list[Cost] = []
    own_baseline = run.manifest.baseline if run.manifest else None
    for arm in _compared(frame):
        speedup, accepted = find_speedups(frame, arm), find_acceptance(frame, counters, arm)
        cost = find_cost(frame, counters, arm, speedup, accepted)
        lossless = find_losslessness(frame, answers, arm, evidence=evidence, lost_lines=_lost_lines(run))
        lossless = label_lossy(lossless, frame)
        verdicts.append(find_verdict(frame, speedup, accepted, lossless, cost))
        speedups += speedup
        acceptance += accepted
        losslessness.append(lossless)
        costs.append(cost)
    return Analysis(
        run=run.manifest.run if run.manifest else run.folder.name,
        recipe=run.manifest.recipe_name if run.manifest else run.folder.name,
        baseline=frame.arms[frame.baseline],
        arms=list(frame.arms),
        tasks=list(frame.tasks),
        blocks=len(frame.blocks),
        records=len(frame.records),
        failed_cells=[f"{name}: {reason}" for name, reason in failed_cells(frame)],
        verdicts=verdicts,
        speedups=speedups,
        acceptance=acceptance,
        throughput=throughput,
        losslessness=losslessness,
        consistency=consistency,
        costs=costs,
        warnings=find_warnings(frame, counters, answers, speedups, consistency, run.damaged, warm_ups),
        stopping=find_stopping(run.manifest, speedups) if baseline is None or own_baseline == baseline else None,
    )


class OutputComparison:
    """Every arm's answers beside the baseline's, laid out once; judged again when more is known of the forks."""

    def __init__(self, run: RunData, *, baseline: str | None = None, arms: list[str] | None = None) -> None:
        """`arms` limits which are judged. Raises UsageError when no arm is called `baseline`."""
        self.frame: Frame = make_frame(run.records, run.manifest, baseline)
        self.stored: Evidence = find_evidence(run, self.frame.arms[self.frame.baseline])
        """What was replayed and is kept with the run."""
        self._answers: Answers = find_answers(self.frame)
        self._arms = [arm for arm in _compared(self.frame) if not arms or self.frame.arms[arm] in arms]
        self._lost_lines = _lost_lines(run)

    def judge(self, evidence: Evidence | None = None) -> list[Losslessness]:
        """Judge every arm; `evidence` stands for what was replayed, in place of what is stored."""
        known = evidence or self.stored
        found = [
            find_losslessness(self.frame, self._answers, arm, evidence=known, lost_lines=self._lost_lines)
            for arm in self._arms
        ]
        return [label_lossy(one, self.frame) for one in found]

    def consistency(self) -> list[SelfConsistency]:
        """Whether each arm of the run gives the same answers in every block."""
        return [find_consistency(self.frame, self._answers, arm) for arm in range(len(self.frame.arms))]


def _compared(frame: Frame) -> list[int]:
    return [arm for arm in range(len(frame.arms)) if arm != frame.baseline]


def _lost_lines(run: RunData) -> int:
    """Unreadable lines that may hide a record: without a manifest nothing else tells that it is missing."""
    return 0 if run.manifest else len(run.damaged)
