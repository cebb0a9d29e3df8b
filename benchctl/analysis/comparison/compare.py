"""Two settings of a workload side by side: what got faster or slower beyond noise, and whether the answers stayed.

A is the run before, B the run after; every ratio is B over A. Arms are matched by name. What changed of an arm is its
speed-up over its own run's baseline; what changed of the baseline, its decode rate. Each run's spread between blocks
counts, shared among its arms (`changes`); intervals hold together over the arms; prompts count as fixed. Blocks do not
show what changes from run to run: where a setting was measured again, the distance between its runs does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import Field

from benchctl.analysis.analyse import Judge, analyse
from benchctl.analysis.answers import Answers, find_answers
from benchctl.analysis.comparison.changes import (
    Doubt,
    InAllRuns,
    Ratio,
    SpeedChange,
    Watched,
    doubt_of,
    find_ratios,
    in_all_runs,
    speed_change,
    watch,
    watched_ratios,
)
from benchctl.analysis.comparison.workload import Change, Outputs, compare_answers, find_changes, require_same_workload
from benchctl.analysis.frame import Frame, PromptKey, make_frame
from benchctl.analysis.losslessness import Scope
from benchctl.analysis.result import Result
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_results import AcceptanceDoubt
from benchctl.analysis.speed_table import SpeedTable, rate_table, speed_table
from benchctl.analysis.speedup import counted_table
from benchctl.analysis.statistics import LEVEL, level_for
from benchctl.data.store import RunData
from benchctl.errors import UsageError

MACHINE_CLASS = ("machine cpu", "machine usable cores", "machine accelerators")
"""Speeds, times, memory and energy of two runs are comparable only where these facts of the machine are equal."""


class RunFacts(Result):
    """One of the two runs."""

    run: str
    folder: str
    recipe: str
    created_at: str | None
    status: str | None
    baseline: str
    blocks: int
    failed_cells: list[str]
    damage: list[str]
    """Files that were changed after they were written. Nothing is concluded of a run that has any."""
    warnings: list[str]
    """Ids of `benchctl.analysis.warnings`, the most serious first."""


class ArmComparison(Result):
    """An arm in both runs."""

    arm: str
    is_baseline: bool
    """Whether it is a baseline of run B."""
    change: SpeedChange
    """The class of `judged`: `faster` or `slower` only where its interval excludes 1."""
    doubt: Doubt | None
    """Why `change` is unknown."""
    rate: Ratio
    """Decode rate, tokens per second: tokens over time of the prompts that every block of all runs timed."""
    rate_length_matched: float | None
    """The ratio over only those prompts whose answers are of equal length and ending in all runs."""
    rate_doubt: Doubt | None
    """Why nothing is said of `rate`."""
    blocks_a: int
    blocks_b: int
    prompts: int
    prompts_left_out: int
    """Prompts that some block of a run did not time."""
    speedup: Ratio
    """Over each run's own baseline, over the prompts that every block of both timed in all runs; where requests
    overlap, of whole answers."""
    watched: dict[str, Ratio] = Field(default_factory=dict)
    """Quantities beside speed that gates watch, where A reports them: `ttft`, `memory`, `energy`, `acceptance TASK`."""
    acceptance_a: float | None
    acceptance_b: float | None
    acceptance_doubt_a: AcceptanceDoubt | None
    acceptance_doubt_b: AcceptanceDoubt | None
    lossy: list[str]
    """Settings of either run's arm that are lossy by design."""
    lossless_a: str | None
    lossless_b: str | None
    """Verdict of each run on itself; `None` for its baseline."""
    outputs: Outputs
    """Whether the answers of B equal those of A."""

    @property
    def judged(self) -> Ratio:
        """The ratio that `change` classifies: a baseline's decode rate, any other arm's speed-up."""
        return self.rate if self.is_baseline else self.speedup


class ArmVerdict(Result):
    """Whether an arm of B is lossless by B's own baseline."""

    arm: str
    verdict: str
    reason: str
    scope: Scope | None


