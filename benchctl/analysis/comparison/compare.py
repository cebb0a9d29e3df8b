"""Two settings of one workload side by side: what got faster or slower beyond noise, and whether the answers stayed.

A is the run before, B the one after; every ratio is B over A. Arms are matched by name. What changed of an arm is its
speed-up over its own run's baseline; what changed of the baseline, its decode rate. The blocks of two runs have nothing
in common, so each run's own spread between blocks counts, shared among its arms (`changes`); intervals hold together
over the arms. Prompts are the same and count as fixed.

Blocks do not show what changes from run to run. Where A was measured again after B, the distance between the runs of
one setting does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.analyse import Judge, analyse
from benchctl.analysis.answers import Answers, find_answers
from benchctl.analysis.comparison.changes import Quantity, doubt_of, find_quantities, speed_change
from benchctl.analysis.comparison.rates import InAllRuns, Times, in_all_runs, rate_times, speedup_times
from benchctl.analysis.comparison.results import ArmComparison, OwnVerdict, Ratio, RunComparison, RunFacts
from benchctl.analysis.comparison.workload import Outputs, compare_answers, find_changes, require_same_workload
from benchctl.analysis.frame import Frame, PromptKey, make_frame
from benchctl.analysis.results import ALL_TASKS, Analysis, Losslessness
from benchctl.analysis.statistics import level_for
from benchctl.data.store import RunData
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.recipes.groups import ComparedArm


@dataclass(frozen=True)
class _Side:
    data: RunData
    analysis: Analysis
    frame: Frame
    answers: Answers

    @property
    def overlapping(self) -> set[str]:
        """Arms whose requests shared the engine."""
        sweep = self.analysis.sweep
        return {row.arm for row in sweep.levels if row.overlapping} if sweep else set()


def compare_runs(
    a: RunData,
    b: RunData,
    *,
    judge: Judge,
    baseline: str | None = None,
    arms: Collection[str] | None = None,
    names: Sequence[str] = ("A", "B"),
    more_a: Sequence[RunData] = (),
    more_b: Sequence[RunData] = (),
) -> RunComparison:
    """Compare two runs of one workload; `arms` limits which arms. Raises UsageError where there is nothing to compare.

    `names` are what runs without a manifest are called. `more_a`, `more_b`: runs that repeat one of the two.
    """
    if a.folder.resolve() == b.folder.resolve() and a.records == b.records:
        raise UsageError("Both are the same run.", where=str(a.folder), fix="Name two runs, the earlier one first.")
    on_trust = require_same_workload(a, b)
    before, after = ([_side(run, judge, baseline) for run in runs] for runs in ((a, *more_a), (b, *more_b)))
    runs = [*before, *after]
    known = dict.fromkeys(name for side in runs for name in side.frame.arms if not _is_again(side, name))
    for name in arms or ():
        if name not in known:
            fix = f"The arms are: {', '.join(known)}."
            raise UsageError(f"Neither run has an arm {name!r}.", where="--arm", fix=fix)
    chosen = [name for name in known if not arms or name in arms]
    both = [name for name in chosen if all(name in side.frame.arms for side in runs)]
    return RunComparison(
        a=_facts(before[0], names[0]),
        b=_facts(after[0], names[1]),
        more_a=[_facts(side, names[0]) for side in before[1:]],
        more_b=[_facts(side, names[1]) for side in after[1:]],
        claims=max(1, len(both)),
        on_trust=on_trust,
        changed=find_changes(a, b),
        arms=_compare_arms(before, after, both),
        only_in_a=[name for name in chosen if not all(name in side.frame.arms for side in after)],
        only_in_b=[name for name in chosen if not all(name in side.frame.arms for side in before)],
        lossless_b=[
            OwnVerdict(arm=row.arm, verdict=row.verdict, reason=row.reason)
            for side in after
            for row in side.analysis.losslessness
            if row.arm in chosen
        ],
    )


def _side(data: RunData, judge: Judge, baseline: str | None) -> _Side:
    analysis = analyse(data, judge, baseline=baseline)  # every condition for itself
    frame = make_frame(data.records, data.manifest, min(analysis.baselines))  # all arms, each with a name of its own
    return _Side(data, analysis, frame, find_answers(frame))


def _facts(side: _Side, name: str) -> RunFacts:
    manifest, found = side.data.manifest, side.analysis
    return RunFacts(
        run=found.run if manifest else name,
        folder=str(side.data.folder),
        recipe=found.recipe,
        created_at=manifest.created_at if manifest else None,
        status=manifest.status if manifest else None,
        baseline=found.baseline,
        blocks=found.blocks,
        failed_cells=found.failed_cells,
        damage=list(side.data.integrity.findings),
        warnings=list(dict.fromkeys(warning.id for warning in found.warnings)),
    )


def _is_again(side: _Side, name: str) -> bool:
    """Whether an arm is the second cell of a baseline, whose times count as the baseline's."""
    return name in side.analysis.compared and side.analysis.compared[name].is_again


