"""The work that a node of a cluster gets, how the node does it, and the messages that it sends.

The unit of work is a group of a block: a baseline and its arms. They are compared, so the same machine measures them in
turn. A node prepares the recipe as any machine does, and sends each record and cell at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchctl.data.cell import Cell
from benchctl.data.digests import canonical_sha256
from benchctl.data.identity import package_sha256
from benchctl.data.manifest import EngineIdentity, Manifest
from benchctl.data.writer import RunWriter
from benchctl.errors import BenchctlError
from benchctl.machine.describe import describe_machine
from benchctl.measurement.manifest import setup_engines
from benchctl.measurement.plan import CellPlan, EarlierProcesses
from benchctl.measurement.prepare import Prepared, Recorded, files_of, model_files, prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.prompts.load import Suite
from benchctl.recipes.load import stored_recipe

MACHINE_NAME = "BENCHCTL_MACHINE"
"""A variable of a node's own: a name for its kind of machine, where machines that look alike are not (cooling)."""

Message = tuple[Any, ...]
"""`line`, a record; `cell`, a `Cell`, the bytes of its log; `note`, a text; or the name of a method of `RunProgress`,
the arm whose cell it is of, its other values. The last of a group is an end (`ENDS`)."""
ENDS = ("done", "refused", "lost")
"""`done`; `refused`, what, where and fix of a BenchctlError; `lost`, why."""
Send = Callable[[Message], None]


@dataclass(frozen=True)
class NodeWork:
    """What a node needs to measure a run."""

    package_sha256: str
    recipe: dict[str, Any]
    """The recipe, expanded as in a manifest."""
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
    manifest: Manifest
    """The manifest of the run, without cells."""
    cells: tuple[CellPlan, ...]
    attempts: dict[str, int]
    """Number of the process of each arm; it is above the number of any earlier process."""
    engines: dict[str, EngineIdentity]
    """The engines that the node had when it was inspected. It must still have them."""


@dataclass(frozen=True)
class NodeFacts:
    """A node that can measure a run."""

    host: str
    """Equal for all nodes on a host; these count as one machine."""
    facts: dict[str, Any]
    """See `benchctl.machine.describe`."""
    engines: dict[str, EngineIdentity]
    """Engines by setup."""

    @property
    def kind(self) -> str:
        """What is equal for machines whose blocks may be pooled: processor, GPUs with their driver, engine builds."""
        same = ("cpu", "cores", "physical_cores", "usable_cores", "architecture", "accelerators", "name")
        builds = {
            setup: [engine.version, engine.details.get("sha256"), engine.details.get("siblings")]
            for setup, engine in self.engines.items()
        }
        return canonical_sha256({"machine": {key: self.facts.get(key) for key in same}, "builds": builds})


def inspect_node(work: NodeWork) -> NodeFacts | str:
    """Return the facts of this node, or why it cannot measure this run."""
    if package_sha256() != work.package_sha256:
        return "another version of benchctl is installed there; install the same"
    try:
        prepared = _prepared(work)
    except BenchctlError as error:
        return " ".join(str(error).split())
    if model_files(prepared) != work.models:
        return "its model files differ from those that the run was prepared with"
    engines = {name or "": engine for name, engine in setup_engines(prepared).items()}
    boot = Path("/proc/sys/kernel/random/boot_id")  # equal for all processes of a host, also in containers
    host = boot.read_text(encoding="ascii") if boot.exists() else os.uname().nodename
    return NodeFacts(host, describe_machine() | {"name": os.environ.get(MACHINE_NAME)}, engines)


def measure_group(work: GroupWork, send: Send) -> None:
    """Measure the cells of a group in turn; every record and cell is sent as soon as it is there.

    Raises KeyboardInterrupt, once the engine is stopped, and BenchctlError for what no cell can be measured with: an
    engine that is not what was inspected, too, before it is run.
    """
    prepared = _prepared(work.run, {name or None: engine.details for name, engine in work.engines.items()})
    earlier = {(cell.block, cell.arm.name): EarlierProcesses(work.attempts[cell.arm.name] - 1) for cell in work.cells}
    with (
        tempfile.TemporaryDirectory(prefix="benchctl-node-") as scratch,
        _SendingWriter(Path(scratch), work.manifest, send) as writer,
    ):
        runner = Runner(
            prepared.recipe,
            prepared.engines,
            prepared.launches,
            writer,
            files_of(prepared),
            earlier,
            context_text=work.run.context_text,
        )
        runner.run(list(work.cells), _SendingProgress(send))


def _prepared(work: NodeWork, recorded: Recorded | None = None) -> Prepared:
    return prepare(
        stored_recipe(work.recipe),
        recipe_folder=Path(work.recipe_folder).expanduser(),
        binary=work.binary,
        models_dir=None if work.models_dir is None else Path(work.models_dir).expanduser(),
        trusted=True,  # who can send work to a node can run code there; permissions were checked before
        recorded=recorded,
        suite=work.suite,
    )


class _SendingWriter(RunWriter):
    """Sends what would be written. Its folder holds the engines' logs."""

    def __init__(self, folder: Path, manifest: Manifest, send: Send) -> None:
        super().__init__(folder, manifest)
        self._send = send

    def append_line(self, text: str) -> None:
        self._send(("line", text))

    def add_cell(self, cell: Cell) -> None:
        log = self.folder / cell.log
        self._send(("cell", cell, log.read_bytes() if log.exists() else b""))


class _SendingProgress(RunProgress):
    """Sends the progress of the group."""

    def __init__(self, send: Send) -> None:
        super().__init__()
        self._send = send
        for method in ("cell_started", "cell_ready", "request_sent", "answered", "cell_ended"):
            setattr(self, method, partial(self._of_cell, method))

    def _of_cell(self, method: str, cell: CellPlan, *values: object) -> None:
        self._send((method, cell.arm.name, *values))

    def note(self, text: str) -> None:
        self._send(("note", text))
