"""A run's groups over the nodes of a cluster: who measures what, what comes back, and what is done again elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from benchctl.data.cell import Cell
from benchctl.data.identity import home_relative
from benchctl.data.manifest import EngineIdentity, MachineIdentity
from benchctl.data.record import Record
from benchctl.data.writer import LOGS, RunWriter
from benchctl.errors import BenchctlError, EngineError
from benchctl.experiments.cluster.node import CellWork, GroupWork, Message, NodeFacts, NodeWork, package_sha256
from benchctl.measure.plan import CellPlan, GroupPlan, groups_of
from benchctl.measure.prepare import Prepared, model_files
from benchctl.measure.progress import RunProgress
from benchctl.recipes.groups import GroupKey
from benchctl.recipes.schema import Recipe
from benchctl.text import one_line

POLL_S = 0.2
STOP_S = 20.0
"""How long nodes have to stop their engines after an interrupt."""
WAIT_NOTE_S = 15.0
LOST = "The node was lost while its group was measured."
UNFINISHED = "The run ended while its group was measured."


@dataclass(frozen=True)
class Happened:
    """Something that came from a node: a message, its end (`done`), its error, or that it is gone (`lost`)."""

    node: str
    message: Message | None = None
    done: bool = False
    error: BaseException | None = None
    lost: str | None = None


class DisconnectedError(Exception):
    """The connection to the cluster is lost, and with it every group that was being measured."""


class Cluster(Protocol):
    """Machines that groups can be handed to; a call at a time on each node."""

    where: str
    """Its name for `--on`."""

    def nodes(self, *, accelerator: bool) -> list[str]:
        """Return the nodes that are up; with `accelerator`, those that have any."""

    def inspect_nodes(self, nodes: Sequence[str], work: NodeWork) -> dict[str, NodeFacts | str]:
        """Return what each node is, or why it cannot be inspected."""

    def start(self, node: str, work: GroupWork) -> None:
        """Begin a group on a node."""

    def poll(self, timeout_s: float) -> list[Happened]:
        """Return what happened since, after waiting for so long at most. Raises DisconnectedError."""

    def stop(self, *, force: bool) -> None:
        """Interrupt every group that goes on; with `force`, kill what does not end."""

    def close(self) -> None:
        """Leave the cluster as it was found."""


@dataclass
class _Running:
    """A group on a node."""

    plan: GroupPlan
    attempts: dict[str, int]
    began: float = field(default_factory=time.monotonic)
    reported: bool = False
    """Whether anything has come from it."""
    open: set[str] = field(default_factory=set)
    """Arms of which records came and no cell yet."""


@dataclass
class ClusterRunner:
    """Runs cells as `benchctl.measure.runner.Runner` does, each group of a block on a node."""

    cluster: Cluster
    prepared: Prepared
    writer: RunWriter
    work: NodeWork
    stop_at_failure: bool = False
    stopped: bool = False
    """Whether a failure ended the run, as requested; groups that had begun were finished."""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    """That can measure this run and are up."""
    without_baseline: set[GroupKey] = field(default_factory=set)
    given: dict[str, int] = field(default_factory=dict)
    """How many groups each node was given: the next goes to a node that had fewest."""

    @property
    def ended(self) -> bool:
        """Whether nothing is left to measure: a failure was to end it, or no condition has a baseline that starts."""
        recipe = self.prepared.recipe
        return self.stopped or set(map(recipe.group_of, recipe.arms)) <= self.without_baseline

    def get_ready(self, progress: RunProgress) -> None:
        """Inspect every node and keep those that can measure this run. Raises EngineError when none can."""
        kinds = {setup.recipe.engine.model_dump().get("device") for setup in self.prepared.setups.values()}
        up = self.cluster.nodes(accelerator=bool(kinds & {"cuda", "gpu"}))
        refused = []
        for node, found in self.cluster.inspect_nodes(up, self.work).items():
            problem = found if isinstance(found, str) else found.problem
            if isinstance(found, NodeFacts) and found.problem is None:
                self.nodes[node] = found
            else:
                refused.append(f"node {node[:8]}: {one_line(str(problem), 300)}")
        for reason in refused:
            progress.note(f"Not used: {reason}")
        if not self.nodes:
            raise EngineError(
                f"No node of {self.cluster.where} can measure this run"
                + (f": {'; '.join(refused)}" if refused else ": none is up that has what the recipe needs."),
                kind="launch",
                fix="Give the nodes the same benchctl, the engine and the models: see `benchctl docs clusters`.",
            )
        for node, found in self.nodes.items():
            self._machine_of(node, found)
        hosts = {found.host for found in self.nodes.values()}
        progress.note(
            f"Cluster {self.cluster.where}: nodes: {len(self.nodes)}, hosts: {len(hosts)}, with a group at a time on "
            f"each; kinds of machines: {len({found.kind for found in self.nodes.values()})}."
        )

    def run(self, plan: list[CellPlan], progress: RunProgress) -> None:
        """Measure every group. Raises KeyboardInterrupt after recording what was cut off, EngineError, StorageError."""
        waiting = deque(groups_of(plan))
        running: dict[str, _Running] = {}
        try:
            while waiting or running:
                if self.stopped and waiting:
                    progress.note("Stopped at the first failure (-x); groups that have begun are finished.")
                    waiting.clear()
                self._hand_out(waiting, running)
                if waiting and not running:
                    raise self._no_node_left(waiting)
                for event in self.cluster.poll(POLL_S):
                    if event.node in running:
                        self._take(event, waiting, running, progress)
                self._note_waiting(running, progress)
        except DisconnectedError as error:
            self._stop(running, progress)
            raise self._incomplete(
                f"The connection to {self.cluster.where} was lost: {error}", "Join it again"
            ) from None
        except BaseException:
            self._stop(running, progress)
            raise

    def _hand_out(self, waiting: deque[GroupPlan], running: dict[str, _Running]) -> None:
        busy = {self.nodes[node].host for node in running}
        for node, found in sorted(self.nodes.items(), key=lambda numbered: self.given.get(numbered[0], 0)):
            while waiting and waiting[0].key in self.without_baseline:
                waiting.popleft()
            if not waiting:
                return
            if found.host in busy:
                continue
            group = waiting.popleft()
            attempts = {cell.arm.name: self._next_attempt(cell) for cell in group.cells}
            self.cluster.start(node, self._work_of(group, attempts, found))
            running[node] = _Running(group, attempts)
            self.given[node] = self.given.get(node, 0) + 1
            busy.add(found.host)

    def _work_of(self, group: GroupPlan, attempts: Mapping[str, int], node: NodeFacts) -> GroupWork:
        cells = tuple(
            CellWork(
                cell.arm.name,
                cell.order,
                tuple((asked.task, asked.prompt_idx) for asked in cell.prompts),
                attempts[cell.arm.name],
            )
            for cell in group.cells
        )
        bare = self.writer.manifest.model_copy(update={"cells": []})
        return GroupWork(self.work, bare.model_dump_json(by_alias=True), group.block, cells, node.engines)

    def _next_attempt(self, cell: CellPlan) -> int:
        former = [
            earlier.attempt
            for earlier in self.writer.manifest.cells
            if (earlier.block, earlier.arm) == (cell.block, cell.arm.name)
        ]
        return max(former, default=-1) + 1

    def _take(
        self, event: Happened, waiting: deque[GroupPlan], running: dict[str, _Running], progress: RunProgress
    ) -> None:
        group = running[event.node]
        if event.message is not None:
            group.reported = True
            self._receive(event.node, group, event.message, progress)
            return
        del running[event.node]
        if event.done:
            return
        if isinstance(event.error, BenchctlError):
            raise event.error
        reason = event.lost or f"{type(event.error).__name__}: {one_line(str(event.error), 200)}"
        self.nodes.pop(event.node, None)
        self._discard(event.node, group, LOST)
        waiting.appendleft(group.plan)
        progress.note(
            f"Node {event.node[:8]} was lost ({one_line(reason, 200)}); {group.plan.name} is measured again elsewhere."
        )

    def _receive(self, node: str, group: _Running, message: Message, progress: RunProgress) -> None:
        what, values = message
        if what == "line":
            record = Record.from_line(values[0].encode("ascii"))
            group.open.add(record.label)
            self.stopped = self.stopped or (self.stop_at_failure and record.error is not None)
            self.writer.append_line(values[0])
        elif what == "log":
            name, grown = values
            with (self.writer.folder / LOGS / Path(name).name).open("ab") as log:
                log.write(grown)
        elif what == "cell":
            cell = Cell.model_validate_json(values[0])
            group.open.discard(cell.arm)
            machine = self._machine_of(node, self.nodes[node]).name
            self.writer.add_cell(cell.model_copy(update={"machine": machine, "node": node}))
            self.stopped = self.stopped or (self.stop_at_failure and cell.status == "failed")
            if cell.block == 0 and cell.status == "failed" and self.prepared.recipe.compared[cell.arm].is_baseline:
                self.without_baseline.add(group.plan.key)
        elif what == "note":
            progress.note(f"{node[:8]}: {values[0]}")
        elif what == "progress":
            method, arm_name, *rest = values
            cell_plan = next(cell for cell in group.plan.cells if cell.arm.name == arm_name)
            getattr(progress, method)(cell_plan, *rest)

    def _machine_of(self, node: str, found: NodeFacts) -> MachineIdentity:
        """Return the kind of machine that a node is, which the manifest names from now on."""
        machines, kind = self.writer.manifest.machines, found.kind
        for machine in machines:
            if machine.kind == kind:
                if node not in machine.nodes:
                    machine.nodes.append(node)
                return machine
        engines = {name: EngineIdentity.model_validate_json(text) for name, text in found.engines.items()}
        machines.append(
            MachineIdentity(name=f"m{len(machines) + 1}", kind=kind, nodes=[node], facts=found.facts, engines=engines)
        )
        return machines[-1]

    def _discard(self, node: str, group: _Running, why: str) -> None:
        """Let nothing count that came of a group which was not finished where it was begun."""
        manifest = self.writer.manifest
        for number, cell in enumerate(manifest.cells):
            if cell.block == group.plan.block and group.attempts.get(cell.arm) == cell.attempt:
                manifest.cells[number] = cell.model_copy(update={"discarded": why})
        recorded = {(cell.block, cell.arm, cell.attempt) for cell in manifest.cells}
        for arm in group.open:
            if (group.plan.block, arm, group.attempts[arm]) not in recorded:
                manifest.cells.append(self._cut_off(node, group, arm, why))
        self.writer.save()

    def _cut_off(self, node: str, group: _Running, arm: str, why: str) -> Cell:
        attempt = group.attempts[arm]
        return Cell(
            block=group.plan.block,
            arm=arm,
            order=next(cell.order for cell in group.plan.cells if cell.arm.name == arm),
            attempt=attempt,
            status="interrupted",
            started_at="",
            wall_s=time.monotonic() - group.began,
            log=f"{LOGS}/block{group.plan.block}-{arm}{f'.{attempt}' if attempt else ''}.log",
            node=node,
            discarded=why,
        )

    def _stop(self, running: dict[str, _Running], progress: RunProgress) -> None:
        """Stop every engine on every node, and take what still comes."""
        for force in (False, True):
            if not running:
                break
            self.cluster.stop(force=force)
            until = time.monotonic() + STOP_S
            while running and time.monotonic() < until:
                for event in self.cluster.poll(POLL_S):
                    group = running.get(event.node)
                    if group is None:
                        continue
                    if event.message is not None:
                        self._receive(event.node, group, event.message, progress)
                    else:
                        del running[event.node]
                        self._discard(event.node, group, UNFINISHED)
        for node, group in running.items():
            self._discard(node, group, UNFINISHED)

    def _no_node_left(self, waiting: Iterable[GroupPlan]) -> EngineError:
        left = sum(1 for _ in waiting)
        what = f"No node of {self.cluster.where} is left, and {left} groups are not measured."
        return self._incomplete(what, "Bring the nodes up again")

    def _incomplete(self, what: str, remedy: str) -> EngineError:
        resume = f"benchctl run --resume {home_relative(self.writer.folder)} --on {self.cluster.where}"
        return EngineError(what, kind="crash", fix=f"{remedy}, then: {resume}")

    def _note_waiting(self, running: Mapping[str, _Running], progress: RunProgress) -> None:
        for node, group in running.items():
            if not group.reported and time.monotonic() - group.began > WAIT_NOTE_S:
                group.reported = True
                progress.note(f"Waiting for node {node[:8]}: other work is running on it.")


@dataclass(frozen=True)
class OnCluster:
    """Where a run is measured, with the options of the command line that nodes need, too."""

    cluster: Cluster
    models_dir: Path | None = None
    binary: str | None = None

    @property
    def where(self) -> str:
        """What `--on` named."""
        return self.cluster.where

    def discard_unfinished(self, writer: RunWriter, recipe: Recipe, plan: Iterable[CellPlan]) -> None:
        """Let no group of a resumed run count of which something is left: it is measured anew, on a single node."""
        begun = {(cell.block, cell.group) for cell in plan}
        groups = {arm.name: recipe.group_of(arm) for arm in recipe.arms}
        writer.manifest.cells = [
            cell.model_copy(update={"discarded": cell.discarded or UNFINISHED})
            if (cell.block, groups.get(cell.arm)) in begun
            else cell
            for cell in writer.manifest.cells
        ]
        writer.save()

    def runner(
        self, prepared: Prepared, writer: RunWriter, context_text: str, *, stop_at_failure: bool
    ) -> ClusterRunner:
        """Return what measures a run's cells there."""
        work = NodeWork(
            package_sha256=package_sha256(),
            recipe=prepared.recipe.model_dump(mode="json"),
            recipe_folder=home_relative(prepared.recipe_folder.absolute()),
            suite=prepared.suite,
            context_text=context_text,
            models_dir=None if self.models_dir is None else home_relative(self.models_dir.absolute()),
            binary=self.binary,
            models=model_files(prepared),
        )
        return ClusterRunner(self.cluster, prepared, writer, work, stop_at_failure=stop_at_failure)
