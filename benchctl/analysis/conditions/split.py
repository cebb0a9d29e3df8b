"""A run by condition: the arms that ran at the same concurrency, rate and temperature, with their own baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from benchctl.analysis.conditions.parts import parts_of
from benchctl.analysis.conditions.results import Dimension, Level
from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis, SpeedUp
from benchctl.data.manifest import ArmIdentity, Manifest
from benchctl.data.store import RunData


class Condition(NamedTuple):
    """What every arm of a group has in common."""

    temperature: float
    rate: float | None
    concurrency: int
    context_length: int | None = None
    group: str | None = None
    """Of setups that compute the target alike; `None` where the recipe has no axes."""

    @property
    def one_at_a_time(self) -> bool:
        """Whether a request is sent when the one before it has been answered, so that it waits for none."""
        return self.concurrency == 1 and self.rate is None


@dataclass(frozen=True)
class Group:
    """A condition's arms as a run of their own, whose baseline is the condition's."""

    run: RunData
    baseline: str | None
    """`None`: the run's own."""
    condition: Condition | None = None
    """`None` where there is only one, of one request at a time."""
    overlapping: bool = False
    """Whether the engine may have worked on several requests at once. At concurrency 1 it works on one, and lets those
    that arrive meanwhile wait, unless it is an endpoint, whose limit is not known."""
    sampled: bool = False
    """Whether its answers are drawn at random, while another condition's are greedy and one at a time."""

    @property
    def judged(self) -> bool:
        """Whether losslessness is assessed by its answers."""
        return not (self.overlapping or self.sampled)


def split(run: RunData, baseline: str | None = None) -> list[Group]:
    """Return the run's conditions; the run itself where nothing is varied. `baseline`: an arm, under any condition."""
    recipe_baseline = recipe_arm(run.manifest, baseline) if baseline else None
    parts = parts_of(run)
    return [group for part in parts for group in _split(part, recipe_baseline, several=len(parts) > 1)]


def _split(run: RunData, baseline: str | None, *, several: bool) -> list[Group]:
    """Return the conditions of a part; `several`: whether there are other parts."""
    manifest = run.manifest
    if manifest is None or not (several or dimensions(manifest)):
        return [Group(run, baseline)]
    recipe_baseline = recipe_arm(manifest, baseline or manifest.baseline)
    found: dict[Condition, list[ArmIdentity]] = {}
    for arm in manifest.arms:
        found.setdefault(condition_of(manifest, arm), []).append(arm)
    in_order = sorted(found, key=lambda one: (one.temperature, one.rate or 0.0, one.concurrency))
    groups = [_group(run, manifest, one, found[one], recipe_baseline, first=one == in_order[0]) for one in in_order]
    if any(is_greedy(group.run.manifest) and not group.overlapping for group in groups):
        groups = [replace(group, sampled=not is_greedy(group.run.manifest)) for group in groups]
    return groups


def is_greedy(manifest: Manifest | None) -> bool:
    """Whether the recipe selects the likeliest token every time; a study without a manifest is assumed to."""
    sampling = (manifest.recipe if manifest else {}).get("sampling") or {}
    return sampling.get("temperature", 0) == 0 or sampling.get("top_k") == 1


def dimensions(manifest: Manifest) -> list[Dimension]:
    """Return what a run varies, or has not at its default of one request at a time."""
    conditions = [condition_of(manifest, arm) for arm in manifest.arms]
    found: list[tuple[Dimension, bool]] = [
        ("concurrency", any(one.concurrency > 1 for one in conditions)),
        ("rate", any(one.rate is not None for one in conditions)),
        ("temperature", len({one.temperature for one in conditions}) > 1),
        ("context_length", len({one.context_length for one in conditions}) > 1),
    ]
    return [name for name, varied in found if varied]


def recipe_arm(manifest: Manifest | None, name: str) -> str:
    """Return the recipe's name of an arm, the same under every condition."""
    arms = manifest.arms if manifest else []
    return next((arm.of for arm in arms if arm.name == name and arm.of), name)


def condition_of(manifest: Manifest, arm: ArmIdentity) -> Condition:
    """Return the condition that an arm ran under."""
    temperature = arm.temperature
    if temperature is None:
        temperature = float((manifest.recipe.get("sampling") or {}).get("temperature") or 0.0)
    return Condition(temperature, arm.rate, arm.concurrency, arm.context_length, arm.group)


def _group(
    run: RunData,
    manifest: Manifest,
    condition: Condition,
    arms: Iterable[ArmIdentity],
    recipe_baseline: str,
    *,
    first: bool,
) -> Group:
    names = {arm.name: arm.of or arm.name for arm in arms}
    baseline = next((name for name, of in names.items() if of == recipe_baseline), recipe_baseline)
    sampling = {**(manifest.recipe.get("sampling") or {}), "temperature": condition.temperature}
    own = {
        "arms": [arm for arm in manifest.arms if arm.name in names],
        "cells": [cell for cell in manifest.cells if cell.arm in names],
        "baseline": baseline,
        "recipe": {**manifest.recipe, "sampling": sampling},
    }
    part = replace(
        run,
        manifest=manifest.model_copy(update=own),
        records=[record for record in run.records if record.label in names],
        damaged=run.damaged if first else [],  # listed once
    )
    endpoint = any(arm.url is not None for arm in manifest.arms)
    return Group(part, baseline, condition, condition.concurrency > 1 or (condition.rate is not None and endpoint))


def closed_levels(analysis: Analysis) -> list[Level]:
    """The levels of a closed loop, of a run with several requests at once."""
    if analysis.sweep is None or "concurrency" not in analysis.sweep.dimensions:
        return []
    return [row for row in analysis.sweep.levels if row.rate is None]


def open_levels(analysis: Analysis) -> list[Level]:
    """The levels of an open loop."""
    return [row for row in analysis.sweep.levels if row.rate is not None] if analysis.sweep else []


@dataclass(frozen=True)
class TemperatureRow:
    """An arm at one temperature."""

    level: Level
    speedup: SpeedUp
    acceptance: Acceptance


def temperature_rows(analysis: Analysis) -> list[TemperatureRow]:
    """Every arm but the baselines at every temperature; empty where temperature does not vary."""
    if analysis.sweep is None or "temperature" not in analysis.sweep.dimensions:
        return []
    speedups = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    acceptance = {row.arm: row for row in analysis.acceptance if row.task == ALL_TASKS}
    rows = [
        TemperatureRow(level, speedups[level.arm], acceptance[level.arm])
        for level in analysis.sweep.levels
        if level.arm in speedups
    ]
    return sorted(rows, key=lambda row: analysis.settings.index(row.level.of))
