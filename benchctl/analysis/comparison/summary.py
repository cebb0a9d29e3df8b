"""The summary of a run for comparing many: small enough to be saved beside the run, so that it is made once.

What is saved is valid as long as no file of the run changes. Times and answers are arrays by block and prompt.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchctl import __version__
from benchctl.analysis.analyse import Judge, analyse
from benchctl.analysis.answers import find_answers
from benchctl.analysis.cells import axes_of, identity_of, setup_of
from benchctl.analysis.frame import Frame, make_frame
from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.analysis.statistics import level_for
from benchctl.data.integrity import DIGESTS
from benchctl.data.manifest import Manifest, SetupIdentity
from benchctl.data.scores import OLDER, SCORES
from benchctl.data.store import MANIFEST, RECORDS, RunData, open_run
from benchctl.errors import BenchctlError, UsageError
from benchctl.recipes.groups import ComparedArm

Value = TypeVar("Value")
Found = TypeVar("Found")
SUMMARY = ".summary"
_OF_THE_RUN = (MANIFEST, RECORDS, DIGESTS)
_SCORED = (SCORES, *OLDER)
_DIGEST = hashlib.sha256().digest_size
SUMMARY_VERSION = f"5 {__version__}"
"""A summary of another version is made again."""
FEW = 4
"""Up to so many runs are read in turn; more of them on several cores."""
ABSENT = 0
"""In place of an answer's number where no sound answer is there."""


class ArmSummary(msgspec.Struct, kw_only=True):
    """An arm of a run."""

    name: str
    compared: ComparedArm
    """What it is compared with, and what it ran on."""
    labels: dict[str, str]
    """On the axes of its recipe."""
    target: str
    draft: str | None
    engine: str
    """Kind, version and build."""
    build: str
    """Digest of all that is recorded of the engine's build: version, commit, its files."""
    types: list[str]
    """How it speculates; none of the target alone."""
    setting: str
    """Digest of what was asked for, for this arm and its baseline, the workload and the engine's build left out."""
    speedup: float | None
    low: float | None
    high: float | None
    by_block: list[float]
    acceptance: float | None
    acceptance_length: float | None
    lossless: str | None
    tokens: bytes
    """float32, blocks by prompts: tokens after the first; NaN where there is no time."""
    seconds: bytes
    """float32: what they took."""
    answers: bytes
    """uint64 a prompt: of the answer that all blocks gave; 0 where they differ, or some is not sound."""

    @property
    def compares(self) -> bool:
        """Whether it is compared with a baseline: neither one, nor a second cell of one."""
        return not (self.compared.is_baseline or self.compared.is_again)

    def array(self, name: str, prompts: int) -> NDArray[np.float64]:
        """Return `tokens` or `seconds` as (blocks, prompts)."""
        return np.frombuffer(getattr(self, name), dtype=np.float32).reshape(-1, prompts).astype(np.float64)

    def rate(self, prompts: int) -> float | None:
        """Return the decode rate over all that was timed, tokens per second."""
        tokens, seconds = (self.array(name, prompts) for name in ("tokens", "seconds"))
        timed = np.isfinite(seconds)
        spent = float(seconds[timed].sum())
        return float(tokens[timed].sum()) / spent if spent else None


class RunSummary(msgspec.Struct, kw_only=True):
    """A run."""

    run: str
    folder: str
    recipe: str
    workload: str | None
    """SHA-256 of prompts, sampling and model files; `None` without a manifest."""
    created_at: str | None
    status: str | None
    blocks: int
    records: int
    level: float
    """Of its intervals: wider where the run ended when they were narrow enough."""
    machine: str
    sampling: dict[str, Any]
    prompts: list[tuple[str, int, str | None]]
    """Task, index and SHA-256 of each."""
    failed_cells: list[str]
    damage: list[str]
    """What is not as it was written."""
    distrust: str | None
    """Why nothing is concluded of it."""
    arms: list[ArmSummary]


def summarise(run: RunData, judge: Judge) -> RunSummary:
    """Return the summary of a run."""
    found, manifest = analyse(run, judge), run.manifest
    frame = make_frame(run.records, manifest, min(found.baselines))
    answers = _answers(frame)
    texts = {(prompt.task, prompt.prompt_idx): prompt.sha256 for prompt in manifest.prompts} if manifest else {}
    return RunSummary(
        run=found.run,
        folder=str(run.folder),
        recipe=found.recipe,
        workload=manifest.workload_sha256 if manifest else None,
        created_at=manifest.created_at if manifest else None,
        status=manifest.status if manifest else None,
        blocks=found.blocks,
        records=found.records,
        level=level_for(manifest),
        machine=_machine(manifest),
        sampling=dict((manifest.recipe if manifest else {}).get("sampling") or {}),
        prompts=[(task, index, texts.get((task, index))) for task, index in frame.prompts],
        failed_cells=found.failed_cells,
        damage=list(run.integrity.findings),
        distrust=run.integrity.reason,
        arms=[_arm(frame, found, manifest, answers, number) for number in range(len(frame.arms))],
    )