def _compare_arms(before: Sequence[_Side], after: Sequence[_Side], names: Sequence[str]) -> list[ArmComparison]:
    runs = [*before, *after]
    common = set[PromptKey].intersection(*(set(side.frame.prompts) for side in runs))
    prompts = [key for key in runs[0].frame.prompts if key in common]
    rates = {name: [rate_times(side.frame, name, prompts) for side in runs] for name in names}
    speedups = {
        name: [_speedup_times(side, name, prompts) for side in runs]
        for name in names
        if all(_is_compared(side, name) for side in runs)
    }
    compared = runs[-1].analysis.compared
    baselines = {name: compared[name].baseline for name in names}
    level = 1 - (1 - level_for(*(side.data.manifest for side in runs))) / max(1, len(names))
    # the machine's state of a run moves all decode rates together, so that arms are no repetitions of one another
    rate = find_quantities(_measured(rates), len(before), baselines, level, arms_repeat=False)
    speedup = find_quantities(_measured(speedups), len(before), baselines, level, arms_repeat=True)
    distrust = next((reason for side in runs if (reason := side.data.integrity.reason)), None)
    return [
        _compare_arm(before[0], after[0], name, rate[name], speedup.get(name), len(prompts), distrust) for name in names
    ]


_ONE_BASELINE = "It is the baseline of one run, so there it has no speed-up."


def _measured(times: Mapping[str, Sequence[Times]]) -> dict[str, InAllRuns]:
    return {name: in_all_runs(of_arm) for name, of_arm in times.items()}


def _is_compared(side: _Side, name: str) -> bool:
    return name in side.analysis.compared and not side.analysis.compared[name].is_baseline


def _speedup_times(side: _Side, name: str, prompts: Sequence[PromptKey]) -> Times:
    arm: ComparedArm = side.analysis.compared[name]
    return speedup_times(side.frame, arm, prompts, whole=name in side.overlapping)


def _compare_arm(
    before: _Side,
    after: _Side,
    name: str,
    rate: Quantity,
    speedup: Quantity | None,
    prompts: int,
    distrust: str | None,
) -> ArmComparison:
    """`prompts`: how many all runs have; `distrust`: why nothing is concluded of one of them."""
    rate_doubt = distrust or doubt_of(rate)
    is_baseline = name in after.analysis.baselines
    judged = rate if is_baseline else speedup
    doubt = distrust or (_ONE_BASELINE if judged is None else doubt_of(judged))
    measured = (judged or rate).measured
    own_a, own_b = _lossless(before, name), _lossless(after, name)
    counts = [len(run.by_block) for run in measured.runs]
    bare = {"interval": None} if distrust else {}
    nothing = Ratio(a=None, b=None, ratio=None, interval=None)
    return ArmComparison(
        arm=name,
        is_baseline=is_baseline,
        change="unknown" if doubt or judged is None else speed_change(judged.change.interval),
        doubt=doubt,
        rate=rate.change.model_copy(update=bare),
        rate_length_matched=rate.matched,
        rate_doubt=rate_doubt,
        blocks_a=counts[0],
        blocks_b=counts[-1],
        prompts=measured.prompts,
        prompts_left_out=prompts - measured.prompts,
        speedup=speedup.change.model_copy(update=bare) if speedup else nothing,
        acceptance_a=_acceptance(before, name),
        acceptance_b=_acceptance(after, name),
        lossy=list(dict.fromkeys([*(own_a.lossy if own_a else []), *(own_b.lossy if own_b else [])])),
        lossless_a=own_a.verdict if own_a else None,
        lossless_b=own_b.verdict if own_b else None,
        outputs=_outputs(before, after, name),
    )


def _outputs(before: _Side, after: _Side, name: str) -> Outputs:
    found = compare_answers(before.frame, before.answers, after.frame, after.answers, name)
    if name not in after.overlapping:
        return found
    chance = [*found.differing, *found.undetermined]  # answers of overlapping requests do not repeat
    return found.model_copy(update={"differing": [], "undetermined": chance})


def _acceptance(side: _Side, name: str) -> float | None:
    return next((row.rate for row in side.analysis.acceptance if row.arm == name and row.task == ALL_TASKS), None)


def _lossless(side: _Side, name: str) -> Losslessness | None:
    return next((row for row in side.analysis.losslessness if row.arm == name), None)
