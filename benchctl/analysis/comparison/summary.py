"""Makes the summary of a run for comparing many. Times and answers are arrays by block and prompt."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.analyse import Judge, analyse
from benchctl.analysis.answers import find_answers
from benchctl.analysis.cells import axes_of, identity_of, setup_of
from benchctl.analysis.frame import Frame, make_frame
from benchctl.analysis.results import Analysis
from benchctl.analysis.speed_table import rate_table
from benchctl.analysis.statistics import level_for
from benchctl.data.manifest import Manifest, SetupIdentity
from benchctl.data.store import RunData, open_run
from benchctl.data.summary import ArmSummary, CacheEntry, RunSummary, keep_summary, look_up
from benchctl.errors import BenchctlError, UsageError
from benchctl.recipes.groups import ComparedArm

Result = TypeVar("Result")
FEW = 4
"""Up to so many runs are read in turn; more of them on several cores."""
ABSENT = 0
"""Stands for an answer that is missing or not sound."""


def summarise(run: RunData, judge: Judge) -> RunSummary:
    """Return the summary of a run."""
    analysis, manifest = analyse(run, judge), run.manifest
    frame = make_frame(run.records, manifest, min(analysis.baselines))
    answers = _answers(frame)
    texts = {(prompt.task, prompt.prompt_idx): prompt.sha256 for prompt in manifest.prompts} if manifest else {}
    return RunSummary(
        run=analysis.run,
        folder=str(run.folder),
        recipe=analysis.recipe,
        workload=manifest.workload_sha256 if manifest else None,
        created_at=manifest.created_at if manifest else None,
        status=manifest.status if manifest else None,
        blocks=analysis.blocks,
        records=analysis.records,
        level=level_for(manifest),
        machine=_machine(manifest),
        sampling=dict((manifest.recipe if manifest else {}).get("sampling") or {}),
        prompts=[(task, index, texts.get((task, index))) for task, index in frame.prompts],
        failed_cells=analysis.failed_cells,
        damage=list(run.integrity.findings),
        distrust=run.integrity.reason,
        arms=[_arm(frame, analysis, manifest, answers, number) for number in range(len(frame.arms))],
    )


def _arm(
    frame: Frame, analysis: Analysis, manifest: Manifest | None, answers: NDArray[np.uint64], number: int
) -> ArmSummary:
    name = frame.arms[number]
    table = rate_table(frame, number)
    arm = analysis.compared[name]
    identity = identity_of(manifest, name)
    setup = setup_of(manifest, arm.setup)
    speedup, accepted = analysis.speedup_of(name), analysis.acceptance_of(name)
    lossless = analysis.losslessness_of(name)
    interval = speedup.interval if speedup else None
    setup_or_run: SetupIdentity | Manifest | None = setup or manifest
    return ArmSummary(
        name=name,
        compared=arm,
        labels=axes_of(manifest, name),
        target=arm.target.source if arm.target else "not known",
        draft=", ".join([arm.draft.source, *(sha[:12] for sha in arm.draft.identity)]) if arm.draft else None,
        engine=_engine(setup_or_run),
        build=_build(setup_or_run),
        types=list(identity.types) if identity else [],
        setting=_setting(manifest, arm),
        speedup=speedup.pooled if speedup else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        by_block=list(speedup.by_block) if speedup else [],
        acceptance=accepted.rate if accepted else None,
        acceptance_doubt=accepted.doubt if accepted else None,
        acceptance_length=accepted.acceptance_length if accepted else None,
        lossless=lossless.verdict if lossless else None,
        tokens=table.tokens.astype(np.float32).tobytes(),
        seconds=table.seconds.astype(np.float32).tobytes(),
        answers=answers[number].tobytes(),
    )


def _answers(frame: Frame) -> NDArray[np.uint64]:
    """Return the number of each arm's answer to each prompt, (arms, prompts)."""
    sound = find_answers(frame).sound
    numbers = np.array(
        [
            int((record.token_sha or record.content_sha or "0")[:16], 16) if sound[row] else ABSENT
            for row, record in enumerate(frame.records)
        ]
        + [ABSENT],  # what -1 points at: no record
        dtype=np.uint64,
    )
    by_block = numbers[frame.row_at]
    return np.where((by_block == by_block[:, :1]).all(axis=1), by_block[:, 0], np.uint64(ABSENT))


