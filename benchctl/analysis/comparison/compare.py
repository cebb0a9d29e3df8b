"""Two settings of a workload side by side: what got faster or slower beyond noise, and whether the answers stayed.

A is the run before, B the run after; every ratio is B over A. Arms are matched by name. What changed of an arm is its
speed-up over its own run's baseline; what changed of the baseline, its decode rate. Each run's spread between blocks
counts, shared among its arms (`changes`); intervals hold together over the arms; prompts count as fixed. Blocks do not
show what changes from run to run: where a setting was measured again, the distance between its runs does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from pydantic import Field

from benchctl.analysis.analyse import Judge, analyse
from benchctl.analysis.answers import Answers, find_answers
from benchctl.analysis.comparison.changes import (
    InAllRuns,
    Quantity,
    Ratio,
    SpeedChange,
    Times,
    Watched,
    doubt_of,
    find_quantities,
    in_all_runs,
    rate_times,
    speed_change,
    speedup_times,
    watch,
    watched_changes,
)
from benchctl.analysis.comparison.workload import Change, Outputs, compare_answers, find_changes, require_same_workload
from benchctl.analysis.frame import Frame, PromptKey, make_frame
from benchctl.analysis.losslessness import Scope
from benchctl.analysis.results import ALL_TASKS, AcceptanceDoubt, Analysis, Result
from benchctl.analysis.statistics import LEVEL, level_for
from benchctl.data.store import RunData
from benchctl.errors import UsageError

if TYPE_CHECKING:
    from benchctl.recipes.groups import ComparedArm

MACHINE_CLASS = ("machine cpu", "machine usable cores", "machine accelerators")
"""What makes speeds, times, memory and energy of two machines comparable where it is equal."""


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
    """What is not as it was written: nothing is concluded of a run that has any."""
    warnings: list[str]
    """Ids of `benchctl.analysis.warnings`, the most serious first."""


class ArmComparison(Result):
    """An arm in both runs."""

    arm: str
    is_baseline: bool
    """Of run B."""
    change: SpeedChange
    """Of `judged`. Faster or slower only where the interval excludes 1."""
    doubt: str | None
    """Why `change` is unknown, as a sentence."""
    rate: Ratio
    """Decode rate, tokens per second: tokens over time of the prompts that every block of all runs timed."""
    rate_length_matched: float | None
    """The ratio over only those prompts whose answers are of equal length and ending in all runs."""
    rate_doubt: str | None
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
    """What gates watch beside speed, as far as A reports it: `ttft`, `memory`, `energy`, `acceptance TASK`."""
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
        """What `change` is of."""
        return self.rate if self.is_baseline else self.speedup


class OwnVerdict(Result):
    """Whether an arm of B is lossless by B's own baseline."""

    arm: str
    verdict: str
    reason: str
    scope: Scope | None


class RunComparison(Result):
    """Everything that `benchctl compare` finds."""

    a: RunFacts
    b: RunFacts
    more_a: list[RunFacts] = Field(default_factory=list)
    """Runs that repeat A."""
    more_b: list[RunFacts] = Field(default_factory=list)
    claims: int = 1
    """How many intervals of a kind hold together: of each arm."""
    level: float = LEVEL
    """Of an interval by itself: above 95 % where a run ended by what it showed."""
    on_trust: list[str]
    """Which parts of the workload could not be checked to be the same."""
    changed: list[Change]
    arms: list[ArmComparison]
    only_in_a: list[str]
    only_in_b: list[str]
    lossless_b: list[OwnVerdict]
    """Of every arm of B but its baseline, those that only B has included."""

    @property
    def other_machine(self) -> str | None:
        """How the machines differ, where they are of another class: then only ratios within a run can be compared."""
        differing = [change for change in self.changed if change.what in MACHINE_CLASS]
        return "; ".join(f"{change.what}: {change.a} and {change.b}" for change in differing) or None


