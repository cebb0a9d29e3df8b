"""Distributes a run's groups over the nodes of a cluster, stores what they send, and repeats groups of lost nodes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Protocol

from benchctl.data.cell import Cell
from benchctl.data.identity import home_relative, package_sha256
from benchctl.data.manifest import MachineIdentity
from benchctl.data.record import Record
from benchctl.data.writer import LOGS, RunWriter
from benchctl.errors import EngineError
from benchctl.experiments.cluster.node import ENDS, GroupWork, Message, NodeFacts, NodeWork
from benchctl.measurement.plan import CellPlan, GroupPlan, groups_of
from benchctl.measurement.prepare import Prepared, model_files
from benchctl.measurement.progress import RunProgress
from benchctl.recipes.groups import GroupKey
from benchctl.recipes.schema import Recipe
from benchctl.text import one_line
from benchctl.writing import write_whole

POLL_S = 0.2
STOP_S = 20.0
"""Time limit for nodes to stop their engines after an interrupt."""
WAIT_NOTE_S = 15.0
LOST = "The node was lost while its group was measured."
UNFINISHED = "The run ended while its group was measured."


class DisconnectedError(Exception):
    """The connection to the cluster is lost, and with it every group that was being measured."""


class Cluster(Protocol):
    """Machines that groups can be handed to; a call at a time on each node."""

    where: str
    """What `--on` names it."""

    def inspect_nodes(self, work: NodeWork, *, accelerator: bool) -> dict[str, NodeFacts | str]:
        """Return the facts of each running node, or why it cannot measure. `accelerator`: only nodes with one."""

    def start(self, node: str, work: GroupWork) -> None:
        """Begin to measure a group on a node."""

    def poll(self, timeout_s: float) -> list[tuple[str, Message]]:
        """Return what came since, with its node, after waiting for so long at most. Raises DisconnectedError."""

    def stop(self, *, force: bool) -> None:
        """Interrupt every running group. With `force`, kill it."""


@dataclass
class _Running:
    """A group that is being measured on a node."""

    plan: GroupPlan
    attempts: dict[str, int]
    began: float = field(default_factory=time.monotonic)
    reported: bool = False
    """Whether a message of it has come."""
    open: set[str] = field(default_factory=set)
    """Arms whose records have come, but not yet their cell."""


@dataclass
class ClusterRunner:
    """Runs cells as `benchctl.measurement.runner.Runner` does, each group of a block on a node."""

    cluster: Cluster
    prepared: Prepared
    writer: RunWriter
    work: NodeWork
    stop_at_failure: bool = False
    stopped: bool = False
    """Whether a failure ended the run, as the user requested; groups that had begun were finished."""
    nodes: dict[str, NodeFacts] = field(default_factory=dict)
    """Nodes that are up and can measure this run. The one that has waited longest for a group is first."""
    without_baseline: set[GroupKey] = field(default_factory=set)
    waiting: deque[GroupPlan] = field(default_factory=deque)
    running: dict[str, _Running] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        """Whether the run is over: it stopped at a failure, or no condition has a baseline that starts."""
        recipe = self.prepared.recipe
        return self.stopped or set(map(recipe.group_of, recipe.arms)) <= self.without_baseline

    def get_ready(self, progress: RunProgress) -> None:
        """Inspect every node and keep those that can measure this run. Raises EngineError when none can."""
        devices = {setup.recipe.engine.model_dump().get("device") for setup in self.prepared.setups.values()}
        refused = []
        for node, facts in self.cluster.inspect_nodes(self.work, accelerator=bool(devices & {"cuda", "gpu"})).items():
            if isinstance(facts, NodeFacts):
                self.nodes[node] = facts
                self._machine_of(node)
            else:
                refused.append(f"node {node[:8]}: {one_line(facts, 300)}")
                progress.note(f"Not used: {refused[-1]}")
        if not self.nodes:
            reasons = f": {'; '.join(refused)}" if refused else ": none is up that has what the recipe needs."
            raise EngineError(
                f"No node of {self.cluster.where} can measure this run{reasons}",
                kind="launch",
                fix="Give the nodes the same benchctl, the engine and the models: see `benchctl docs clusters`.",
            )
        hosts, kinds = ({getattr(facts, attribute) for facts in self.nodes.values()} for attribute in ("host", "kind"))
        progress.note(
            f"Cluster {self.cluster.where}: nodes: {len(self.nodes)}, hosts: {len(hosts)}, with a group at a time on "
            f"each; kinds of machines: {len(kinds)}."
        )

    def run(self, plan: list[CellPlan], progress: RunProgress) -> None:
        """Measure every group. Raises KeyboardInterrupt after recording what was cut off, EngineError, StorageError."""
        self.waiting.extend(groups_of(plan))
        try:
            while self.waiting or self.running:
                if self.stopped and self.waiting:
                    progress.note("Stopped at the first failure (-x); groups that have begun are finished.")
                    self.waiting.clear()
                self._hand_out()
                if self.waiting and not self.running:
                    problem = f"No node of {self.cluster.where} is left; {len(self.waiting)} groups are not measured."
                    raise self._incomplete(problem, "Bring the nodes up again")
                for node, message in self.cluster.poll(POLL_S):
                    self._take(node, message, progress)
                self._note_waiting(progress)
        except DisconnectedError as error:
            problem = f"The connection to {self.cluster.where} was lost: {error}"
            raise self._incomplete(problem, "Join it again") from None
        except BaseException:
            self._interrupt(progress)
            raise
        finally:
            for node in list(self.running):
                self._discard(node, UNFINISHED)

    def _hand_out(self) -> None:
        busy = {self.nodes[node].host for node in self.running}
        for node, facts in list(self.nodes.items()):
            while self.waiting and self.waiting[0].key in self.without_baseline:
                self.waiting.popleft()
            if self.waiting and facts.host not in busy:
                group = self.waiting.popleft()
                attempts = {cell.arm.name: self._next_attempt(cell) for cell in group.cells}
                bare = self.writer.manifest.model_copy(update={"cells": []})
                self.cluster.start(node, GroupWork(self.work, bare, group.cells, attempts, facts.engines))
                self.running[node] = _Running(group, attempts)
                self.nodes[node] = self.nodes.pop(node)
                busy.add(facts.host)

    def _next_attempt(self, plan: CellPlan) -> int:
        earlier = (cell for cell in self.writer.manifest.cells if (cell.block, cell.arm) == (plan.block, plan.arm.name))
        return max((cell.attempt for cell in earlier), default=-1) + 1

    def _take(self, node: str, message: Message, progress: RunProgress) -> None:
        group = self.running.get(node)
        if group is None:
            return
        match message:
            case ("done",):
                del self.running[node]
            case "refused", what, where, fix:
                del self.running[node]
                raise EngineError(what, kind="launch", where=where, fix=fix)
            case "lost", reason:
                self._discard(node, LOST)
                del self.nodes[node]
                self.waiting.appendleft(group.plan)
                name, cause = group.plan.name, one_line(reason, 200)
                progress.note(f"Node {node[:8]} was lost ({cause}); {name} is measured again elsewhere.")
            case _:
                self._receive(node, group, message, progress)

    def _receive(self, node: str, group: _Running, message: Message, progress: RunProgress) -> None:
        group.reported, failed = True, False
        match message:
            case "line", text:
                record = Record.from_line(text.encode("ascii"))
                group.open.add(record.label)
                failed = record.error is not None
                self.writer.append_line(text)
            case "cell", cell, log:
                group.open.discard(cell.arm)
                write_whole(self.writer.folder / LOGS / Path(cell.log).name, log)
                self.writer.add_cell(cell.model_copy(update={"machine": self._machine_of(node).name, "node": node}))
                failed = cell.status == "failed"
                if failed and cell.block == 0 and self.prepared.recipe.compared[cell.arm].is_baseline:
                    self.without_baseline.add(group.plan.key)
            case "note", text:
                progress.note(f"{node[:8]}: {text}")
            case method, arm, *values:
                getattr(progress, method)(next(cell for cell in group.plan.cells if cell.arm.name == arm), *values)
        self.stopped = self.stopped or (self.stop_at_failure and failed)

    def _machine_of(self, node: str) -> MachineIdentity:
        """Return the kind of machine of a node; the manifest lists it from now on."""
        machines, facts = self.writer.manifest.machines, self.nodes[node]
        for machine in machines:
            if machine.kind == facts.kind:
                if node not in machine.nodes:
                    machine.nodes.append(node)
                return machine
        name = f"m{len(machines) + 1}"
        machines.append(
            MachineIdentity(name=name, kind=facts.kind, nodes=[node], facts=facts.facts, engines=facts.engines)
        )
        return machines[-1]

    def _discard(self, node: str, reason: str) -> None:
        """Discard everything of a group that was not finished on its node."""
        group, cells = self.running.pop(node), self.writer.manifest.cells
        for index, cell in enumerate(cells):
            if cell.block == group.plan.block and group.attempts.get(cell.arm, inf) <= cell.attempt:
                cells[index] = cell.model_copy(update={"discarded": reason})
        for plan in group.plan.cells:
            attempt = group.attempts[plan.arm.name]
            if plan.arm.name in group.open:
                cells.append(
                    Cell(
                        block=plan.block,
                        arm=plan.arm.name,
                        order=plan.order,
                        attempt=attempt,
                        status="interrupted",
                        started_at="",
                        wall_s=time.monotonic() - group.began,
                        log=f"{LOGS}/block{plan.block}-{plan.arm.name}{f'.{attempt}' if attempt else ''}.log",
                        node=node,
                        discarded=reason,
                    )
                )
        self.writer.save()

    def _interrupt(self, progress: RunProgress) -> None:
        """Stop all engines, by force if it takes too long, and store the messages that still come."""
        going = set(self.running)
        for force in (False, True):
            until = time.monotonic() + STOP_S
            with suppress(DisconnectedError):
                self.cluster.stop(force=force)
                while going and time.monotonic() < until:
                    for node, message in self.cluster.poll(POLL_S):
                        if message[0] in ENDS:
                            going.discard(node)
                        elif node in going:
                            self._receive(node, self.running[node], message, progress)

    def _incomplete(self, message: str, remedy: str) -> EngineError:
        resume = f"benchctl run --resume {home_relative(self.writer.folder)} --on {self.cluster.where}"
        return EngineError(message, kind="crash", fix=f"{remedy}, then: {resume}")

    def _note_waiting(self, progress: RunProgress) -> None:
        for node, group in self.running.items():
            if not group.reported and time.monotonic() - group.began > WAIT_NOTE_S:
                group.reported = True
                progress.note(f"Waiting for node {node[:8]}: other work is running on it.")


@dataclass(frozen=True)
class OnCluster:
    """The cluster of a run, and the options of the command line that its nodes need."""

    cluster: Cluster
    models_dir: Path | None = None
    binary: str | None = None

    @property
    def where(self) -> str:
        """The name that `--on` was given."""
        return self.cluster.where

    def discard_unfinished(self, writer: RunWriter, recipe: Recipe, plan: Iterable[CellPlan]) -> None:
        """Discard the groups of a resumed run that are not complete; each is measured again on one node."""
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
        """Return the runner that measures a run's cells on the cluster."""
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
