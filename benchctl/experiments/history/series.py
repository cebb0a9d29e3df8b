"""The runs of a workload over builds and dates: a row a run and arm, and the steps of every series of like runs.

A series is an arm as it was asked for on a machine: the speed-ups of its runs differ by the engine's build and by
chance alone, or by something that is not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from math import exp
from pathlib import Path
from typing import Any

import numpy as np

from benchctl.analysis.comparison.summary import ArmSummary, RunSummary, summaries_of
from benchctl.analysis.comparison.workload import setting_changes
from benchctl.analysis.result import Result
from benchctl.analysis.statistics import MIN_BLOCKS, block_variance
from benchctl.data.store import MANIFEST, read_manifest
from benchctl.errors import BenchctlError, UsageError
from benchctl.experiments.history.steps import Split, find_noise, find_steps, run_variances, seen_at_end
from benchctl.lossless.analysed import judge

MOST_LISTED = 4
"""Of builds, and of what else changed, in a sentence."""


class Row(Result):
    """An arm of a run."""

    run: str
    folder: str
    recipe: str
    created_at: str | None
    status: str | None
    engine: str
    build: str
    """Digest of all that is recorded of the engine's build."""
    machine: str
    target: str
    draft: str | None
    arm: str
    types: list[str]
    series: int
    """Number in `History.series`."""
    speedup: float | None
    low: float | None
    high: float | None
    """Ends of the run's own 95 % interval."""
    rate: float | None
    baseline_rate: float | None
    """Decode rates, tokens per second."""
    acceptance: float | None
    acceptance_length: float | None
    lossless: str | None
    untested: str | None
    """Why it does not count for steps, as the end of a sentence."""


class Step(Result):
    """A change of a series' speed-up beyond noise."""

    run: str
    """The first run with it."""
    created_at: str | None
    engine: str
    build: str
    before_run: str
    before_engine: str
    new_build: bool
    """Whether the two runs are of different builds."""
    ratio: float
    """Mean speed-up after it over that before it, between the neighbouring steps."""
    low: float
    high: float
    """Of the ratio, wide enough for all split points and series together."""
    p: float
    """Over all split points and series."""
    runs_after: int
    """Until the next step."""
    may_have_begun: list[str]
    """Engines of the first runs that it may have begun with as well."""
    baseline_ratio: float | None
    """Decode rate of the baseline, the same means."""
    acceptance_before: float | None
    acceptance_after: float | None
    """Acceptance length."""
    changed: list[str]
    """What else is recorded as different between the two runs."""


class Turn(Result):
    """A run whose verdict on the output is not that of the run before it."""

    run: str
    engine: str
    before: str
    after: str


class Series(Result):
    """An arm as it was asked for, on a machine."""

    arm: str
    machine: str
    runs: int
    tested: int
    builds: int
    noise: float | None
    """Standard deviation of a run's speed-up, as a share: its blocks and what differs from run to run."""
    repeated: int
    """Degrees of freedom of it: tested runs less builds."""
    seen: float | None
    """A step with the last build of this share is found with a probability of 80 %."""
    untested: str | None
    """Why no step can be found, as a sentence."""
    steps: list[Step]
    turns: list[Turn]


class Workload(Result):
    """Runs of equal prompts, sampling and models."""

    workload: str
    recipe: str
    runs: int


class History(Result):
    """The runs of a workload."""

    workload: str
    recipe: str
    runs: int
    rows: list[Row]
    """In the order of time."""
    series: list[Series]
    others: list[Workload]
    """Further workloads of the folder, the latest first."""
    unreadable: dict[str, str]


def workloads(runs: Iterable[RunSummary]) -> dict[str, list[RunSummary]]:
    """Return the runs of each workload in the order of time, the workload of the latest run first."""
    found: dict[str, list[RunSummary]] = {}
    for run in sorted(runs, key=lambda run: (run.created_at or "", run.run), reverse=True):
        found.setdefault(run.workload or "", []).append(run)
    return {workload: of_it[::-1] for workload, of_it in found.items()}