@dataclass(frozen=True)
class Side:
    """A run and what was found in it."""

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

    def speedup_times(self, name: str, prompts: Sequence[PromptKey]) -> Times:
        """Return the times of an arm and its baseline."""
        arm: ComparedArm = self.analysis.compared[name]
        return speedup_times(self.frame, arm, prompts, whole=name in self.overlapping)

    def own(self, name: str) -> OwnFacts:
        """Return what the run says of an arm by itself."""
        rows = self.analysis.acceptance
        accepted = next((row for row in rows if row.arm == name and row.task == ALL_TASKS), None)
        rate, doubt = (accepted.rate, accepted.doubt) if accepted else (None, None)
        lossless = next((row for row in self.analysis.losslessness if row.arm == name), None)
        if lossless is None:
            return OwnFacts(rate, None, [], acceptance_doubt=doubt)
        power = lossless.stated.chance if lossless.stated else None
        return OwnFacts(rate, lossless.verdict, lossless.lossy, power, doubt)


@dataclass(frozen=True)
class OwnFacts:
    """What a run says of an arm by itself."""

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
    both = [name for name in chosen if all(name in side.frame.arms for side in runs)]
    return RunComparison(
        a=run_facts(before[0], names[0]),
        b=run_facts(after[0], names[1]),
        more_a=[run_facts(side, names[0]) for side in before[1:]],
        more_b=[run_facts(side, names[1]) for side in after[1:]],
        claims=max(1, len(both)),
        on_trust=on_trust,
        changed=find_changes(a, b),
        arms=_compare_arms(before, after, both),
        only_in_a=[name for name in chosen if not all(name in side.frame.arms for side in after)],
        only_in_b=[name for name in chosen if not all(name in side.frame.arms for side in before)],
        level=level_for(*(side.data.manifest for side in runs)),
        lossless_b=own_verdicts(after, chosen),
    )


def chosen_arms(known: Iterable[str], wanted: Collection[str] | None) -> list[str]:
    """Return the arms that are compared, of those that any run has. Raises UsageError for a name that none has."""
    names = list(dict.fromkeys(known))
    for name in wanted or ():
        if name not in names:
            fix = f"The arms are: {', '.join(names)}."
            raise UsageError(f"No run has an arm {name!r}.", where="--arm", fix=fix)
    return [name for name in names if not wanted or name in wanted]


def own_verdicts(sides: Sequence[Side], arms: Collection[str]) -> list[OwnVerdict]:
    """Return what runs conclude of these arms by themselves."""
    return [
        OwnVerdict(arm=row.arm, verdict=row.verdict, reason=row.reason, scope=row.scope)
        for side in sides
        for row in side.analysis.losslessness
        if row.arm in arms
    ]


def side_of(data: RunData, judge: Judge, baseline: str | None) -> Side:
    """Analyse a run. Raises UsageError where no arm is called `baseline`."""
    analysis = analyse(data, judge, baseline=baseline)  # every condition for itself
    frame = make_frame(data.records, data.manifest, min(analysis.baselines))  # all arms, each with a name of its own
    return Side(data, analysis, frame, find_answers(frame))


def run_facts(side: Side, name: str) -> RunFacts:
    """Return what is said of a run; `name`: what a run without a manifest is called."""
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


def _compare_arms(before: Sequence[Side], after: Sequence[Side], names: Sequence[str]) -> list[ArmComparison]:
    runs = [*before, *after]
    common = set[PromptKey].intersection(*(set(side.frame.prompts) for side in runs))
    prompts = [key for key in runs[0].frame.prompts if key in common]
    rates = {name: [rate_times(side.frame, name, prompts) for side in runs] for name in names}
    speedups = {
        name: [side.speedup_times(name, prompts) for side in runs]
        for name in names
        if all(side.is_compared(name) for side in runs)
    }
    compared = runs[-1].analysis.compared
    timed = {name: timed_prompts(prompts, of_arm) for name, of_arm in rates.items()}
    by_run = [watch(side.frame, timed) for side in runs]
    distrust = next((reason for side in runs if (reason := side.data.integrity.reason)), None)
    return compare_arms(
        {
            name: ArmFacts(
                is_baseline=name in after[0].analysis.baselines,
                own=(before[0].own(name), after[0].own(name)),
                outputs=_outputs(before[0], after[0], name),
                prompts=len(prompts),
                doubt=distrust,
            )
            for name in names
        },
        {name: in_all_runs(of_arm) for name, of_arm in rates.items()},
        {name: in_all_runs(of_arm) for name, of_arm in speedups.items()},
        {name: [run[name] for run in by_run] for name in names},
        of_a=len(before),
        groups={name: compared[name].baseline for name in names},
        level=1 - (1 - level_for(*(side.data.manifest for side in runs))) / max(1, len(names)),
    )