def _arm(
    frame: Frame, found: Analysis, manifest: Manifest | None, answers: NDArray[np.uint64], number: int
) -> ArmSummary:
    name = frame.arms[number]
    rows = frame.row_at[number]
    arm = found.compared[name]
    identity = identity_of(manifest, name)
    setup = setup_of(manifest, arm.setup)
    speedup = next((speedup for speedup in found.speedups if speedup.arm == name and speedup.task == ALL_TASKS), None)
    accepted = next((row for row in found.acceptance if row.arm == name and row.task == ALL_TASKS), None)
    lossless = next((row for row in found.losslessness if row.arm == name), None)
    interval = speedup.interval if speedup else None
    of: SetupIdentity | Manifest | None = setup or manifest
    return ArmSummary(
        name=name,
        compared=arm,
        labels=axes_of(manifest, name),
        target=arm.target.source if arm.target else "not known",
        draft=", ".join([arm.draft.source, *(sha[:12] for sha in arm.draft.identity)]) if arm.draft else None,
        engine=_engine(of),
        build=_build(of),
        types=list(identity.types) if identity else [],
        setting=_setting(manifest, arm),
        speedup=speedup.pooled if speedup else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        by_block=list(speedup.by_block) if speedup else [],
        acceptance=accepted.rate if accepted else None,
        acceptance_length=accepted.acceptance_length if accepted else None,
        lossless=lossless.verdict if lossless else None,
        tokens=np.append(frame.decoded, np.nan)[rows].astype(np.float32).tobytes(),  # what -1 points at: no record
        seconds=np.append(frame.decode_s, np.nan)[rows].astype(np.float32).tobytes(),
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


def _engine(of: SetupIdentity | Manifest | None) -> str:
    if of is None:
        return "not known"
    details = of.engine.details.get("sha256")
    build = of.engine.version or of.engine.build or (str(details)[:12] if details else "")
    return " ".join(filter(None, (of.engine.kind, build)))


def _build(of: SetupIdentity | Manifest | None) -> str:
    engine = of.engine if of else None
    files = [engine.details.get(key) for key in ("sha256", "siblings", "distributions")] if engine else []
    return _digest([engine.kind, engine.version, engine.build, engine.commit, *files] if engine else [])


def _setting(manifest: Manifest | None, arm: ComparedArm) -> str:
    recipe = manifest.recipe if manifest else {}
    engine = {key: value for key, value in (recipe.get("engine") or {}).items() if key != "binary"}
    of_recipe = manifest.recipe_arms if manifest else {}
    own = [{**of_recipe.get(name, {}), "name": None} for name in (arm.name, arm.baseline)]
    models = [model.identity for model in (arm.target, arm.draft) if model is not None]
    return _digest([engine, own, models, list(vars(arm.group).values()), recipe.get("schedule")])


def _digest(facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]


def summaries_of(
    paths: Sequence[Path], judge: Judge, unreadable: dict[Path, BenchctlError] | None = None
) -> list[RunSummary]:
    """Return the summaries of runs, making those that are not stored, on all cores. Raises UsageError, StorageError.

    `unreadable`: takes the runs that cannot be read, which are then left out instead.
    """
    places = [path.resolve() for path in paths]
    twice = [path for number, path in enumerate(paths) if places[number] in places[:number]]
    if twice:
        raise UsageError("This run is named twice.", where=str(twice[0]), fix="Name every run once.")
    kept: dict[Path, bytes | BenchctlError | None] = {path: kept_summary(path, SUMMARY_VERSION) for path in paths}
    lacking = [path for path, summary in kept.items() if summary is None]
    kept |= dict(zip(lacking, on_all_cores(partial(_made, judge=judge), lacking), strict=True))
    decoder = msgspec.msgpack.Decoder(RunSummary)
    found = []
    for path in paths:
        summary = kept[path]
        if isinstance(summary, BenchctlError):
            if unreadable is None:
                raise summary
            unreadable[path] = summary
        else:
            read = decoder.decode(summary or b"")
            found.append(msgspec.structs.replace(read, folder=str(path)) if path.is_dir() else read)
    return found


def on_all_cores(function: Callable[[Value], Found], values: Sequence[Value]) -> list[Found]:
    """Return what a function makes of each value, which other processes can import; of up to `FEW` in this process."""
    if len(values) <= FEW:
        return list(map(function, values))
    workers = min(os.cpu_count() or 1, len(values))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(function, values, chunksize=4))


def _made(path: Path, judge: Judge) -> bytes | BenchctlError:
    """Summarise a run and store the summary beside it; a bare JSONL file has no folder for it."""

    def make() -> bytes:
        return msgspec.msgpack.encode(summarise(open_run(path), judge))

    try:
        return keep_summary(path, SUMMARY_VERSION, make) if path.is_dir() else make()
    except BenchctlError as error:
        return error


def fingerprint(run: Path, version: str) -> bytes:
    """Return a line that changes when a file of the run, or `version` of the summary, does."""
    names = [*_OF_THE_RUN, *(file.name for stem in _SCORED for file in run.glob(f"{stem.partition('.')[0]}*.json"))]
    stamps = []
    for name in sorted(names):
        with contextlib.suppress(OSError):
            status = (run / name).stat()
            stamps.append(f"{name} {status.st_size} {status.st_mtime_ns}")
    return "; ".join([version, *stamps]).encode() + b"\n"


def kept_summary(run: Path, version: str) -> bytes | None:
    """Return the summary that is kept beside a run; `None` where there is none of the run as it is."""
    try:
        found = (run / SUMMARY).read_bytes()
    except OSError:
        return None
    first, rest = fingerprint(run, version), found[_DIGEST:]
    whole = found.startswith(hashlib.sha256(rest).digest()) and rest.startswith(first)
    return rest[len(first) :] if whole else None


def keep_summary(run: Path, version: str, make: Callable[[], bytes]) -> bytes:
    """Make a summary and keep it beside the run, where that can be written."""
    first = fingerprint(run, version)
    made = make()
    temporary = run / f"{SUMMARY}.{os.getpid()}"
    try:
        temporary.write_bytes(hashlib.sha256(first + made).digest() + first + made)
        temporary.replace(run / SUMMARY)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return made
