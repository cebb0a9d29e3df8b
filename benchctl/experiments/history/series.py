"""The runs of a workload over builds and dates: a row a run and arm, and the steps of every series of like runs.

A series is an arm as it was asked for on a machine: the speed-ups of its runs differ by the engine's build and by
chance alone, or by something that is not recorded.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise, takewhile
from math import exp
from pathlib import Path

import numpy as np

from benchctl.analysis.comparison.summary import ArmSummary, RunSummary, summaries_of
from benchctl.analysis.comparison.workload import setting_changes
from benchctl.analysis.result import Result
from benchctl.analysis.statistics import MIN_BLOCKS, block_variance
from benchctl.data.store import MANIFEST, read_manifest
from benchctl.errors import BenchctlError, UsageError
from benchctl.experiments.history.steps import Split, find_noise, find_steps, run_variances, seen_at_end
from benchctl.lossless.analysed import judge

OF_RUN = ("run", "folder", "recipe", "created_at", "status", "machine")
OF_ARM = ("build", "target", "draft", "types", "speedup", "low", "high", "acceptance", "acceptance_length", "lossless")
"""What a row has of the summaries of its run and of its arm."""


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
    if recipe is not None:
        _check_known("recipe", recipe, sorted({run.recipe for run in runs}))
    groups = workloads(run for run in runs if recipe is None or run.recipe == recipe)
    chosen = [name for name in groups if workload is None or name.startswith(workload)]
    if not chosen or (workload is not None and len(chosen) > 1):
        which = "There is no run of" if not chosen else f"{len(chosen)} workloads begin with"
        fix = f"The workloads are: {', '.join(name[:12] or 'not recorded' for name in groups)}."
        raise UsageError(f"{which} {workload!r}.", where="--workload", fix=fix)
    own = groups[chosen[0]]
    names = dict.fromkeys(arm.name for run in own for arm in run.arms if arm.compares)
    for name in arms:
        _check_known("arm", name, names)
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


def _check_known(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        fix = f"The {what}s are: {', '.join(known)}."
        raise UsageError(f"No run is of {what} {name!r}.", where=f"--{what}", fix=fix)


def history_of(runs: Sequence[RunSummary], arms: Collection[str] = ()) -> tuple[list[Row], list[Series]]:
    """Return rows and series of a workload's runs, which are in the order of time."""
    engines = _labels(runs)
    numbers: dict[tuple[str, ...], int] = {}
    members: list[list[tuple[Row, ArmSummary]]] = []
    rows = []
    for run in runs:
        rates = {arm.name: arm.rate(len(run.prompts)) for arm in run.arms}
        for arm in run.arms:
            if not arm.compares or arm.compared.baseline not in rates or (arms and arm.name not in arms):
                continue
            place = numbers.setdefault((arm.name, run.machine, arm.setting), len(numbers))
            row = Row(
                **{name: getattr(run, name) for name in OF_RUN},
                **{name: getattr(arm, name) for name in OF_ARM},
                engine=engines[arm.build],
                arm=arm.name,
                series=place,
                rate=rates[arm.name],
                baseline_rate=rates[arm.compared.baseline],
                untested=_untested(run, arm),
            )
            rows.append(row)
            members += [[]] if place == len(members) else []
            members[place].append((row, arm))
    several = sum(sum(row.untested is None for row, _ in of_it) > 1 for of_it in members)
    return rows, [_series(of_it, max(1, several)) for of_it in members]


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


def _series(members: Sequence[tuple[Row, ArmSummary]], claims: int) -> Series:
    rows = [row for row, _ in members]
    tested = [row for row in rows if row.untested is None]
    builds = {build: number for number, build in enumerate(dict.fromkeys(row.build for row in tested))}
    of_build = np.array([builds[row.build] for row in tested], dtype=np.int64)
    logs = np.log(np.array([row.speedup for row in tested], dtype=np.float64))
    variances = run_variances([block_variance(arm.by_block) for row, arm in members if row.untested is None])
    noise = find_noise(logs, variances, of_build)
    splits = find_steps(logs, variances, noise, claims) if noise else []
    latest = len(list(takewhile(lambda row: row.build == tested[-1].build, reversed(tested))))
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


def read_summaries(results: Path) -> tuple[list[RunSummary], dict[Path, BenchctlError]]:
    """Return the summaries of all runs below a folder, itself included, and why others cannot be read.

    Hidden folders and what lies in runs are left out. Raises UsageError where there is no such folder.
    """
    if not results.is_dir():
        raise UsageError("There is no such folder.", where=str(results), fix="Name a folder of runs, such as results/.")
    folders = []
    for folder, inner, files in os.walk(results):
        if MANIFEST in files:
            folders.append(Path(folder))
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
    unreadable: dict[Path, BenchctlError] = {}
    return summaries_of(folders, judge, unreadable), unreadable