def timed_prompts(prompts: Sequence[PromptKey], runs: Sequence[Times]) -> list[PromptKey]:
    """Return the prompts that every block of all runs timed."""
    timed = np.logical_and.reduce([run.timed for run in runs])
    return [key for key, is_timed in zip(prompts, timed, strict=True) if is_timed]


_BASELINE_THERE = "It is the baseline of A or of B, so there it has no speed-up."


@dataclass(frozen=True)
class ArmFacts:
    """What is known of an arm beside how fast it was."""

    is_baseline: bool
    """Of B."""
    own: tuple[OwnFacts, OwnFacts]
    """What A, and what B says of it."""
    outputs: Outputs
    prompts: int
    """That all runs have."""
    doubt: str | None
    """Why nothing is concluded, whatever was measured."""


def compare_arms(
    facts: Mapping[str, ArmFacts],
    rates: Mapping[str, InAllRuns],
    speedups: Mapping[str, InAllRuns],
    watched: Mapping[str, Sequence[Watched]],
    *,
    of_a: int,
    groups: Mapping[str, str],
    level: float,
) -> list[ArmComparison]:
    """Return what changed of every arm from the first `of_a` runs to the others; arguments as `find_quantities`."""
    # the machine's state of a run moves all decode rates together, so that arms are no repetitions of each other
    rate = find_quantities(rates, of_a, groups, level, arms_repeat=False)
    speedup = find_quantities(speedups, of_a, groups, level, arms_repeat=True)
    changes = watched_changes(watched, of_a, groups, level)
    return [_compare_arm(name, known, rate[name], speedup.get(name), changes[name]) for name, known in facts.items()]


def _compare_arm(
    name: str, facts: ArmFacts, rate: Quantity, speedup: Quantity | None, watched: Mapping[str, Ratio]
) -> ArmComparison:
    bare: dict[str, object] = {"interval": None, "variances": []} if facts.doubt else {}
    judged = rate if facts.is_baseline else speedup
    doubt = facts.doubt or (_BASELINE_THERE if judged is None else doubt_of(judged))
    measured = (judged or rate).measured
    counts = [len(run.by_block) for run in measured.runs]
    nothing = Ratio(a=None, b=None, ratio=None, interval=None)
    return ArmComparison(
        arm=name,
        is_baseline=facts.is_baseline,
        change="unknown" if doubt or judged is None else speed_change(judged.change.interval),
        doubt=doubt,
        rate=rate.change.model_copy(update=bare),
        rate_length_matched=rate.matched,
        rate_doubt=facts.doubt or doubt_of(rate),
        blocks_a=counts[0],
        blocks_b=counts[-1],
        prompts=measured.prompts,
        prompts_left_out=facts.prompts - measured.prompts,
        speedup=speedup.change.model_copy(update=bare) if speedup else nothing,
        watched={quantity: change.model_copy(update=bare) for quantity, change in watched.items()},
        acceptance_a=facts.own[0].acceptance,
        acceptance_b=facts.own[1].acceptance,
        acceptance_doubt_a=facts.own[0].acceptance_doubt,
        acceptance_doubt_b=facts.own[1].acceptance_doubt,
        lossy=list(dict.fromkeys([*facts.own[0].lossy, *facts.own[1].lossy])),
        lossless_a=facts.own[0].verdict,
        lossless_b=facts.own[1].verdict,
        outputs=facts.outputs,
    )


def _outputs(before: Side, after: Side, name: str) -> Outputs:
    found = compare_answers(before.frame, before.answers, after.frame, after.answers, name)
    if name not in after.overlapping:
        return found
    chance = [*found.differing, *found.undetermined]  # answers of overlapping requests do not repeat
    return found.model_copy(update={"differing": [], "undetermined": chance})