class RunComparison(Result):
    """The comparison of two settings."""

    a: RunFacts
    b: RunFacts
    more_a: list[RunFacts] = Field(default_factory=list)
    """Runs that repeat A."""
    more_b: list[RunFacts] = Field(default_factory=list)
    claims: int = 1
    """How many intervals of a kind hold together: of each arm."""
    level: float = LEVEL
    """The confidence level of a single interval; above 95 % where a run ended by what it showed."""
    on_trust: list[str]
    """Parts of the workload that could not be compared."""
    changed: list[Change]
    arms: list[ArmComparison]
    only_in_a: list[str]
    only_in_b: list[str]
    lossless_b: list[ArmVerdict]
    """For every arm of B but its baseline, also arms that A lacks."""

    @property
    def other_machine(self) -> list[Change]:
        """How the machines differ where they are not of one class. Then only ratios within a run are comparable."""
        return [change for change in self.changed if change.what in MACHINE_CLASS]


@dataclass(frozen=True)
class Side:
    """A run, its analysis, and its records as columns."""

    data: RunData
    analysis: Analysis
    frame: Frame
    answers: Answers

    @property
    def overlapping(self) -> set[str]:
        """Arms whose requests shared the engine."""
        sweep = self.analysis.sweep
        return {row.arm for row in sweep.levels if row.overlapping} if sweep else set()

    @property
    def arms(self) -> list[str]:
        """All arms but the second cells of baselines, whose times count as the baseline's."""
        compared = self.analysis.compared
        return [name for name in self.frame.arms if name not in compared or not compared[name].is_again]

    def is_compared(self, name: str) -> bool:
        """Whether an arm has a baseline beside it."""
        return name in self.analysis.compared and not self.analysis.compared[name].is_baseline

    def rate_over(self, name: str, prompts: Sequence[PromptKey]) -> SpeedTable:
        """Return the table of an arm alone, over the blocks that did not break off."""
        table = rate_table(self.frame, self.frame.arms.index(name)).at(prompts)
        return table.in_blocks(table.full_blocks)

    def speedup_over(self, name: str, prompts: Sequence[PromptKey]) -> SpeedTable:
        """Return the table of an arm beside its baseline; of whole answers, where requests overlap."""
        compared, arms = self.analysis.compared[name], self.frame.arms
        second_cell = arms.index(compared.again) if compared.again in arms else None
        against_baseline = replace(self.frame, baseline=arms.index(compared.baseline), again=second_cell)
        table = decoding = counted_table(against_baseline, arms.index(name))[0].at(prompts)
        if name in self.overlapping:
            table = speed_table(against_baseline, arms.index(name), whole_answers=True).at(prompts)
        return table.in_blocks(decoding.full_blocks)

    def results_of(self, name: str) -> ArmResults:
        """Return the results of an arm in this run."""
        accepted, lossless = self.analysis.acceptance_of(name), self.analysis.losslessness_of(name)
        rate, doubt = (accepted.rate, accepted.doubt) if accepted else (None, None)
        if lossless is None:
            return ArmResults(rate, None, [], acceptance_doubt=doubt)
        power = lossless.stated.chance if lossless.stated else None
        return ArmResults(rate, lossless.verdict, lossless.lossy, power, doubt)


@dataclass(frozen=True)
class ArmResults:
    """The results of an arm in its own run."""

    acceptance: float | None
    verdict: str | None
    lossy: list[str]
    power: float | None = None
    """With which a faulty engine would have been detected, where whole answers were scored."""
    acceptance_doubt: AcceptanceDoubt | None = None


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
    """Compare two runs of a workload; `arms` limits which arms. Raises UsageError where there is nothing to compare.

    `names` are what runs without a manifest are called. `more_a`, `more_b`: runs that repeat A, that repeat B.
    """
    if a.folder.resolve() == b.folder.resolve() and a.records == b.records:
        raise UsageError("Both are the same run.", where=str(a.folder), fix="Name two runs, the earlier first.")
    on_trust = require_same_workload(a, b)
    before, after = ([side_of(run, judge, baseline) for run in runs] for runs in ((a, *more_a), (b, *more_b)))
    runs = [*before, *after]
    chosen = chosen_arms((name for side in runs for name in side.arms), arms)
    return comparison(
        [run_facts(side, names[0]) for side in before],
        after,
        names[1],
        arms=chosen,
        arms_of_a=[name for name in chosen if all(name in side.frame.arms for side in before)],
        measure=lambda common: _measure(before, after, common),
        on_trust=on_trust,
        changed=find_changes(a, b),
        level=level_for(*(side.data.manifest for side in runs)),
    )


