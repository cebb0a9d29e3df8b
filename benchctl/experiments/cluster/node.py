"""What goes to a node of a cluster, what runs there and what comes back; plain data, so that any cluster can carry it.

The unit is a group of a block: a baseline and its arms, in turn on the same machine, as they must be compared. A
node prepares the recipe as anywhere, and sends everything as it comes.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import benchctl
from benchctl.data.cell import Cell
from benchctl.data.chain import canonical_sha256
from benchctl.data.manifest import EngineIdentity, Manifest
from benchctl.data.writer import LOGS, RunWriter
from benchctl.engines.base import Completion
from benchctl.errors import BenchctlError, StorageError
from benchctl.machine.describe import describe_machine
from benchctl.measure.plan import CellPlan, EarlierProcesses
from benchctl.measure.prepare import Prepared, Recorded, files_of, model_files, prepare, setup_engines
from benchctl.measure.progress import RunProgress
from benchctl.measure.runner import Runner
from benchctl.prompts.load import Suite
from benchctl.recipes.load import stored_recipe

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
    """The number of its process, above any that ran before."""


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
    """The same for all nodes on a host, which count as a single machine."""
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
    """Return the SHA-256 of benchctl's own modules: nodes of a run must have the same."""
    root = Path(benchctl.__file__).parent
    total = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        total.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()


def host_id() -> str:
    """Return what names this host until it is booted again: processes of a host share it, containers included."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = os.uname().nodename
    return hashlib.sha256(boot.encode()).hexdigest()[:12]


def inspect_node(work: NodeWork) -> NodeFacts:
    """Return what this node is, and what keeps it from measuring this run."""
    facts = describe_machine() | {"name": os.environ.get(MACHINE_NAME)}
    found = NodeFacts(host=host_id(), package_sha256=package_sha256(), facts=facts, engines={})
    if found.package_sha256 != work.package_sha256:
        return replace(found, problem="another version of benchctl is installed there; install the same")
    try:
        prepared = _prepared(work)
    except BenchctlError as error:
        return replace(found, problem=" ".join(str(error).split()))
    engines = {name or "": engine.model_dump_json() for name, engine in setup_engines(prepared).items()}
    other = "its model files differ from those that the run was prepared with"
    return replace(found, engines=engines, problem=None if model_files(prepared) == work.models else other)


def measure_group(work: GroupWork, send: Send) -> None:
    """Measure the cells of a group in turn; every record, log and cell is sent as soon as it is there.

    Raises KeyboardInterrupt, once the engine is stopped, and BenchctlError for what no cell can be measured with: an
    engine that is not what was inspected, too, before it is run.
    """
    with _machine_to_itself():
        inspected = {
            name or None: EngineIdentity.model_validate_json(text).details for name, text in work.engines.items()
        }
        prepared = _prepared(work.run, inspected)
        asked_prompts = {(asked.task, asked.prompt_idx): asked for asked in prepared.prompts}
        recipe = prepared.recipe
        arms = {arm.name: (arm, recipe.group_of(arm)) for arm in recipe.arms}
        plan = [
            CellPlan(work.block, cell.order, arm, tuple(asked_prompts[prompt] for prompt in cell.prompts), group)
            for cell in work.cells
            for arm, group in [arms[cell.arm]]
        ]
        earlier = {(work.block, cell.arm): EarlierProcesses(cell.attempt - 1) for cell in work.cells}
        with tempfile.TemporaryDirectory(prefix="benchctl-node-") as scratch:
            manifest = Manifest.model_validate_json(work.manifest)
            with _SendingWriter(Path(scratch), manifest, send) as writer:
                runner = Runner(
                    recipe,
                    prepared.engines,
                    prepared.launches,
                    writer,
                    files_of(prepared),
                    earlier,
                    context_text=work.run.context_text,
                )
                try:
                    runner.run(plan, _SendingProgress(send))
                finally:
                    writer.send_logs()


def _prepared(work: NodeWork, recorded: Recorded | None = None) -> Prepared:
    return prepare(
        stored_recipe(work.recipe),
        recipe_folder=Path(work.recipe_folder).expanduser(),
        binary=work.binary,
        models_dir=None if work.models_dir is None else Path(work.models_dir).expanduser(),
        trusted=True,  # whoever may hand work to a node may run code there; what a recipe gets was settled before
        recorded=recorded,
        suite=work.suite,
    )


@contextmanager
def _machine_to_itself() -> Iterator[None]:
    """Wait until no other group is measured on this host, whichever run or node it belongs to."""
    name = Path(tempfile.gettempdir()) / f"benchctl-measuring-{os.getuid()}.lock"  # of the host: a home may be shared
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"The lock of this machine cannot be opened: {error.strerror}.", where=str(name)) from None
    try:
        status = os.fstat(lock)
        if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
            raise StorageError("Another user made the lock of this machine.", where=str(name), fix="Remove it.")
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


class _SendingWriter(RunWriter):
    """Writes into a folder of the node's own and sends what it writes."""

    def __init__(self, folder: Path, manifest: Manifest, send: Send) -> None:
        super().__init__(folder, manifest)
        self._send = send
        self._sent: dict[str, int] = {}

    def append_line(self, text: str) -> None:
        super().append_line(text)
        self.send_logs()
        self._send(("line", (text,)))

    def add_cell(self, cell: Cell) -> None:
        super().add_cell(cell)
        self.send_logs()
        self._send(("cell", (cell.model_dump_json(),)))

    def send_logs(self) -> None:
        """Send what the engines' logs have grown by."""
        for log in sorted((self.folder / LOGS).glob("*.log")):
            with log.open("rb") as stream:
                stream.seek(self._sent.get(log.name, 0))
                grown = stream.read()
            if grown:
                self._sent[log.name] = self._sent.get(log.name, 0) + len(grown)
                self._send(("log", (log.name, grown)))


class _SendingProgress(RunProgress):
    """Sends how far the group is."""

    def __init__(self, send: Send) -> None:
        self._send = send

    def cell_started(self, cell: CellPlan) -> None:
        self._send(("progress", ("cell_started", cell.arm.name)))

    def cell_ready(self, cell: CellPlan) -> None:
        self._send(("progress", ("cell_ready", cell.arm.name)))

    def request_sent(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        self._send(("progress", ("request_sent", cell.arm.name, task, prompt_idx)))

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        self._send(("progress", ("answered", cell.arm.name, completion)))

    def cell_ended(self, cell: CellPlan, failure: str | None) -> None:
        self._send(("progress", ("cell_ended", cell.arm.name, failure)))

    def note(self, text: str) -> None:
        self._send(("note", (text,)))
