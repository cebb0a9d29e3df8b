"""A cluster's run by machine: a run of one kind of machine has that machine's facts."""

from __future__ import annotations

from benchctl.data.cell import Cell
from benchctl.data.machines import by_machine
from benchctl.data.manifest import EngineIdentity, MachineIdentity, Manifest, SetupIdentity


def engine(version: str) -> EngineIdentity:
    return EngineIdentity.model_construct(kind="toy", version=version, details={})


def test_every_setup_has_the_engine_of_the_nodes_that_ran_it() -> None:
    setups = [SetupIdentity.model_construct(name=name, engine=engine("of the caller")) for name in ("a", "b")]
    nodes = MachineIdentity(name="m1", kind="k", nodes=["n"], facts={"cpu": "fast"})
    nodes = nodes.model_copy(update={"engines": {"a": engine("of the nodes, a"), "b": engine("of the nodes, b")}})
    cell = Cell(block=0, arm="spec", order=0, status="finished", started_at="", wall_s=1, log="", machine="m1")
    manifest = Manifest.model_construct(cells=[cell], machines=[nodes], setups=setups, engine=engine("of the caller"))
    machines, _ = by_machine(manifest, [])
    assert [setup.engine.version for setup in machines.setups] == ["of the nodes, a", "of the nodes, b"]
    assert machines.engine.version == "of the nodes, a"
    assert machines.machine == {"cpu": "fast"}