def comparison(
    a: Sequence[RunFacts],
    after: Sequence[Side],
    name_of_b: str | None = None,
    *,
    arms: Sequence[str],
    arms_of_a: Collection[str],
    measure: Callable[[Sequence[str]], Mapping[str, ArmInRuns]],
    on_trust: list[str],
    changed: list[Change],
    level: float,
) -> RunComparison:
    """Return the comparison of A, which may be kept in a file, with the runs of B.

    `measure` returns what was measured of the arms that all runs have.
    """
    b = [run_facts(side, name_of_b or side.data.name) for side in after]
    common = [name for name in arms if name in arms_of_a and all(name in side.frame.arms for side in after)]
    return RunComparison(
        a=a[0],
        b=b[0],
        more_a=list(a[1:]),
        more_b=b[1:],
        claims=max(1, len(common)),
        level=level,
        on_trust=on_trust,
        changed=changed,
        arms=compare_arms(measure(common), of_a=len(a), level=1 - (1 - level) / max(1, len(common))),
        only_in_a=[name for name in arms if name in arms_of_a and name not in common],
        only_in_b=[name for name in arms if name not in arms_of_a],
        lossless_b=[
            ArmVerdict(arm=row.arm, verdict=row.verdict, reason=row.reason, scope=row.scope)
            for side in after
            for row in side.analysis.losslessness
            if row.arm in arms
        ],
    )


def chosen_arms(available: Iterable[str], wanted: Collection[str] | None) -> list[str]:
    """Return the arms that are compared, of those that any run has. Raises UsageError for a name that none has."""
    names = list(dict.fromkeys(available))
    for name in wanted or ():
        if name not in names:
            fix = f"The arms are: {', '.join(names)}."
            raise UsageError(f"No run has an arm {name!r}.", where="--arm", fix=fix)
    return [name for name in names if not wanted or name in wanted]


def side_of(data: RunData, judge: Judge, baseline: str | None) -> Side:
    """Analyse a run. Raises UsageError where no arm is called `baseline`."""
    analysis = analyse(data, judge, baseline=baseline)  # every condition for itself
    frame = make_frame(data.records, data.manifest, min(analysis.baselines))  # all arms, each with a name of its own
    return Side(data, analysis, frame, find_answers(frame))


def run_facts(side: Side, name: str) -> RunFacts:
    """Return the facts of a run; `name`: what a run without a manifest is called."""
    manifest, analysis = side.data.manifest, side.analysis
    return RunFacts(
        run=analysis.run if manifest else name,
        folder=str(side.data.folder),
        recipe=analysis.recipe,
        created_at=manifest.created_at if manifest else None,
        status=manifest.status if manifest else None,
        baseline=analysis.baseline,
        blocks=analysis.blocks,
        failed_cells=analysis.failed_cells,
        damage=list(side.data.integrity.findings),
        warnings=list(dict.fromkeys(warning.id for warning in analysis.warnings)),
    )


@dataclass(frozen=True)
class ArmInRuns:
    """An arm that all runs have: what was measured, and its results in each run."""

    baseline: str
    """The baseline of the arm's group; for a baseline its own name."""
    is_baseline: bool
    """Whether it is a baseline of B."""
    facts: tuple[ArmResults, ArmResults]
    """Its results in A and in B."""
    outputs: Outputs
    prompts: int
    """How many all runs have."""
    doubt: Doubt | None
    """Why nothing is concluded, whatever was measured."""
    rate: InAllRuns
    speedup: InAllRuns | None
    """`None` where it is the baseline of a run."""
    watched: Sequence[Watched]
    """One a run, those of A first."""


