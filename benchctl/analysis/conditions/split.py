"""Split a run into parts (one engine, target, length of prompts and of answers each) and parts into conditions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchctl.analysis.conditions.results import Dimension, Level
from benchctl.analysis.results import Analysis
from benchctl.data.manifest import ArmIdentity, Manifest, SetupIdentity
from benchctl.data.record import Record
from benchctl.data.store import RunData
from benchctl.recipes.groups import ComparedArm, GroupKey


def parts_of(run: RunData) -> list[RunData]:
    """Return the parts of a run, in the recipe's order; the run itself if it has one part only."""
    manifest = run.manifest
    if manifest is None:
        return [run]
    compared = manifest.compared()
    arms: dict[str | None, list[ArmIdentity]] = defaultdict(list)
    for arm in manifest.arms:
        arms[compared[arm.name].group.part].append(arm)
    if len(arms) < 2 and not manifest.setups:
        return [run]
    drafts = {setup.name: setup.draft for setup in manifest.setups}
    part_by_arm = {arm.name: name for name, arms_of_part in arms.items() for arm in arms_of_part}
    records: dict[str | None, list[Record]] = defaultdict(list)
    for record in run.records:
        if record.label in part_by_arm:
            records[part_by_arm[record.label]].append(record)
    return [
        replace(
            run,
            manifest=_manifest_of_part(manifest, arms_of_part, compared[arms_of_part[0].name].baseline),
            records=records[name],
            damaged=run.damaged if number == 0 else [],  # so that damaged lines are not counted twice
            drafts={arm.name: drafts[arm.setup] for arm in arms_of_part if arm.setup in drafts},
            part=name,
            scores=run.of_parts.get(name or ""),
            of_parts={},
        )
        for number, (name, arms_of_part) in enumerate(arms.items())
    ]


def _manifest_of_part(manifest: Manifest, arms: Iterable[ArmIdentity], baseline: str) -> Manifest:
    """Return the manifest of a part, as if it were all there is."""
    arms_by_name = {arm.name: arm for arm in arms}
    used = {arm.setup for arm in arms_by_name.values()}
    setups = [setup for setup in manifest.setups if setup.name in used]
    update: dict[str, Any] = {
        "arms": list(arms_by_name.values()),
        "cells": [cell for cell in manifest.cells if cell.arm in arms_by_name],
        "baseline": baseline,
        "setups": [],
        "recipe": _recipe_of_part(manifest.recipe, arms_by_name, setups, baseline),
    }
    if manifest.machines:  # each measured its own blocks, which are numbered without a gap
        update["blocks"] = len({cell.block for cell in update["cells"]})
    if setups:
        update |= {"engine": setups[0].engine, "target": setups[0].target}
        update["draft"] = next((setup.draft for setup in setups if setup.draft is not None), None)
    return manifest.model_copy(update=update)


def _recipe_of_part(
    recipe: dict[str, Any], arms_by_name: dict[str, ArmIdentity], setups: list[SetupIdentity], baseline: str
) -> dict[str, Any]:
    """Return the recipe of a part: its setup's engine and models, its arms."""
    arms = [
        {**arm, "setup": None, "group": None}
        for arm in recipe.get("arms") or []
        if isinstance(arm, dict) and arm.get("name") in arms_by_name
    ]
    names = {setup.name for setup in setups}
    matching_setups = (setup for setup in recipe.get("setups") or [] if setup.get("name") in names)
    document: dict[str, Any] = next(matching_setups, {})
    setup_keys: dict[str, Any] = {key: document[key] for key in ("engine", "models") if key in document}
    longest = next((arm.max_tokens for arm in arms_by_name.values()), None)
    sampling = {"sampling": {**(recipe.get("sampling") or {}), "max_tokens": longest}} if longest else {}
    return {**recipe, **setup_keys, **sampling, "arms": arms, "setups": [], "baseline": baseline}