def find_history(
    runs: Sequence[RunSummary],
    *,
    workload: str | None = None,
    recipe: str | None = None,
    arms: Collection[str] = (),
    unreadable: Mapping[Path, BenchctlError] | None = None,
) -> History:
    """Return the history of a workload: of `workload` (how its digest begins), else that of the latest run.

    `recipe`, `arms`: the only ones that count. Raises UsageError where nothing is left.
    """
    known = sorted({run.recipe for run in runs})
    if recipe is not None and recipe not in known:
        raise UsageError(
            f"No run is of a recipe {recipe!r}.", where="--recipe", fix=f"The recipes are: {', '.join(known)}."
        )
    groups = workloads(run for run in runs if recipe is None or run.recipe == recipe)
    chosen = [name for name in groups if workload is None or name.startswith(workload)]
    if not chosen or (workload is not None and len(chosen) > 1):
        which = "There is no run of" if not chosen else f"{len(chosen)} workloads begin with"
        fix = f"The workloads are: {', '.join(name[:12] or 'not recorded' for name in groups)}."
        raise UsageError(f"{which} {workload!r}.", where="--workload", fix=fix)
    own = groups[chosen[0]]
    names = dict.fromkeys(arm.name for run in own for arm in run.arms if not (arm.is_baseline or arm.is_again))
    for name in arms:
        if name not in names:
            fix = f"The arms are: {', '.join(names)}."
            raise UsageError(f"No run of this workload has an arm {name!r}.", where="--arm", fix=fix)
    rows, series = history_of(own, arms)
    return History(
        workload=chosen[0],
        recipe=own[-1].recipe,
        runs=len(own),
        rows=rows,
        series=series,
        others=[
            Workload(workload=name, recipe=of_it[-1].recipe, runs=len(of_it))
            for name, of_it in groups.items()
            if name != chosen[0]
        ],
        unreadable={str(path): str(error.what) for path, error in (unreadable or {}).items()},
    )


def history_of(runs: Sequence[RunSummary], arms: Collection[str] = ()) -> tuple[list[Row], list[Series]]:
    """Return rows and series of a workload's runs, which are in the order of time."""
    engines = _labels(runs)
    numbers: dict[tuple[str, ...], int] = {}
    rows: list[Row] = []
    summaries: list[ArmSummary] = []
    for run in runs:
        rates = {arm.name: arm.rate(len(run.prompts)) for arm in run.arms}
        for arm in run.arms:
            if arm.is_baseline or arm.is_again or arm.baseline not in rates or (arms and arm.name not in arms):
                continue
            place = numbers.setdefault((arm.name, run.machine, arm.setting), len(numbers))
            summaries.append(arm)
            rows.append(
                Row(
                    run=run.run,
                    folder=run.folder,
                    recipe=run.recipe,
                    created_at=run.created_at,
                    status=run.status,
                    engine=engines[arm.build],
                    build=arm.build,
                    machine=run.machine,
                    target=arm.target,
                    draft=arm.draft,
                    arm=arm.name,
                    types=arm.types,
                    series=place,
                    speedup=arm.speedup,
                    low=arm.low,
                    high=arm.high,
                    rate=rates[arm.name],
                    baseline_rate=rates[arm.baseline or ""],
                    acceptance=arm.acceptance,
                    acceptance_length=arm.acceptance_length,
                    lossless=arm.lossless,
                    untested=_untested(run, arm),
                )
            )
    members: list[list[int]] = [[] for _ in numbers]
    for number, row in enumerate(rows):
        members[row.series].append(number)
    several = sum(sum(rows[number].untested is None for number in of_it) > 1 for of_it in members)
    found = [
        _series([rows[number] for number in of_it], [summaries[number] for number in of_it], max(1, several))
        for of_it in members
    ]
    return rows, found