def _machine(manifest: Manifest | None) -> str:
    machine = manifest.machine if manifest else {}
    accelerators = [
        str(device.get("name", device) if isinstance(device, dict) else device)
        for device in machine.get("accelerators") or []
    ]
    return ", ".join([str(machine.get("cpu") or "not known"), *accelerators])


def _engine(setup: SetupIdentity | Manifest | None) -> str:
    if setup is None:
        return "not known"
    details = setup.engine.details.get("sha256")
    build = setup.engine.version or setup.engine.build or (str(details)[:12] if details else "")
    return " ".join(filter(None, (setup.engine.kind, build)))


def _build(setup: SetupIdentity | Manifest | None) -> str:
    engine = setup.engine if setup else None
    files = [engine.details.get(key) for key in ("sha256", "siblings", "distributions")] if engine else []
    return _digest([engine.kind, engine.version, engine.build, engine.commit, *files] if engine else [])


def _setting(manifest: Manifest | None, arm: ComparedArm) -> str:
    recipe = manifest.recipe if manifest else {}
    engine = {key: value for key, value in (recipe.get("engine") or {}).items() if key != "binary"}
    of_recipe = manifest.recipe_arms if manifest else {}
    arms = [{**of_recipe.get(name, {}), "name": None} for name in (arm.name, arm.baseline)]
    models = [model.identity for model in (arm.target, arm.draft) if model is not None]
    return _digest([engine, arms, models, list(vars(arm.group).values()), recipe.get("schedule")])


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def summaries_of(paths: Sequence[Path], judge: Judge) -> list[RunSummary]:
    """Return the summaries of runs, made on all cores where the cache lacks them. Raises BenchctlError."""
    folders = [path.resolve() for path in paths]
    twice = [path for index, path in enumerate(paths) if folders[index] in folders[:index]]
    if twice:
        raise UsageError("This run is named twice.", where=str(twice[0]), fix="Name every run once.")
    summaries = []
    for summary in summaries_or_errors(paths, judge):
        if isinstance(summary, BenchctlError):
            raise summary
        summaries.append(summary)
    return summaries


def summaries_or_errors(paths: Sequence[Path], judge: Judge) -> list[RunSummary | BenchctlError]:
    """Return the summary of each run, or the error of a run that cannot be read."""
    return complete(list(map(look_up, paths)), judge)


def complete(entries: Sequence[CacheEntry], judge: Judge) -> list[RunSummary | BenchctlError]:
    """Return the summary of each run that was looked up in the cache, made where that has none, or its error."""
    computed = iter(on_all_cores(_made, [(entry, judge) for entry in entries if entry.summary is None]))
    return [next(computed) if entry.summary is None else entry.summary for entry in entries]


def on_all_cores(function: Callable[..., Result], calls: Sequence[tuple[Any, ...]]) -> list[Result]:
    """Call a function that other processes can import with each tuple of arguments; up to `FEW` in this process."""
    if len(calls) <= FEW:
        return [function(*arguments) for arguments in calls]
    workers = min(os.cpu_count() or 1, len(calls))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, *zip(*calls, strict=True), chunksize=4))


def _made(entry: CacheEntry, judge: Judge) -> RunSummary | BenchctlError:
    """Summarise a run and keep the summary in the cache."""
    try:
        summary = summarise(open_run(entry.run), judge)
    except BenchctlError as error:
        return error
    if entry.digest is not None:
        keep_summary(entry.digest, summary)
    return summary
