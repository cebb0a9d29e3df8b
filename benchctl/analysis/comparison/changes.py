"""How a quantity of every arm changed between the runs of two settings, with intervals that hold together.

Decode rates, speed-ups, and what gates watch beside them: acceptance length by task, TTFT, peak memory, energy a token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from benchctl.analysis.acceptance import CounterColumns, find_counters
from benchctl.analysis.cells import by_block
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.speed_table import Measured, SpeedTable, full_blocks
from benchctl.analysis.statistics import (
    Variance,
    block_variance,
    change_interval,
    change_variances,
    pooled_variance,
    repeated_variance,
    shared_variances,
)

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Frame, PromptKey

SpeedChange = Literal["faster", "slower", "no clear difference", "unknown"]


class Ratio(Result):
    """A value in both runs and how they relate; `None` where it is not known."""

    a: float | None
    b: float | None
    """Where runs were repeated, the geometric mean of `values_a`, of `values_b`."""
    ratio: float | None
    """b / a."""
    interval: Interval | None
    """Wide enough that those of all arms and runs hold together; `None` below three blocks in a run."""
    variances: list[Variance] = Field(default_factory=list)
    """The variance of the ratio's logarithm from blocks, and from runs where runs were repeated. Conclusions hold by
    both."""
    values_a: list[float] = Field(default_factory=list)
    values_b: list[float] = Field(default_factory=list)


@dataclass(frozen=True)
class InAllRuns:
    """A quantity of an arm in several runs, over the prompts that every block of all runs timed."""

    runs: list[Measured]
    """Those of A first."""
    of_a: int
    """How many are of A."""
    matched: list[float | None]
    """The runs' values over those prompts alone whose answers are of equal length and ending in all runs."""
    unequal: bool
    """Whether any prompt's answers are not."""
    prompts: int
    """How many every block of all runs timed."""

    @property
    def matched_ratio(self) -> float | None:
        """How the values changed over the answers of equal length alone."""
        return _mean_ratio(self.matched, self.of_a)


def without_prompts(runs: Sequence[Measured], of_a: int) -> InAllRuns:
    """Return a quantity that is not measured prompt by prompt."""
    return InAllRuns(list(runs), of_a, [None for _ in runs], unequal=False, prompts=0)


def in_all_runs(runs: Sequence[SpeedTable], of_a: int) -> InAllRuns:
    """Return what was measured of an arm in runs of the same prompts."""
    timed = np.logical_and.reduce([run.timed_prompts for run in runs])
    works = [np.concatenate(of_arm) for of_arm in zip(*(run.work for run in runs), strict=True)]
    equal = np.logical_and.reduce([timed, *((work == work[:1]).all(axis=0) for work in works)])
    return InAllRuns(
        runs=[run.measured(timed) for run in runs],
        of_a=of_a,
        matched=[run.measured(equal).value for run in runs],
        unequal=bool((timed & ~equal).any()),
        prompts=int(timed.sum()),
    )


def find_ratios(
    arms: Mapping[str, InAllRuns], groups: Mapping[str, str], level: float, *, arms_repeat: bool
) -> dict[str, Ratio]:
    """Return how a quantity of every arm changed from A to B.

    `groups`: each arm's baseline. The variances between a run's blocks are shared among the arms of a group;
    `arms_repeat`: those between repeated runs are pooled over them, too. `level`: of a single interval.
    """
    variances: dict[str, list[Variance | None]] = {name: [] for name in arms}
    repeated = {name: _repeated(measured) for name, measured in arms.items()}
    for group in dict.fromkeys(groups[name] for name in arms):
        names = [name for name in arms if groups[name] == group]
        for number in range(len(arms[names[0]].runs)):
            of_blocks = [block_variance(arms[name].runs[number].blocks) for name in names]
            for name, variance in zip(names, shared_variances(of_blocks), strict=True):
                variances[name].append(variance)
        if arms_repeat:
            repeated |= dict.fromkeys(names, pooled_variance([repeated[name] for name in names]))
    return {name: _change(measured, variances[name], level, repeated[name]) for name, measured in arms.items()}


def _repeated(measured: InAllRuns) -> Variance | None:
    """Return the variance of a run's logarithm between runs of the same setting; `None` where none was repeated."""
    values = [run.value for run in measured.runs if run.value]
    if len(values) < len(measured.runs):
        return None
    return repeated_variance([values[: measured.of_a], values[measured.of_a :]])


def _change(
    measured: InAllRuns, variances: Sequence[Variance | None], level: float, repeated: Variance | None
) -> Ratio:
    values, of_a = [run.value for run in measured.runs], measured.of_a
    ratio = _mean_ratio(values, of_a)
    of_runs = zip(variances, measured.runs, strict=True)
    means = [variance.of_mean(len(run.blocks)) for variance, run in of_runs if variance is not None]
    sides = (means[:of_a], means[of_a:]) if ratio and len(means) == len(values) else None  # else a run shows none
    return Ratio(
        a=_mean(values[:of_a]),
        b=_mean(values[of_a:]),
        ratio=ratio,
        interval=change_interval(ratio, *sides, level, repeated) if ratio and sides else None,
        variances=change_variances(*sides, repeated) if sides else [],
        values_a=[value for value in values[:of_a] if value],
        values_b=[value for value in values[of_a:] if value],
    )