def _labels(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Return what each build is called; builds of the same version are told apart by their digests."""
    names = {arm.build: arm.engine for run in runs for arm in run.arms}
    called = list(names.values())
    return {build: name if called.count(name) == 1 else f"{name} [{build[:6]}]" for build, name in names.items()}


def _untested(run: RunSummary, arm: ArmSummary) -> str | None:
    if run.distrust is not None:
        return "its files are not as they were written"
    if not arm.speedup or len(arm.by_block) < MIN_BLOCKS or not all(arm.by_block):
        return f"it has fewer than {MIN_BLOCKS} blocks with both arms"
    return None


def _series(rows: Sequence[Row], arms: Sequence[ArmSummary], claims: int) -> Series:
    counted = [number for number, row in enumerate(rows) if row.untested is None]
    tested = [rows[number] for number in counted]
    builds = {build: number for number, build in enumerate(dict.fromkeys(row.build for row in tested))}
    of_build = np.array([builds[row.build] for row in tested], dtype=np.int64)
    logs = np.log(np.array([row.speedup for row in tested], dtype=np.float64))
    variances = run_variances([block_variance(arms[number].by_block) for number in counted])
    noise = find_noise(logs, variances, of_build)
    splits = find_steps(logs, variances, noise, claims) if noise else []
    latest = len(tested) - _last_change(of_build)
    ends = [0, *(split.place for split in splits), len(tested)]
    return Series(
        arm=rows[0].arm,
        machine=rows[0].machine,
        runs=len(rows),
        tested=len(tested),
        builds=len(builds),
        noise=float(np.sqrt(noise.scale * (noise.between**2 + np.median(variances)))) if noise else None,
        repeated=noise.freedom if noise else 0,
        seen=exp(seen_at_end(variances, noise, latest, claims)) - 1 if noise and latest < len(tested) else None,
        untested=None if noise else _why_not(tested, len(builds)),
        steps=[
            _step(tested, split, tested[ends[number] : split.place], tested[split.place : ends[number + 2]])
            for number, split in enumerate(splits)
        ],
        turns=[
            Turn(run=row.run, engine=row.engine, before=earlier.lossless, after=row.lossless)
            for earlier, row in pairwise(rows)
            if earlier.lossless and row.lossless and earlier.lossless != row.lossless
        ],
    )


def _why_not(tested: Sequence[Row], builds: int) -> str:
    if len(tested) < 2:
        return f"{'One run' if tested else 'No run'} can be tested: a step needs several runs."
    return f"All {builds} runs are of different builds: measure some of them again, to learn how far equal runs differ."


def _last_change(builds: np.ndarray[Any, np.dtype[np.int64]]) -> int:
    """Return the number of the first run of the last stretch of a build."""
    other = np.flatnonzero(builds != builds[-1:])
    return int(other[-1]) + 1 if len(other) else 0


def _step(tested: Sequence[Row], split: Split, before: Sequence[Row], after: Sequence[Row]) -> Step:
    """`before`, `after`: the runs between its neighbours."""
    last, first = before[-1], after[0]
    lengths = [_mean(row.acceptance_length for row in side) for side in (before, after)]
    rates = [_mean(row.baseline_rate for row in side) for side in (before, after)]
    return Step(
        run=first.run,
        created_at=first.created_at,
        engine=first.engine,
        build=first.build,
        before_run=last.run,
        before_engine=last.engine,
        new_build=first.build != last.build,
        ratio=exp(split.size),
        low=exp(split.size - split.half),
        high=exp(split.size + split.half),
        p=split.p,
        runs_after=len(after),
        may_have_begun=list(dict.fromkeys(row.engine for row in tested[split.first : split.last + 1])),
        baseline_ratio=rates[1] / rates[0] if rates[0] and rates[1] else None,
        acceptance_before=lengths[0],
        acceptance_after=lengths[1],
        changed=_changed(last, first),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _changed(before: Row, after: Row) -> list[str]:
    """Return what else differs between two runs, in words; nothing where a manifest has gone."""
    try:
        changes = setting_changes(read_manifest(Path(before.folder)), read_manifest(Path(after.folder)))
    except BenchctlError:
        return []
    return [f"{change.what}: {change.a} → {change.b}" for change in changes if not change.what.startswith("engine ")]


def step_sentence(step: Step) -> str:
    """Return a step in sentences: how large, since when, and what else is known of it."""
    change = "faster" if step.ratio > 1 else "slower"
    size, low, high = (100 * (ratio - 1) for ratio in (step.ratio, step.low, step.high))
    said = f"{abs(size):.1f} % {change} ({low:+.1f} to {high:+.1f} %) from run {step.run} on"
    said += f", with build {step.engine}." if step.new_build else f", within build {step.engine}: it is not the build."
    others = [engine for engine in step.may_have_begun if engine != step.engine]
    if others:
        said += f" It may have begun with {' or '.join(others[:MOST_LISTED])} as well."
    if step.runs_after == 1:
        said += " One run alone shows it: measure this build again."
    if step.baseline_ratio is not None and abs(step.baseline_ratio - 1) > 0.01:
        said += f" The baseline's own decode rate is {step.baseline_ratio:.2f} times what it was."
    if step.acceptance_before is not None and step.acceptance_after is not None:
        said += f" Acceptance length {step.acceptance_before:.2f} before, {step.acceptance_after:.2f} after."
    if step.changed:
        more = f" and {len(step.changed) - MOST_LISTED} more" if len(step.changed) > MOST_LISTED else ""
        said += f" Also changed: {'; '.join(step.changed[:MOST_LISTED])}{more}."
    return said


def run_folders(results: Path) -> list[Path]:
    """Return every run folder below a folder, itself included; hidden folders and what lies in runs are left out.

    Raises UsageError where there is no such folder.
    """
    if not results.is_dir():
        raise UsageError("There is no such folder.", where=str(results), fix="Name a folder of runs, such as results/.")
    found = []
    for folder, inner, files in os.walk(results):
        if MANIFEST in files:
            found.append(Path(folder))
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
    return found


def read_summaries(results: Path) -> tuple[list[RunSummary], dict[Path, BenchctlError]]:
    """Return the summaries of all runs below a folder, and why others cannot be read."""
    unreadable: dict[Path, BenchctlError] = {}
    return summaries_of(run_folders(results), judge, unreadable), unreadable