def _measure(before: Sequence[Side], after: Sequence[Side], names: Sequence[str]) -> dict[str, ArmInRuns]:
    runs, of_a = [*before, *after], len(before)
    common = set[PromptKey].intersection(*(set(side.frame.prompts) for side in runs))
    prompts = [key for key in runs[0].frame.prompts if key in common]
    rates = {name: [side.rate_over(name, prompts) for side in runs] for name in names}
    timed = {name: timed_prompts(tables) for name, tables in rates.items()}
    watched = [watch(side.frame, timed) for side in runs]
    return {
        name: ArmInRuns(
            baseline=runs[-1].analysis.compared[name].baseline,
            is_baseline=name in after[0].analysis.baselines,
            facts=(before[0].results_of(name), after[0].results_of(name)),
            outputs=_outputs(before[0], after[0], name),
            prompts=len(prompts),
            doubt=distrust_of(runs),
            rate=in_all_runs(rates[name], of_a),
            speedup=in_all_runs([side.speedup_over(name, prompts) for side in runs], of_a)
            if all(side.is_compared(name) for side in runs)
            else None,
            watched=[run[name] for run in watched],
        )
        for name in names
    }


def distrust_of(sides: Sequence[Side]) -> Doubt | None:
    """Return why nothing is concluded of some runs, whatever was measured."""
    reasons = (side.data.integrity.reason for side in sides)
    return next((Doubt(code="damaged", reason=reason) for reason in reasons if reason), None)


def timed_prompts(runs: Sequence[SpeedTable]) -> list[PromptKey]:
    """Return the prompts that every block of all runs timed."""
    timed = np.logical_and.reduce([run.timed_prompts for run in runs])
    return [key for key, is_timed in zip(runs[0].prompts, timed, strict=True) if is_timed]


def compare_arms(arms: Mapping[str, ArmInRuns], *, of_a: int, level: float) -> list[ArmComparison]:
    """Return what changed of every arm from the first `of_a` runs to the others; `level`: of a single interval."""
    groups = {name: arm.baseline for name, arm in arms.items()}
    speedups = {name: arm.speedup for name, arm in arms.items() if arm.speedup is not None}
    # the machine's state of a run moves all decode rates together, so that arms are no repetitions of each other
    rate = find_ratios({name: arm.rate for name, arm in arms.items()}, groups, level, arms_repeat=False)
    speedup = find_ratios(speedups, groups, level, arms_repeat=True)
    watched = watched_ratios({name: arm.watched for name, arm in arms.items()}, of_a, groups, level)
    return [_compare_arm(name, arm, rate[name], speedup.get(name), watched[name]) for name, arm in arms.items()]


def _compare_arm(
    name: str, arm: ArmInRuns, rate: Ratio, speedup: Ratio | None, watched: Mapping[str, Ratio]
) -> ArmComparison:
    bare: dict[str, object] = {"interval": None, "variances": []} if arm.doubt else {}
    judged = rate if arm.is_baseline else speedup
    measured = arm.rate if arm.is_baseline or arm.speedup is None else arm.speedup
    doubt = arm.doubt or (Doubt(code="a baseline") if judged is None else doubt_of(measured, judged))
    ours, theirs = arm.facts
    return ArmComparison(
        arm=name,
        is_baseline=arm.is_baseline,
        change="unknown" if doubt or judged is None else speed_change(judged.interval),
        doubt=doubt,
        rate=rate.model_copy(update=bare),
        rate_length_matched=arm.rate.matched_ratio,
        rate_doubt=arm.doubt or doubt_of(arm.rate, rate),
        blocks_a=len(measured.runs[0].blocks),
        blocks_b=len(measured.runs[-1].blocks),
        prompts=measured.prompts,
        prompts_left_out=arm.prompts - measured.prompts,
        speedup=speedup.model_copy(update=bare) if speedup else Ratio(a=None, b=None, ratio=None, interval=None),
        watched={quantity: ratio.model_copy(update=bare) for quantity, ratio in watched.items()},
        acceptance_a=ours.acceptance,
        acceptance_b=theirs.acceptance,
        acceptance_doubt_a=ours.acceptance_doubt,
        acceptance_doubt_b=theirs.acceptance_doubt,
        lossy=list(dict.fromkeys([*ours.lossy, *theirs.lossy])),
        lossless_a=ours.verdict,
        lossless_b=theirs.verdict,
        outputs=arm.outputs,
    )


def _outputs(before: Side, after: Side, name: str) -> Outputs:
    outputs = compare_answers(before.frame, before.answers, after.frame, after.answers, name)
    if name not in after.overlapping:
        return outputs
    chance = [*outputs.differing, *outputs.undetermined]  # answers of overlapping requests do not repeat
    return outputs.model_copy(update={"differing": [], "undetermined": chance})
