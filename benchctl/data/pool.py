"""Evidence that is judged together: a run with what was asked after it, and several runs of one workload.

Verdicts on the output alone are computed of it, never a speed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from benchctl.data.cell import Cell
from benchctl.data.integrity import Integrity
from benchctl.data.manifest import ArmIdentity, FurtherPrompts, Manifest, PromptIdentity
from benchctl.data.record import SCHEMA_VERSION, Record, RecordError
from benchctl.data.scores import TargetScores, join_scores
from benchctl.data.store import RunData
from benchctl.errors import UsageError
from benchctl.text import listed

MISSING = "missing"
"""`RecordError.kind` of an answer that should be there and is not."""
_UNTIMED: dict[str, None] = dict.fromkeys(
    ("tok_per_sec", "client_tok_per_sec", "client_tok_per_sec_least", "prompt_per_sec", "ttft_s", "decode_s", "e2e_s")
)


def with_further(run: RunData) -> RunData:
    """Return a run with the answers of `verify-lossless --more`; the run itself where it has none.

    They are all of one block behind the run's own; each time of asking is an attempt. A prompt that the baseline could
    not answer, such as one that is longer than its context, is left out.
    """
    manifest = run.manifest
    if manifest is None or manifest.further is None or not run.further or run.pooled:
        return run
    baseline_of, block = {name: arm.baseline for name, arm in manifest.compared().items()}, max(1, manifest.blocks)
    answers = [record for record in run.further if record.phase == "measure" and record.label in baseline_of]
    answered = {_asked_of(record, record.label) for record in answers if record.error is None}
    answers = [record for record in answers if _asked_of(record, baseline_of[record.label]) in answered]
    asked = {(record.task, record.prompt_idx) for record in answers}
    further = [prompt for prompt in manifest.further.prompts if (prompt.task, prompt.prompt_idx) in asked]
    sessions = sorted({cell.block for cell in manifest.further.cells})
    cells = [
        cell.model_copy(update={"block": block + sessions.index(cell.block)})
        for cell in manifest.further.cells
        if cell.arm in baseline_of
    ]
    update: dict[str, Any] = {
        "prompts": [*manifest.prompts, *further],
        "cells": [*manifest.cells, *cells],
        "decided": {},
    }
    records = [
        *_complete(run, manifest),
        *(r.changed(block=block, rep=block, attempt=r.block, **_UNTIMED) for r in answers),
    ]
    return replace(run, manifest=manifest.model_copy(update=update), records=records, further=(), pooled=True)


def _asked_of(record: Record, arm: str) -> tuple[str, str, int]:
    return arm, record.task, record.prompt_idx


def _complete(run: RunData, manifest: Manifest) -> list[Record]:
    """Return a run's records, with a failed one for every answer that should be there and is not."""
    there, ended = {record.key for record in run.records if record.phase == "measure"}, manifest.ended()
    begun = max(1, manifest.blocks, *(key[0] + 1 for key in there))
    error = RecordError(kind=MISSING, message="there is no record")
    return [
        *run.records,
        *(
            Record(label=arm.name, task=prompt.task, prompt_idx=prompt.prompt_idx, rep=block,
                   schema_version=SCHEMA_VERSION, run=manifest.run, block=block, error=error)
            for arm in manifest.arms
            for block in range(min(begun, ended.get(arm.name, begun)))
            for prompt in manifest.prompts
            if (block, arm.name, prompt.task, prompt.prompt_idx) not in there
        ),
    ]  # fmt: skip


