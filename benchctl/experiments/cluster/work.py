"""What goes to a node of a cluster and what comes back; plain data, so that any cluster can carry it.

The unit is a group of a block: a baseline and its arms, one after the other on one machine, as they must be compared.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import benchctl
from benchctl.data.chain import canonical_sha256
from benchctl.data.manifest import EngineIdentity
from benchctl.prompts.load import Suite

MACHINE_NAME = "BENCHCTL_MACHINE"
"""A variable of a node's own: a name for its kind of machine, where machines that look alike are not (cooling)."""

Message = tuple[str, tuple[Any, ...]]
"""(what, values): `line` (a record), `log` (name, bytes), `cell` (JSON), `progress` (method, values)."""
Send = Callable[[Message], None]


@dataclass(frozen=True)
class CellWork:
    """A cell of the group: which arm, its place in the block, and its prompts as (task, prompt_idx)."""

    arm: str
    order: int
    prompts: tuple[tuple[str, int], ...]
    attempt: int
    """The number of its process: one more than any that ran before."""


@dataclass(frozen=True)
class NodeWork:
    """What a node has to know of a run."""

    package_sha256: str
    recipe: dict[str, Any]
    """Expanded, as a manifest keeps it."""
    recipe_folder: str
    suite: Suite
    context_text: str
    models_dir: str | None
    binary: str | None
    models: dict[str, list[str]]
    """By setup ("" where there are no axes) the SHA-256 of every model file, target first: a node must have them."""


@dataclass(frozen=True)
class GroupWork:
    """A group of a block."""

    run: NodeWork
    manifest: str
    """JSON of the run's manifest, without cells."""
    block: int
    cells: tuple[CellWork, ...]
    engines: dict[str, str]
    """What the node said of its engines when it was inspected, as in `NodeFacts`: it must still have them."""


@dataclass(frozen=True)
class NodeFacts:
    """What a node is, and whether it can measure a run."""

    host: str
    """The same for all nodes on one host, which count as one machine."""
    package_sha256: str
    facts: dict[str, Any]
    """See `benchctl.machine.describe`."""
    engines: dict[str, str]
    """By setup the JSON of `EngineIdentity`."""
    problem: str | None = None
    """Why it cannot measure this run."""

    @property
    def kind(self) -> str:
        """What is equal for machines whose blocks may be pooled: processor, GPUs with their driver, engine builds."""
        same = ("cpu", "cores", "physical_cores", "usable_cores", "architecture", "accelerators", "name")
        builds = {}
        for setup, text in self.engines.items():
            engine = EngineIdentity.model_validate_json(text)
            builds[setup] = [engine.version, *(engine.details.get(part) for part in ("sha256", "siblings"))]
        return canonical_sha256({"machine": {key: self.facts.get(key) for key in same}, "builds": builds})


@cache
def package_sha256() -> str:
    """Return the SHA-256 of benchctl's own modules: nodes of one run must have the same."""
    root = Path(benchctl.__file__).parent
    total = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


def host_id() -> str:
    """Return what names this host until it is booted again: processes of one host share it, containers included."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = os.uname().nodename
    return hashlib.sha256(boot.encode()).hexdigest()[:12]