@dataclass(frozen=True)
class ConditionRun:
    """A condition's arms as a run of their own, whose baseline is the condition's."""

    run: RunData
    baseline: str | None
    """`None`: the run's own."""
    key: GroupKey | None = None
    """`None` where there is a single condition, of a request at a time."""
    overlapping: bool = False
    """Whether the engine may have worked on several requests at once. At concurrency 1 it works on one request, and
    those that arrive meanwhile wait. An endpoint with a request rate counts as overlapping, since its limit is unknown.
    """
    sampled: bool = False
    """Whether its answers are drawn at random, while another condition's are greedy and come by themselves."""

    @property
    def judged(self) -> bool:
        """Whether losslessness is assessed by its answers."""
        return not (self.overlapping or self.sampled)


def split(run: RunData, baseline: str | None = None) -> list[ConditionRun]:
    """Return the run's conditions; the run itself where nothing is varied.

    `baseline`: an arm's name without its condition.
    """
    if run.manifest is None:
        return [ConditionRun(run, baseline)]
    compared = run.manifest.compared(baseline)
    parts = parts_of(run)
    return [group for part in parts for group in _split(part, compared, baseline, several=len(parts) > 1)]


def _split(
    run: RunData, compared: Mapping[str, ComparedArm], baseline: str | None, *, several: bool
) -> list[ConditionRun]:
    """Return the conditions of a part; `several`: whether there are other parts."""
    manifest = run.manifest
    assert manifest is not None
    if not (several or dimensions(manifest)):
        return [ConditionRun(run, compared[manifest.arms[0].name].baseline if baseline and manifest.arms else baseline)]
    by_condition: dict[GroupKey, list[ComparedArm]] = {}
    for arm in manifest.arms:
        by_condition.setdefault(compared[arm.name].group, []).append(compared[arm.name])
    in_order = sorted(by_condition, key=lambda key: (key.temperature, key.rate or 0.0, key.concurrency))
    groups = [_condition_run(run, manifest, key, by_condition[key], first=key == in_order[0]) for key in in_order]
    if any(is_greedy(group.run.manifest) and not group.overlapping for group in groups):
        groups = [replace(group, sampled=not is_greedy(group.run.manifest)) for group in groups]
    return groups


def is_greedy(manifest: Manifest | None) -> bool:
    """Whether the recipe selects the likeliest token every time; a study without a manifest is assumed to."""
    sampling = (manifest.recipe if manifest else {}).get("sampling") or {}
    return sampling.get("temperature", 0) == 0 or sampling.get("top_k") == 1


def dimensions(manifest: Manifest) -> list[Dimension]:
    """Return what varies, or differs from one request at a time."""
    groups = {arm.group for arm in manifest.compared().values()}
    varied: dict[Dimension, bool] = {
        "concurrency": any(key.concurrency > 1 for key in groups),
        "rate": any(key.rate is not None for key in groups),
        "temperature": len({key.temperature for key in groups}) > 1,
        "context_length": len({key.context_length for key in groups}) > 1,
        "max_tokens": len({key.max_tokens for key in groups}) > 1,
    }
    return [name for name in varied if varied[name]]


def _condition_run(
    run: RunData, manifest: Manifest, key: GroupKey, arms: Sequence[ComparedArm], *, first: bool
) -> ConditionRun:
    names = {arm.name for arm in arms}
    sampling = {**(manifest.recipe.get("sampling") or {}), "temperature": key.temperature}
    updates = {
        "arms": [arm for arm in manifest.arms if arm.name in names],
        "cells": [cell for cell in manifest.cells if cell.arm in names],
        "baseline": arms[0].baseline,
        "recipe": {**manifest.recipe, "sampling": sampling},
    }
    condition_run = replace(
        run,
        manifest=manifest.model_copy(update=updates),
        records=[record for record in run.records if record.label in names],
        damaged=run.damaged if first else [],  # so that damaged lines are not counted twice
    )
    endpoint = any(arm.url is not None for arm in manifest.arms)
    overlapping = key.concurrency > 1 or (key.rate is not None and endpoint)
    return ConditionRun(condition_run, arms[0].baseline, key, overlapping)


def closed_levels(analysis: Analysis) -> list[Level]:
    """The levels of a closed loop, of a run with several requests at once."""
    if analysis.sweep is None or "concurrency" not in analysis.sweep.dimensions:
        return []
    return [row for row in analysis.sweep.levels if row.rate is None]


def open_levels(analysis: Analysis) -> list[Level]:
    """The levels of an open loop."""
    return [row for row in analysis.sweep.levels if row.rate is not None] if analysis.sweep else []
