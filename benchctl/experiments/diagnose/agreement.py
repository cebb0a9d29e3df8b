"""What a diagnosis predicts beside what a run measured of the same drafts: the same target, draft and speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchctl.analysis.result import Result
from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.analysis.statistics import pearson
from benchctl.data.manifest import Manifest
from benchctl.data.store import MANIFEST, open_run, read_manifest
from benchctl.errors import BenchctlError
from benchctl.experiments.diagnose.judge import DraftDiagnosis
from benchctl.experiments.diagnose.stored import Diagnosis
from benchctl.lossless.analysed import analyse_run


class Predicted(Result):
    """An arm of the run. `None`: not predicted, or not measured."""

    draft: str
    arm: str
    depth: int
    temperature: float
    tokens: float | None
    """A round; 1 + α(1) + … + α(k)."""
    tokens_measured: float | None
    speedup: float | None
    speedup_measured: float | None


class Agreement(Result):
    """A diagnosis beside a run."""

    run: str
    arms: list[Predicted]
    tokens_r: float | None
    """Pearson's r of predicted and measured, over the arms."""
    speedup_r: float | None


def agreement_of(folder: Path, found: Diagnosis, drafts: Sequence[DraftDiagnosis]) -> Agreement | None:
    """Return the diagnosis beside the newest run of its recipe that measured any of its drafts; `None`: there is none.

    `folder`: the diagnosis's own, `<out>/<recipe>/diagnosis/<id>`.
    """
    named = _drafts_by_identity(found.manifest, drafts)
    for file in sorted(folder.resolve().parent.parent.glob(f"*/{MANIFEST}"), reverse=True):
        try:
            if named.keys() & set(_identities(read_manifest(file.parent)).values()):
                run = open_run(file.parent)
                return _beside(run.manifest or found.manifest, analyse_run(run), named)
        except BenchctlError:
            continue  # a run that cannot be read says nothing
    return None


def _identities(manifest: Manifest) -> dict[str, str]:
    """Return what decides how an arm drafts, by the arm's name; of the arms that speculate one request at a time."""
    compared = manifest.compared()
    return {
        arm.name: json.dumps(
            [arm.speculation, row.engine, *(model and model.identity for model in (row.target, row.draft))]
        )
        for arm in manifest.arms
        if arm.speculation and (row := compared[arm.name]).group.one_at_a_time and row.group.context_length is None
    }


def _drafts_by_identity(manifest: Manifest, drafts: Sequence[DraftDiagnosis]) -> dict[str, DraftDiagnosis]:
    identities, of = _identities(manifest), {arm.name: arm.of for arm in manifest.arms}
    return {
        identity: draft
        for draft in drafts
        for name, identity in identities.items()
        if name in draft.arms or of[name] in draft.arms
    }


def _beside(manifest: Manifest, analysis: Analysis, named: Mapping[str, DraftDiagnosis]) -> Agreement:
    arms = list(_predicted(manifest, analysis, named))
    tokens = [(arm.tokens, arm.tokens_measured) for arm in arms]
    speedups = [(arm.speedup, arm.speedup_measured) for arm in arms]
    return Agreement(run=analysis.run, arms=arms, tokens_r=_r(tokens), speedup_r=_r(speedups))


def _r(points: Sequence[tuple[float | None, float | None]]) -> float | None:
    return pearson([(x, y) for x, y in points if x is not None and y is not None])


def _predicted(manifest: Manifest, analysis: Analysis, named: Mapping[str, DraftDiagnosis]) -> Iterator[Predicted]:
    lengths = {row.arm: row.acceptance_length for row in analysis.acceptance if row.task == ALL_TASKS}
    speedups = {row.arm: row.pooled for row in analysis.speedups if row.task == ALL_TASKS}
    speculation = {arm.name: arm.speculation or {} for arm in manifest.arms}
    for name, identity in _identities(manifest).items():
        draft, temperature = named.get(identity), analysis.compared[name].group.temperature
        for payoff in draft.payoff if draft else ():
            if draft and (payoff.depth, payoff.temperature) == (speculation[name].get("max"), temperature):
                yield Predicted(
                    draft=draft.draft,
                    arm=name,
                    depth=payoff.depth,
                    temperature=temperature,
                    tokens=payoff.measured_tokens,
                    tokens_measured=lengths.get(name),
                    speedup=payoff.speedup_measured,
                    speedup_measured=speedups.get(name),
                )