def pooled(runs: Sequence[RunData]) -> RunData:
    """Return runs of one workload as a single run, whose blocks follow each other. Raises UsageError for unlike ones.

    What was asked after each is part of it. Scores of another engine or model than its run's are left out.
    """
    first = runs[0]
    for number, run in enumerate(runs):
        _must_be_like(run, first, named={earlier.name for earlier in runs[:number]})
    records, cells, prompts, block = list[Record](), list[Cell](), dict[tuple[str, int], PromptIdentity](), 0
    further = FurtherPrompts()
    for run in map(with_further, runs):
        manifest = run.manifest
        assert manifest is not None, "checked above"
        complete = run.records if run.pooled else _complete(run, manifest)
        records += [record.changed(block=block + record.block, rep=block + record.block) for record in complete]
        cells += [cell.model_copy(update={"block": block + cell.block}) for cell in manifest.cells]
        prompts |= {(prompt.task, prompt.prompt_idx): prompt for prompt in manifest.prompts}
        if manifest.further is not None:
            further.prompts += manifest.further.prompts
            asked = manifest.further.cells
            further.cells += [cell.model_copy(update={"block": block + cell.block}) for cell in asked]
        block = 1 + max([record.block for record in records] + [cell.block for cell in (*cells, *further.cells)])
    manifest = first.manifest
    assert manifest is not None, "checked above"
    own_blocks = sum(run.manifest.blocks for run in runs if run.manifest is not None)
    update: dict[str, Any] = {
        "prompts": list(prompts.values()), "cells": cells, "decided": {}, "blocks": own_blocks, "further": further,
    }  # fmt: skip
    return replace(
        first,
        manifest=manifest.model_copy(update=update),
        records=records,
        damaged=[sentence for run in runs for sentence in run.damaged],
        scores=_joined(runs, manifest, lambda run: run.scores),
        of_parts={name: _joined(runs, manifest, partial(_scores_of_part, name)) for name in first.of_parts},
        further=(),
        pooled=True,
        names=[run.name for run in runs] if len(runs) > 1 else (),
        integrity=Integrity(
            all(run.integrity.digests for run in runs),
            tuple(f"{run.name}: {sentence}" for run in runs for sentence in run.integrity.damage),
            tuple(f"{run.name}: {sentence}" for run in runs for sentence in run.integrity.scores),
        ),
    )


def _scores_of_part(name: str, run: RunData) -> TargetScores | None:
    return run.of_parts.get(name)


def _joined(
    runs: Sequence[RunData], manifest: Manifest, scores_of: Callable[[RunData], TargetScores | None]
) -> TargetScores | None:
    """Return all scores of some runs as those of the run of `manifest`, which have its engine and model."""
    scores = [(scores_of(run), run.name) for run in runs]
    usable = [read for read, name in scores if read is not None and read.of(manifest.model_copy(update={"run": name}))]
    joined = join_scores(usable)
    return None if joined is None else joined.model_copy(update={"run": manifest.run})


def _must_be_like(run: RunData, first: RunData, *, named: Collection[str]) -> None:
    """Raise UsageError where a run is not of the workload, engine, machine and arms of the first, or was `named`."""
    ours, theirs = run.manifest, first.manifest
    fix = "Verify each alone."
    if ours is None or theirs is None or ours.machines:
        problem = "Records without a manifest, and runs on a cluster, are not judged together."
        raise UsageError(problem, where=str(run.folder), fix=fix)
    if run.name in named:
        raise UsageError("This run is named twice.", where=str(run.folder), fix="Name each run once.")
    unlike = [
        name
        for name, alike in (
            ("other prompts, sampling or models", ours.workload_sha256 == theirs.workload_sha256),
            ("another engine", _engines(ours) == _engines(theirs)),
            ("another machine", facts_of_rounding(ours.machine) == facts_of_rounding(theirs.machine)),
            ("another baseline", ours.baseline == theirs.baseline),
            ("other arms or settings of an arm", _arms(ours) == _arms(theirs)),
        )
        if not alike
    ]
    if unlike:
        what = f"It has {listed(unlike)} than {first.name}, so they are not judged together."
        raise UsageError(what, where=str(run.folder), fix=fix)


def facts_of_rounding(machine: Mapping[str, Any]) -> list[object]:
    """Return what of a machine's facts (`benchctl.machine.describe`) decides how answers are rounded."""
    devices = [(device.get("name"), device.get("driver")) for device in machine.get("accelerators") or []]
    return [machine.get("cpu"), machine.get("architecture"), devices]


def without_paths(words: Iterable[str]) -> list[str]:
    """Return the words of a command line without those that name a file."""
    return [word for word in words if "/" not in word]


def _engines(manifest: Manifest) -> list[object]:
    """Return the builds of a run: their hashes, or where they have none what they report of themselves."""
    engines = [setup.engine for setup in manifest.setups] or [manifest.engine]
    return [
        (engine.kind, engine.version, engine.details.get("sha256"), engine.details.get("siblings"))
        for engine in engines
    ]


def _arms(manifest: Manifest) -> dict[str, object]:
    """Return the setting of every arm by its name, without where its files lie."""
    return {arm.name: _setting(arm) for arm in manifest.arms}


def _setting(arm: ArmIdentity) -> list[object]:
    named = arm.model_dump(include={"speculation", "context_length", "concurrency", "rate", "temperature", "url"})
    return [named, without_paths(arm.argv), without_paths(arm.env)]
