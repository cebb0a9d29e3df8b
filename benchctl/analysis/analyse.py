"""From a run to everything that was found in it. Pure: reads no file, and equal records give equal numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from benchctl.analysis.acceptance import find_acceptance, find_counters
from benchctl.analysis.accuracy import find_accuracy
from benchctl.analysis.answer_length import find_answer_lengths
from benchctl.analysis.answers import Answers, find_answers, find_consistency
from benchctl.analysis.breakeven import breakeven_of_run
from benchctl.analysis.cells import failed_cells, find_resources
from benchctl.analysis.conditions.split import ConditionRun, split
from benchctl.analysis.conditions.sweep import find_sweep, join
from benchctl.analysis.cost import find_cost
from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.frame import Frame, make_frame
from benchctl.analysis.next_experiment import find_decision
from benchctl.analysis.output_results import Losslessness
from benchctl.analysis.precision import find_stopping
from benchctl.analysis.record_checks import check_disturbances
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_model import find_rounds
from benchctl.analysis.speed_results import Acceptance, Cost, SpeedUp
from benchctl.analysis.speedup import ArmSpeed, find_speeds, find_speedups, find_throughput
from benchctl.analysis.thinking import find_thinking
from benchctl.analysis.verdict import distrusted, find_verdict, select
from benchctl.analysis.warnings import find_warnings
from benchctl.data.store import RunData
from benchctl.recipes.groups import ComparedArm, by_label


@dataclass(frozen=True)
class Condition:
    """The records of a condition of a run, laid out for comparing answers."""

    group: ConditionRun
    frame: Frame
    answers: Answers

    @classmethod
    def of_group(cls, group: ConditionRun) -> Condition:
        """Lay out the records of a condition. Raises UsageError when no arm is called as its baseline."""
        run = group.run
        frame = make_frame(run.records, run.manifest, group.baseline, pooled=run.pooled)
        return cls(group, frame, find_answers(frame))

    @property
    def compared(self) -> list[int]:
        """The arms that are compared with the baseline."""
        return self.frame.compared

    def of(self, arm: int) -> Condition:
        """Return the condition as far as an arm was measured: in an `auto` run it may have ended before others."""
        frame = self.frame.until(self.frame.blocks_of(arm))
        return self if frame is self.frame else replace(self, frame=frame, answers=find_answers(frame))


class Judge(Protocol):
    """Says how far every arm's output is the target's own: the verdict, its divergences, audit and noise."""

    def __call__(self, conditions: Sequence[Condition]) -> Mapping[str, Losslessness]:
        """Return the verdict on every compared arm of all conditions, by its name."""


def conditions_of(run: RunData, baseline: str | None = None) -> list[Condition]:
    """Return a run's conditions. Raises UsageError when no arm is called `baseline`."""
    return [Condition.of_group(group) for group in split(run, baseline)]


def analyse(run: RunData, judge: Judge, *, baseline: str | None = None) -> Analysis:
    """Analyse a run against its baseline, or the named arm. Raises UsageError when no arm has that name.

    Where a run varies concurrency, rate or temperature, every arm is compared with the baseline of its own condition.
    """
    conditions = conditions_of(run, baseline)
    groups = [condition.group for condition in conditions]
    frames = [condition.frame for condition in conditions]
    speeds = find_speeds(groups, frames)
    lossless = judge(conditions)
    compared = _compared_arms(run, frames, baseline)
    divergences = {
        arm: {(row.task, row.prompt_idx): row.divergence for row in verdict.comparisons if row.divergence is not None}
        for arm, verdict in lossless.items()
    }
    parts = [_analyse(condition, compared, speeds, lossless) for condition in conditions]
    analysis, manifest = parts[0], run.manifest
    if manifest is not None and groups[0].key is not None:
        verdicts = [verdict for part in parts for verdict in part.verdicts]
        sweep = find_sweep(manifest, groups, frames, verdicts)
        analysis = join(parts, sweep, check_disturbances(replace(frames[0], manifest=manifest)))
    names = {name: row.of for name, row in manifest.compared().items()} if manifest else {}
    own_baseline = baseline is None or manifest is None or names.get(baseline, baseline) == names.get(manifest.baseline)
    analysis = analysis.model_copy(
        update={
            "stopping": find_stopping(manifest, [speed.decides for speed in speeds.values()]) if own_baseline else None,
            "accuracy": find_accuracy(run, compared),
            "left_out": list(run.left_out) or None,
            "thinking": [row for frame in frames for row in find_thinking(frame, divergences)] or None,
            "breakeven": None if run.integrity.damage else breakeven_of_run(analysis, manifest),
        }
    )
    return analysis.model_copy(update={"decision": find_decision(analysis, run)})


def _compared_arms(run: RunData, frames: Sequence[Frame], baseline: str | None) -> dict[str, ComparedArm]:
    """Return what each arm is compared with, those included that only the records name."""
    bare = [row for frame in frames for row in by_label(frame.arms, frame.arms[frame.baseline]).items()]
    return dict(bare) | (run.manifest.compared(baseline) if run.manifest else {})


def _analyse(
    condition: Condition,
    compared: dict[str, ComparedArm],
    speeds: Mapping[str, ArmSpeed],
    lossless_of: Mapping[str, Losslessness],
) -> Analysis:
    """Analyse the arms of a condition; `compared`, `speeds` and `lossless_of` are of the whole run."""
    run, frame, answers = condition.group.run, condition.frame, condition.answers
    counters = find_counters(frame)
    consistency = [find_consistency(frame, answers, arm) for arm in range(len(frame.arms))]
    warm_ups = [record for record in run.records if record.phase == "warmup"]
    throughput = [row for arm in range(len(frame.arms)) for row in find_throughput(frame, arm)]
    verdicts: list[Verdict] = []
    speedups: list[SpeedUp] = []
    acceptance: list[Acceptance] = []
    losslessness: list[Losslessness] = []
    costs: list[Cost] = []
    for arm in condition.compared:
        speed, then = speeds[frame.arms[arm]], condition.of(arm)
        speedup = speed.rows
        counted = counters if then is condition else find_counters(then.frame)
        accepted = find_acceptance(then.frame, counted, arm)
        cost = find_cost(then.frame, counted, arm, speedup, accepted)
        lossless = lossless_of[frame.arms[arm]]
        verdict = find_verdict(then.frame, speedup, accepted, lossless, cost, speed.whole)
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
        answer_lengths=[
            row
            for arm in ([] if condition.group.overlapping else condition.compared)
            for row in find_answer_lengths(frame, arm, len(speeds))
        ],
        rounds=find_rounds(frame, counters, speedups, acceptance, costs, run.costs),
        resources=find_resources(frame),
        warnings=find_warnings(frame, counters, answers, speedups, consistency, run.damaged, warm_ups, run.integrity),
    )
