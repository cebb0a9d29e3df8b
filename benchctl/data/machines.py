"""A cluster's run by machine: what unlike machines measured is read as arms of different setups, which nothing pools.

Which machine measured a block is only known once it has: the files hold the recipe's arms, and the machine of every
cell. On reading, an arm that ran on machines `m1` and `m2` becomes `NAME@m1` and `NAME@m2`, each with the baseline that
ran beside it, and the machine is an axis of the run like any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchctl.data.manifest import ArmIdentity, MachineIdentity, Manifest, SetupIdentity
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
        return manifest.model_copy(update={**_engines(manifest, used[0]), "cells": cells}), list(records)
    blocks = {machine.name: sorted({cell.block for cell in cells if cell.machine == machine.name}) for machine in used}
    ran = {(cell.arm, cell.machine) for cell in cells}
    cells = [cell for cell in cells if cell.machine in blocks]
    placed = {(cell.block, cell.arm, cell.attempt): cell.machine or "" for cell in cells}
    arms = {
        (arm.name, machine): _arm(arm, machine)
        for machine in blocks
        for arm in manifest.arms
        if (arm.name, machine) in ran
    }
    moved = [
        record.changed(label=_on(record.label, machine), block=blocks[machine].index(record.block))
        for record in records
        if (machine := placed.get((record.block, record.label, record.attempt))) is not None
    ]
    for index, cell in enumerate(cells):
        machine = cell.machine or ""
        names = {"arm": _on(cell.arm, machine), "block": blocks[machine].index(cell.block)}
        cells[index] = cell.model_copy(update=names)
    update: dict[str, Any] = {
        "arms": list(arms.values()),
        "setups": [_setup(setup, machine) for machine in manifest.machines for setup in _setups(manifest)],
        "cells": cells,
        "baseline": next(arm.name for (name, _), arm in arms.items() if name == manifest.baseline),
        "blocks": max(map(len, blocks.values())),
        "recipe": _recipe(manifest, arms),
    }
    return manifest.model_copy(update=update), moved


def _engines(manifest: Manifest, machine: MachineIdentity) -> dict[str, Any]:
    """Return what a run that one kind of machine measured has of it."""
    engines = machine.engines
    setups = [setup.model_copy(update={"engine": engines.get(setup.name, setup.engine)}) for setup in manifest.setups]
    return {"machine": machine.facts, "engine": next(iter(engines.values()), manifest.engine), "setups": setups}


def _setups(manifest: Manifest) -> list[SetupIdentity]:
    """Return the setups of a run; the only one has no name where the recipe has no axes."""
    engine, target, draft = manifest.engine, manifest.target, manifest.draft
    return manifest.setups or [SetupIdentity(name="", group="", axes={}, engine=engine, target=target, draft=draft)]


def _setup(setup: SetupIdentity, machine: MachineIdentity) -> SetupIdentity:
    """Return a setup as it is on a machine, with the engine that it has there."""
    replaced = {"axes": {**setup.axes, AXIS: machine.label}, "engine": machine.engines.get(setup.name, setup.engine)}
    names = {"name": _on(setup.name, machine.name), "group": _on(setup.group, machine.name)}
    return setup.model_copy(update=names | replaced)


def _arm(arm: ArmIdentity, machine: str) -> ArmIdentity:
    names = {name: _on(getattr(arm, name), machine) for name in ("name", "setup", "group")}
    return arm.model_copy(update=names | {"of": arm.of or arm.name})


def _recipe(manifest: Manifest, arms: dict[tuple[str, str], ArmIdentity]) -> dict[str, Any]:
    """Return the recipe with the new names of its arms."""
    of_recipe = manifest.recipe_arms
    names = ("name", "of", "setup", "group")
    setups = [setup for setup in manifest.recipe.get("setups") or [] if isinstance(setup, dict)]
    return manifest.recipe | {
        "arms": [
            of_recipe[former] | {name: getattr(arm, name) for name in names}
            for (former, _), arm in arms.items()
            if former in of_recipe
        ],
        "setups": [
            setup | {name: _on(setup.get(name), machine) for name in ("name", "group")}
            for machine in dict.fromkeys(machine for _, machine in arms)
            for setup in setups
        ],
    }


def _on(name: str | None, machine: str) -> str:
    """Return the name on a machine of an arm, a setup or a group; what has none is called as the machine."""
    return f"{name}@{machine}" if name else machine