def _mean_ratio(values: Sequence[float | None], of_a: int) -> float | None:
    a, b = _mean(values[:of_a]), _mean(values[of_a:])
    return b / a if a and b else None


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the geometric mean; `None` where a value is not known."""
    positive = [value for value in values if value]
    return float(np.exp(np.mean(np.log(positive)))) if positive and len(positive) == len(values) else None


def speed_change(interval: Interval | None) -> SpeedChange:
    """Return the class of the interval of a ratio of speeds."""
    if interval is None:
        return "unknown"
    return "faster" if interval.low > 1 else "slower" if interval.high < 1 else "no clear difference"


DoubtCode = Literal[
    "damaged", "a baseline", "not timed", "prompts missing", "few blocks", "no equal answer", "unequal lengths",
    "not reported",
]  # fmt: skip


class Doubt(Result):
    """Why the change of a quantity is unknown."""

    code: DoubtCode
    """`damaged`: the files of a run are not as they were written. `a baseline`: the arm is one in a run, so it has no
    speed-up there. `not timed`, `not reported`: by every block of both runs, of B. `prompts missing`: B did not time
    `counts[0]` of the `counts[1]` prompts of a kept baseline. `few blocks`: A and B have `counts`. `no equal answer`:
    none is as long in B as in A; `unequal lengths`: over those that are, the ratio lies on the other side of 1."""
    counts: tuple[int, int] | None = None
    matched: float | None = None
    """The ratio over the answers of equal length."""
    reason: str | None = None
    """Why a run is damaged."""


def doubt_of(measured: InAllRuns, change: Ratio) -> Doubt | None:
    """Return why the change of a quantity is unknown, or `None`."""
    matched = measured.matched_ratio
    if change.ratio is None:
        return Doubt(code="not timed")
    if change.interval is None:
        return Doubt(code="few blocks", counts=(len(measured.runs[0].blocks), len(measured.runs[-1].blocks)))
    if change.interval.excludes_one and measured.unequal:
        if matched is None:
            return Doubt(code="no equal answer")
        if (matched > 1) != (change.ratio > 1):
            return Doubt(code="unequal lengths", matched=matched)
    return None


Watched = dict[str, Measured]
"""By quantity. A quantity that some block does not report is absent."""


def watch(frame: Frame, prompts: Mapping[str, Sequence[PromptKey]]) -> dict[str, Watched]:
    """Return the quantities of every arm, over its `prompts`: those that every block answered.

    `ttft`: median, seconds; `acceptance TASK`: 1 + accepted / rounds; `memory`: bytes; `energy`: joules a token. The
    run's value is the geometric mean of its blocks.
    """
    counters = find_counters(frame)
    return {arm: _of_arm(frame, counters, arm, of_arm) for arm, of_arm in prompts.items()}


def _of_arm(frame: Frame, counters: CounterColumns, arm: str, prompts: Sequence[PromptKey]) -> Watched:
    places = {key: number for number, key in enumerate(frame.prompts)}
    rows = frame.row_at[frame.arms.index(arm)][:, [places[key] for key in prompts]]
    rows = rows[full_blocks(np.where((rows >= 0) & frame.answered[rows], 1.0, np.nan))]
    energy, memory = by_block(frame, arm)
    blocks: dict[str, Sequence[float] | Floats] = {"energy": energy, "memory": memory}
    if rows.size:
        blocks["ttft"] = np.median(frame.column("ttft_s")[rows], axis=1)
        counted = np.stack([counters.accepted, counters.rounds]) + np.where(counters.trusted, 0, np.nan)
        for task in dict.fromkeys(task for task, _ in prompts):
            of_task = rows[:, [key[0] == task for key in prompts]]
            accepted, rounds = np.nansum(counted[:, of_task], axis=2)
            with np.errstate(divide="ignore", invalid="ignore"):  # an arm that never drafts has no acceptance length
                blocks[f"acceptance {task}"] = 1 + accepted / rounds
    return {
        quantity: Measured(float(np.exp(np.mean(np.log(values)))), list(map(float, values)))
        for quantity, values in blocks.items()
        if len(values) and np.all(np.isfinite(values)) and np.all(np.greater(values, 0))
    }


def watched_ratios(
    runs: Mapping[str, Sequence[Watched]], of_a: int, groups: Mapping[str, str], level: float
) -> dict[str, dict[str, Ratio]]:
    """Return by arm how each quantity changed that all runs of A report; `runs`: by arm, the first `of_a` those of A.

    Other arguments as for `find_ratios`.
    """
    ratios: dict[str, dict[str, Ratio]] = {arm: {} for arm in runs}
    absent = Measured(None, [])
    for quantity in dict.fromkeys(name for of_arm in runs.values() for run in of_arm[:of_a] for name in run):
        measured = {
            arm: without_prompts([run.get(quantity, absent) for run in of_arm], of_a)
            for arm, of_arm in runs.items()
            if all(quantity in run for run in of_arm[:of_a])
        }
        for arm, ratio in find_ratios(measured, groups, level, arms_repeat=False).items():
            ratios[arm][quantity] = ratio
    return ratios
