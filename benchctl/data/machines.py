"""A cluster's run by machine: what unlike machines measured is read as arms of different setups, which nothing pools.

Which machine measured a block is only known once it has: the files hold the recipe's arms, and the machine of every
cell. On reading, an arm that ran on machines `m1` and `m2` becomes `NAME@m1` and `NAME@m2`, each with the baseline that
ran beside it, and the machine is an axis of the run like any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from benchctl.data.cell import Cell
from benchctl.data.manifest import ArmIdentity, Manifest, SetupIdentity
from benchctl.data.record import Record

AXIS = "machine"


def by_machine(manifest: Manifest, records: Sequence[Record]) -> tuple[Manifest, list[Record]]:
    """Return a run as it is analysed, with an arm for each kind of machine.

    Blocks are renumbered within each machine, from 0. A run of a single kind of machine stays as it is, with that
    machine's facts.
    """
    cells = [cell for cell in manifest.cells if cell.discarded is None]
    used = [machine for machine in manifest.machines if any(cell.machine == machine.name for cell in cells)]
    if not used:
        return manifest, list(records)
    if len(used) == 1:
        (only,) = used
        engine = next(iter(only.engines.values()), manifest.engine)
        setups = [
            setup.model_copy(update={"engine": only.engines.get(setup.name, setup.engine)}) for setup in manifest.setups
        ]
        own = {"machine": only.facts, "engine": engine, "setups": setups, "cells": cells}
        return manifest.model_copy(update=own), list(records)
    measured_on = {(cell.block, cell.arm, cell.attempt): cell.machine for cell in cells}
    numbers = _numbers(cells)
    ran = {(cell.arm, cell.machine) for cell in cells}
    machines = [known.name for known in used]
    arms = [_arm(arm, name) for name in machines for arm in manifest.arms if (arm.name, name) in ran]
    update: dict[str, Any] = {
        "arms": arms,
        "setups": _setups(manifest),
        "cells": [_cell(cell, numbers) for cell in cells if cell.machine is not None],
        "baseline": _on(
            manifest.baseline, next(machine for machine in machines if (manifest.baseline, machine) in ran)
        ),
        "blocks": max(len(own) for own in numbers.values()),
        "recipe": _recipe(manifest, {arm.name: arm for arm in arms}),
    }
    moved = []
    for record in records:
        machine = measured_on.get((record.block, record.label, record.attempt))
        if machine is not None:
            block = numbers[machine][record.block]
            moved.append(record.changed(label=_on(record.label, machine), block=block))
    return manifest.model_copy(update=update), moved


def _numbers(cells: Sequence[Cell]) -> Mapping[str, Mapping[int, int]]:
    """Return the blocks that each machine has a part in, with their numbers there."""
    blocks: dict[str, set[int]] = defaultdict(set)
    for cell in cells:
        if cell.machine is not None:
            blocks[cell.machine].add(cell.block)
    return {name: {block: number for number, block in enumerate(sorted(own))} for name, own in blocks.items()}


def _arm(arm: ArmIdentity, machine: str) -> ArmIdentity:
    own = {
        "name": _on(arm.name, machine),
        "of": arm.of or arm.name,
        "setup": _setup_name(arm.setup, machine),
        "group": _setup_name(arm.group, machine),
    }
    return arm.model_copy(update=own)


def _cell(cell: Cell, numbers: Mapping[str, Mapping[int, int]]) -> Cell:
    assert cell.machine is not None
    own = {"arm": _on(cell.arm, cell.machine), "block": numbers[cell.machine][cell.block]}
    return cell.model_copy(update=own)


def _setups(manifest: Manifest) -> list[SetupIdentity]:
    """Return every setup once a machine, with the engine that it has there."""
    every: list[SetupIdentity | None] = [*manifest.setups] if manifest.setups else [None]
    found = []
    for machine in manifest.machines:
        for setup in every:
            found.append(
                SetupIdentity(
                    name=_setup_name(setup.name if setup else None, machine.name),
                    group=_setup_name(setup.group if setup else None, machine.name),
                    axes={**(setup.axes if setup else {}), AXIS: machine.label},
                    engine=machine.engines.get(setup.name if setup else "", setup.engine if setup else manifest.engine),
                    target=setup.target if setup else manifest.target,
                    draft=setup.draft if setup else manifest.draft,
                )
            )
    return found


def _recipe(manifest: Manifest, arms: Mapping[str, ArmIdentity]) -> dict[str, Any]:
    """Return the recipe with the new names of its arms."""
    recipe, of_recipe = manifest.recipe, manifest.recipe_arms
    own = []
    for name, arm in arms.items():
        former = of_recipe.get(name.rpartition("@")[0])
        if former is not None:
            own.append({**former, "name": name, "of": arm.of, "setup": arm.setup, "group": arm.group})
    setups = recipe.get("setups") or []
    machines = dict.fromkeys(name.rpartition("@")[2] for name in arms)
    return {
        **recipe,
        "arms": own,
        "setups": [
            {
                **setup,
                "name": _setup_name(setup.get("name"), machine),
                "group": _setup_name(setup.get("group"), machine),
            }
            for machine in machines
            for setup in setups
            if isinstance(setup, dict)
        ],
    }


def _setup_name(name: str | None, machine: str) -> str:
    return machine if name is None else _on(name, machine)


def _on(name: str, machine: str) -> str:
    return f"{name}@{machine}"
