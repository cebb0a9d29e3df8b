"""A run by what its target computes: each part has one engine, one target, one length of prompts, and its own baseline.

What is found in a part is found as in a run without axes, and scored on that part's own target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from benchctl.data.manifest import ArmIdentity, Manifest, SetupIdentity
from benchctl.data.record import Record
from benchctl.data.store import RunData


def parts_of(run: RunData) -> list[RunData]:
    """Return the parts of a run, in the recipe's order; the run itself where nothing of this varies."""
    manifest = run.manifest
    if manifest is None:
        return [run]
    compared = manifest.compared()
    arms: dict[str | None, list[ArmIdentity]] = defaultdict(list)
    for arm in manifest.arms:
        arms[compared[arm.name].group.part].append(arm)
    if len(arms) < 2 and not manifest.setups:
        return [run]
    part_of = {arm.name: name for name, own in arms.items() for arm in own}
    records: dict[str | None, list[Record]] = defaultdict(list)
    for record in run.records:
        if record.label in part_of:
            records[part_of[record.label]].append(record)
    found = []
    for number, (name, own) in enumerate(arms.items()):
        scored = run.of_parts.get(name or "", (None, None))
        found.append(
            replace(
                run,
                manifest=_manifest(manifest, own, compared[own[0].name].baseline),
                records=records[name],
                damaged=run.damaged if number == 0 else [],  # listed once
                part=name,
                replays=scored[0],
                audit=scored[1],
                of_parts={},
            )
        )
    return found


def _manifest(manifest: Manifest, arms: Iterable[ArmIdentity], baseline: str) -> Manifest:
    """Return the manifest of a part, as if it were all there is."""
    own = {arm.name: arm for arm in arms}
    used = {arm.setup for arm in own.values()}
    setups = [setup for setup in manifest.setups if setup.name in used]
    update: dict[str, Any] = {
        "arms": list(own.values()),
        "cells": [cell for cell in manifest.cells if cell.arm in own],
        "baseline": baseline,
        "setups": [],
        "recipe": _recipe(manifest.recipe, own, setups, baseline),
    }
    if manifest.machines:  # each measured its own blocks, which are numbered without a gap
        update["blocks"] = len({cell.block for cell in update["cells"]})
    if setups:
        update |= {"engine": setups[0].engine, "target": setups[0].target}
        update["draft"] = next((setup.draft for setup in setups if setup.draft is not None), None)
    return manifest.model_copy(update=update)


def _recipe(
    recipe: dict[str, Any], own: dict[str, ArmIdentity], setups: list[SetupIdentity], baseline: str
) -> dict[str, Any]:
    """Return the recipe of a part: its setup's engine and models, its arms."""
    arms = [
        {**arm, "setup": None, "group": None}
        for arm in recipe.get("arms") or []
        if isinstance(arm, dict) and arm.get("name") in own
    ]
    names = {setup.name for setup in setups}
    document: dict[str, Any] = next((own for own in recipe.get("setups") or [] if own.get("name") in names), {})
    of_setup: dict[str, Any] = {key: document[key] for key in ("engine", "models") if key in document}
    return {**recipe, **of_setup, "arms": arms, "setups": [], "baseline": baseline}
