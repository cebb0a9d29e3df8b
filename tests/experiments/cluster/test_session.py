"""Groups over nodes, with real engines and nodes that are threads: what a cluster does wrong is put on here."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from benchctl.data.manifest import Manifest
from benchctl.data.record import Record, RecordError
from benchctl.data.store import open_run
from benchctl.errors import EngineError, UsageError
from benchctl.experiments.cluster.node import GroupWork, Message, NodeFacts, NodeWork, inspect_node, measure_group
from benchctl.experiments.cluster.on_ray import connected
from benchctl.experiments.cluster.session import DisconnectedError, OnCluster
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.prepare import Prepared, prepare
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.resume import recipe_of, resume_run
from benchctl.measurement.run import start_run
from benchctl.recipes.load import load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.engine]


class Threads:
    """Nodes that are threads of this process; `lose` has one vanish with its group half done."""

    where = "threads"

    def __init__(self, machines: Sequence[str], *, hosts: Sequence[str] | None = None) -> None:
        self.machines = {f"node{number}-{name}": name for number, name in enumerate(machines)}
        self.hosts = dict(zip(self.machines, hosts or ["host"] * len(machines), strict=True))
        self.happened: SimpleQueue[tuple[str, Message]] = SimpleQueue()
        self.lose: str | None = None
        self.interrupt_after: int | None = None
        self.disconnect_after: int | None = None
        self.started: list[tuple[str, int]] = []
        self.fail_requests_of: str | None = None
        self.change: Callable[[str, NodeFacts], NodeFacts | str] = lambda _, facts: facts

    def inspect_nodes(self, work: NodeWork, *, accelerator: bool) -> dict[str, NodeFacts | str]:
        assert not accelerator
        result = inspect_node(pickle.loads(pickle.dumps(work)))
        if isinstance(result, str):
            return dict.fromkeys(self.machines, result)
        return {
            node: self.change(node, replace(result, host=self.hosts[node], facts=result.facts | {"name": name}))
            for node, name in self.machines.items()
        }

    def start(self, node: str, work: GroupWork) -> None:
        self.started.append((node, work.cells[0].block))
        sent = pickle.loads(pickle.dumps(work))  # as it would be on its way
        threading.Thread(target=self._measure, args=(node, sent), daemon=True).start()

    def _measure(self, node: str, work: GroupWork) -> None:
        if node == self.lose:
            first = replace(work, cells=work.cells[:1])
            measure_group(first, lambda message: self.happened.put((node, message)))
            self.happened.put((node, ("lost", "the power failed")))
            return
        measure_group(work, lambda message: self.happened.put((node, self._sent(message))))
        self.happened.put((node, ("done",)))

    def _sent(self, message: Message) -> Message:
        """Make every request of `fail_requests_of` one that failed."""
        if message[0] != "line" or (record := Record.from_line(message[1])).label != self.fail_requests_of:
            return message
        return "line", record.changed(error=RecordError(kind="timeout", message="no answer")).to_line()

    def poll(self, timeout_s: float) -> list[tuple[str, Message]]:
        if self.disconnect_after is not None and len(self.started) > self.disconnect_after:
            self.disconnect_after = None
            raise DisconnectedError("the power failed here")
        if self.interrupt_after is not None and len(self.started) > self.interrupt_after:
            self.interrupt_after = None
            raise KeyboardInterrupt
        try:
            return [self.happened.get(timeout=timeout_s)]
        except Empty:
            return []

    def stop(self, *, force: bool) -> None:
        """Threads cannot be interrupted: what they measure comes to its end."""


@pytest.fixture
def prepared(recipe_file: Path) -> Prepared:
    return prepare(load_recipe(recipe_file), recipe_folder=recipe_file.parent)


def manifest_of(folder: Path) -> Manifest:
    return Manifest.model_validate(json.loads((folder / "manifest.json").read_text()))


def test_a_group_stays_on_one_node_and_a_host_has_one_at_a_time(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads(["", "", ""])
    folder = start_run(prepared, tmp_path / "runs", RunProgress(), ["benchctl"], on=OnCluster(cluster))
    manifest = manifest_of(folder)
    assert manifest.status == "finished"
    assert [block for _, block in cluster.started] == [0, 1, 2, 3]
    assert len({node for node, _ in cluster.started}) == 3, "every node had its turn"
    by_block = {block: {cell.node for cell in manifest.cells if cell.block == block} for block in range(4)}
    assert all(len(nodes) == 1 for nodes in by_block.values())
    spans = [(cell.started_at, cell.wall_s) for cell in manifest.cells]
    assert spans == sorted(spans), "one after the other, since the nodes share a host"
    assert [machine.name for machine in manifest.machines] == ["m1"]
    assert sorted(file.name for file in (folder / "logs").glob("block*.log")) == sorted(
        f"block{block}-{arm}.log" for block in range(4) for arm in ("baseline", "spec")
    )
    local_folder = start_run(prepared, tmp_path / "alone", RunProgress(), ["benchctl"])
    on_nodes, local = (
        {(record.key, record.token_sha) for record in open_run(run).records if record.phase == "measure"}
        for run in (folder, local_folder)
    )
    assert on_nodes == local
    assert open_run(folder).integrity.state == "intact", "its lines are chained where the nodes' come together"
    assert [row.verdict for row in analyse_run(open_run(folder)).losslessness] == ["identical"]


def test_hosts_work_side_by_side(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads(["", ""], hosts=["one", "other"])
    start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(cluster))
    assert {node for node, _ in cluster.started[:2]} == set(cluster.machines), "both began at once"


def test_a_lost_node_costs_its_group_which_is_done_again_elsewhere(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads(["", ""])
    cluster.lose = "node1-"
    folder = start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(cluster))
    manifest = manifest_of(folder)
    gone = [cell for cell in manifest.cells if cell.discarded]
    assert [(cell.block, cell.node) for cell in gone] == [(1, "node1-")]
    counting = {(cell.block, cell.arm): cell.node for cell in manifest.cells if cell.discarded is None}
    assert set(counting.values()) == {"node0-"}
    assert len(counting) == 8
    assert manifest.status == "finished"
    run = open_run(folder)
    assert not run.damaged
    assert len([record for record in run.records if record.phase == "measure"]) == 8
    assert all(record.attempt == 1 for record in run.records if record.block == 1 and record.label == gone[0].arm)


def test_a_failed_request_ends_the_run_where_that_was_asked_for(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads([""])
    cluster.fail_requests_of = "spec"
    start_run(prepared, tmp_path / "all", RunProgress(), ["benchctl"], on=OnCluster(cluster))
    assert [block for _, block in cluster.started] == [0, 1, 2, 3]
    cluster.started.clear()
    folder = start_run(
        prepared, tmp_path / "ended", RunProgress(), ["benchctl"], stop_at_failure=True, on=OnCluster(cluster)
    )
    assert [block for _, block in cluster.started] == [0], "the group that had begun is finished, no other is begun"
    assert manifest_of(folder).status == "failed"


def test_when_no_node_is_left_nothing_is_lost_and_it_can_be_resumed(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads([""])
    cluster.lose = "node0-"
    with pytest.raises(EngineError, match=r"No node of threads"):
        start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(cluster))
    (folder,) = (tmp_path / "cluster").iterdir()
    run = open_run(folder, as_stored=True)
    with pytest.raises(UsageError, match="begun on a cluster"):
        resume_run(prepared, run, RunProgress())
    resume_run(prepared, run, RunProgress(), on=OnCluster(Threads([""])))
    assert manifest_of(folder).status == "finished"
    assert len([record for record in open_run(folder).records if record.phase == "measure"]) == 8


def test_an_interrupted_run_goes_on_with_whole_groups(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads(["", ""])
    cluster.interrupt_after = 1
    with pytest.raises(KeyboardInterrupt):
        start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(cluster))
    (folder,) = (tmp_path / "cluster").iterdir()
    assert manifest_of(folder).status == "interrupted"
    run = open_run(folder, as_stored=True)
    assert recipe_of(run) == prepared.recipe
    resume_run(prepared, run, RunProgress(), on=OnCluster(Threads(["", ""])))
    cells = [cell for cell in manifest_of(folder).cells if cell.discarded is None]
    assert sorted((cell.block, cell.arm) for cell in cells) == [
        (block, arm) for block in range(4) for arm in ("baseline", "spec")
    ]
    assert all(len({cell.node for cell in cells if cell.block == block}) == 1 for block in range(4))


def test_a_lost_connection_is_one_message_and_the_run_can_be_resumed(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads(["", ""])
    cluster.disconnect_after = 1
    with pytest.raises(EngineError, match="the power failed here") as raised:
        start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(cluster))
    (folder,) = (tmp_path / "cluster").iterdir()
    assert f"run --resume {folder} --on threads" in str(raised.value.fix)
    resume_run(prepared, open_run(folder, as_stored=True), RunProgress(), on=OnCluster(Threads(["", ""])))
    cells = [cell for cell in manifest_of(folder).cells if cell.discarded is None]
    assert sorted((cell.block, cell.arm) for cell in cells) == [
        (block, arm) for block in range(4) for arm in ("baseline", "spec")
    ]


def test_unlike_machines_are_never_pooled(prepared: Prepared, tmp_path: Path) -> None:
    cluster = Threads(["fast", "slow"])
    folder = start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(cluster))
    assert [machine.label.partition(",")[0] for machine in manifest_of(folder).machines] == ["m1: fast", "m2: slow"]
    analysis = analyse_run(open_run(folder))
    assert sorted(verdict.arm for verdict in analysis.verdicts) == ["spec@m1", "spec@m2"]
    assert analysis.sweep is not None
    levels = {
        row.arm: (row.axes["machine"].partition(",")[0], row.planned, row.requests) for row in analysis.sweep.levels
    }
    assert levels == {
        "baseline@m1": ("m1: fast", 2, 2),
        "spec@m1": ("m1: fast", 2, 2),
        "baseline@m2": ("m2: slow", 2, 2),
        "spec@m2": ("m2: slow", 2, 2),
    }
    assert all(row.verdict == "identical" for row in analysis.losslessness)


def test_nodes_that_cannot_measure_it_are_named(prepared: Prepared, tmp_path: Path) -> None:
    def change(node: str, facts: NodeFacts) -> NodeFacts | str:
        if node == "node0-":
            return "it has no benchctl"
        return "no such model" if node == "node1-" else facts

    cluster, notes = Threads(["", "", ""]), RecordedNotes()
    cluster.change = change
    start_run(prepared, tmp_path / "one", notes, ["benchctl"], on=OnCluster(cluster))
    assert {node for node, _ in cluster.started} == {"node2-"}
    assert [note for note in notes.notes if note.startswith("Not used")] == [
        "Not used: node node0-: it has no benchctl",
        "Not used: node node1-: no such model",
    ]
    none = Threads(["", ""])
    none.change = change
    with pytest.raises(EngineError, match="it has no benchctl"):
        start_run(prepared, tmp_path / "none", RunProgress(), ["benchctl"], on=OnCluster(none))


class RecordedNotes(RunProgress):
    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"package_sha256": "another"}, "another version of benchctl"),
        ({"models": {"": ["0" * 64]}}, "model files differ"),
        ({"binary": "/nowhere/llama-server"}, "no such program"),
    ],
)
def test_what_a_node_says_of_itself(
    prepared: Prepared, tmp_path: Path, change: dict[str, object], problem: str
) -> None:
    works: list[NodeWork] = []

    class Asked(Threads):
        def inspect_nodes(self, work: NodeWork, *, accelerator: bool) -> dict[str, NodeFacts | str]:
            works.append(work)
            return super().inspect_nodes(replace(work, **change), accelerator=accelerator)  # type: ignore[arg-type]

    with pytest.raises(EngineError, match=problem):
        start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(Asked([""])))
    assert isinstance(inspect_node(works[0]), NodeFacts)


def test_an_engine_that_changed_since_its_node_was_inspected_is_not_run(prepared: Prepared, tmp_path: Path) -> None:
    refused: list[UsageError] = []

    class Changing(Threads):
        def start(self, node: str, work: GroupWork) -> None:
            (engine,) = work.engines.values()
            details = engine.details | {"sha256": f"0{engine.details['sha256']}"}
            changed_engines = {"": engine.model_copy(update={"details": details})}
            with pytest.raises(UsageError) as refusal:
                measure_group(replace(work, engines=changed_engines), lambda message: None)
            refused.append(refusal.value)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_run(prepared, tmp_path, RunProgress(), ["benchctl"], on=OnCluster(Changing([""])))
    assert "hash differs" in str(refused[0])


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(UsageError, match="Ray is not installed here") as failure,
        connected("ray", models_dir=None, binary=None),
    ):
        pass
    assert "benchctl[ray]" in (failure.value.fix or "")
