"""A real Ray cluster on this machine: a head and three nodes, which count as one host."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchctl.data.manifest import Manifest
from benchctl.data.store import open_run
from tests.experiments.cluster.conftest import RECIPE
from tests.waiting import wait_for

pytest.importorskip("ray", reason="Ray is not installed (pip install 'benchctl[ray]')")

pytestmark = [pytest.mark.engine, pytest.mark.ray]

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
STORE = 80 * 2**20
"""Bytes of shared memory for each node's object store; nothing large goes through it."""
ADDRESSES = itertools.count(2)
"""The last number of the loopback address that the next node gets."""


@pytest.fixture(scope="module")
def head() -> Iterator[Any]:
    """A head that measures nothing."""
    from ray.cluster_utils import Cluster

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = {
        "num_cpus": 0,
        "object_store_memory": STORE,
        "include_dashboard": False,
        "ray_client_server_port": port,
    }
    cluster: Any = Cluster(initialize_head=True, head_node_args=arguments)
    cluster.client_server = f"ray://127.0.0.1:{port}"
    yield cluster
    cluster.shutdown()


@pytest.fixture
def cluster(head: Any) -> Iterator[Any]:
    """The head; the nodes that a test adds go with it."""
    yield head
    for node in list(head.worker_nodes):
        head.remove_node(node)


def add(cluster: Any, **env: str) -> Any:
    """Add a node with an address of its own, so that benchctl is connected through the head, as on real clusters."""
    address = {"node_ip_address": f"127.0.0.{next(ADDRESSES)}"} if sys.platform == "linux" else {}  # others have one
    return cluster.add_node(num_cpus=1, object_store_memory=STORE, env_vars=env, **address)


def command(cluster: Any, *arguments: str, on: str = "ray") -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "benchctl", "run", *arguments, "--on", on]
    env = {**os.environ, "RAY_ADDRESS": cluster.address}
    return subprocess.Popen(argv, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finished(cluster: Any, *arguments: str, status: int = 0, on: str = "ray") -> str:
    process = command(cluster, *arguments, on=on)
    printed, _ = process.communicate()
    assert process.returncode == status, printed
    return printed


def run_folder(out: Path) -> Path:
    (folder,) = (out / "cluster").iterdir()
    return folder


def manifest_of(folder: Path) -> Manifest:
    return Manifest.model_validate(json.loads((folder / "manifest.json").read_text()))


def engines_of(folder: Path) -> list[psutil.Process]:
    """The engines whose target is the recipe's own copy of the model, which no other test has."""
    engines = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if any("llama-server" in word for word in words[:1]) and any(str(folder) in word for word in words):
            engines.append(process)
    return engines


@pytest.fixture
def own_recipe(tmp_path: Path, tiny_target: Path) -> Path:
    """The recipe, with a target of the test's own."""
    shutil.copy(tiny_target, tmp_path / "target.gguf")
    file = tmp_path / "cluster.yaml"
    file.write_text(RECIPE.replace("SOURCE", "target.gguf").replace("max_tokens: 24", "max_tokens: 200"), "utf-8")
    return file


def test_without_rays_client_there_is_one_message(recipe_file: Path, tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('not installed', name='grpc')\n")
    with socket.create_server(("127.0.0.1", 0)) as something:
        where = f"ray://127.0.0.1:{something.getsockname()[1]}"
        argv = [
            sys.executable,
            "-m",
            "benchctl",
            "run",
            str(recipe_file),
            "--output",
            str(tmp_path / "runs"),
            "--on",
            where,
        ]
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        process = subprocess.run(argv, env=env, text=True, capture_output=True, check=False)
    assert process.returncode == 2, process.stderr
    assert "Ray's client (ray[client]) is not installed here" in " ".join(process.stderr.split())
    assert "pip install 'benchctl[ray]'" in " ".join(process.stderr.split())


def test_three_nodes_give_the_same_answers_as_none(cluster: Any, recipe_file: Path, tmp_path: Path) -> None:
    for _ in range(3):
        add(cluster)
    printed = finished(cluster, str(recipe_file), "--output", str(tmp_path / "on"))
    assert "nodes: 3, hosts: 1" in " ".join(printed.split())
    local_out = ("--output", str(tmp_path / "alone"), "--quiet")
    subprocess.run([sys.executable, "-m", "benchctl", "run", str(recipe_file), *local_out], check=True)
    runs = [open_run(run_folder(tmp_path / name)) for name in ("on", "alone")]
    hashes = [{(r.key, r.token_sha) for r in run.records if r.phase == "measure"} for run in runs]
    assert hashes[0] == hashes[1]
    manifest = manifest_of(runs[0].folder)
    assert len({cell.node for cell in manifest.cells}) == 3
    assert {cell.machine for cell in manifest.cells} == {"m1"}
    ends = [(cell.started_at, cell.wall_s) for cell in manifest.cells]
    assert ends == sorted(ends), "nodes of one host measure one after the other"


def test_from_outside_through_rays_client_server(cluster: Any, recipe_file: Path, tmp_path: Path) -> None:
    for _ in range(2):
        add(cluster)
    out = tmp_path / "runs"
    finished(cluster, str(recipe_file), "--output", str(out), on=cluster.client_server)
    manifest = manifest_of(run_folder(out))
    assert manifest.status == "finished"
    assert len({cell.node for cell in manifest.cells}) == 2
    assert len([r for r in open_run(run_folder(out)).records if r.phase == "measure"]) == 8


def test_ctrl_c_from_outside(cluster: Any, own_recipe: Path, tmp_path: Path) -> None:
    add(cluster)
    out = tmp_path / "runs"
    process = command(cluster, str(own_recipe), "--output", str(out), on=cluster.client_server)
    wait_for(lambda: engines_of(tmp_path), "an engine")  # a connection that failed takes 40 s
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate()
    assert process.returncode == 130, printed
    assert f"--on {cluster.client_server}" in " ".join(printed.split())
    wait_for(lambda: not engines_of(tmp_path), "the end of all engines")
    assert manifest_of(run_folder(out)).status == "interrupted"


@pytest.mark.skipif(sys.platform != "linux", reason="Elsewhere all nodes share one address, also with benchctl's own.")
def test_a_node_killed_in_mid_run(cluster: Any, own_recipe: Path, tmp_path: Path) -> None:
    nodes = [add(cluster) for _ in range(2)]
    out = tmp_path / "runs"
    process = command(cluster, str(own_recipe), "--output", str(out))
    engine = wait_for(lambda: engines_of(tmp_path), "an engine")[0]
    raylets = {node: psutil.Process(node.all_processes["raylet"][0].process.pid) for node in nodes}
    above = set(engine.parents())
    busy = next((node for node, raylet in raylets.items() if raylet in above), nodes[0])
    cluster.remove_node(busy, allow_graceful=False)
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    manifest = manifest_of(run_folder(out))
    gone = {(cell.block, cell.node) for cell in manifest.cells if cell.discarded}
    counted_nodes = {cell.node for cell in manifest.cells if cell.discarded is None}
    assert len(counted_nodes) == 1 or not gone
    assert len([cell for cell in manifest.cells if cell.discarded is None]) == 8
    assert len([r for r in open_run(run_folder(out)).records if r.phase == "measure"]) == 8
    wait_for(lambda: not engines_of(tmp_path), "the end of all engines")


def test_a_killed_driver_leaves_no_engine_and_can_be_resumed(cluster: Any, own_recipe: Path, tmp_path: Path) -> None:
    add(cluster)
    out = tmp_path / "runs"
    process = command(cluster, str(own_recipe), "--output", str(out))
    wait_for(lambda: engines_of(tmp_path), "an engine")
    process.kill()
    process.communicate()
    wait_for(lambda: not engines_of(tmp_path), "the end of all engines")
    folder = run_folder(out)
    finished(cluster, "--resume", str(folder))
    assert manifest_of(folder).status == "finished"
    assert len([r for r in open_run(folder).records if r.phase == "measure"]) == 8


def test_ctrl_c_stops_the_engines_on_the_nodes(cluster: Any, own_recipe: Path, tmp_path: Path) -> None:
    add(cluster)
    out = tmp_path / "runs"
    process = command(cluster, str(own_recipe), "--output", str(out))
    wait_for(lambda: engines_of(tmp_path), "an engine")
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate()
    assert process.returncode == 130, printed
    assert "--on ray" in printed
    wait_for(lambda: not engines_of(tmp_path), "the end of all engines")
    assert manifest_of(run_folder(out)).status == "interrupted"


def test_a_node_with_other_model_bytes_is_not_used(cluster: Any, tmp_path: Path, tiny_target: Path) -> None:
    homes = {name: tmp_path / name for name in ("here", "there")}
    for home in homes.values():
        home.mkdir()
        shutil.copy(tiny_target, home / "target.gguf")
    with (homes["there"] / "target.gguf").open("r+b") as model:
        model.seek(-1, os.SEEK_END)
        model.write(b"\x55")
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    same = {"XDG_CACHE_HOME": cache, "HOME": str(homes["here"])}
    add(cluster, **same)
    add(cluster, XDG_CACHE_HOME=cache, HOME=str(homes["there"]))
    recipe = tmp_path / "cluster.yaml"
    recipe.write_text(RECIPE.replace("SOURCE", "~/target.gguf"), "utf-8")
    argv = [sys.executable, "-m", "benchctl", "run", str(recipe), "--on", "ray", "--output", str(tmp_path / "runs")]
    env = {**os.environ, **same, "RAY_ADDRESS": cluster.address}
    process = subprocess.run(argv, env=env, text=True, capture_output=True, check=False)
    assert process.returncode == 0, process.stderr
    assert "model files differ" in " ".join(process.stderr.split())
    assert len({cell.node for cell in manifest_of(run_folder(tmp_path / "runs")).cells}) == 1


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("ray://127.0.0.1:1", "Nothing answers at ray://127.0.0.1:1"),
        ("ray://somewhere", "A cluster is named ray or ray://HOST:PORT"),
        ("slurm", "A cluster is named ray or ray://HOST:PORT"),
    ],
)
def test_a_cluster_that_is_not_there(recipe_file: Path, tmp_path: Path, where: str, message: str) -> None:
    argv = [
        sys.executable,
        "-m",
        "benchctl",
        "run",
        str(recipe_file),
        "--output",
        str(tmp_path / "runs"),
        "--on",
        where,
    ]
    process = subprocess.run(argv, text=True, capture_output=True, check=False)
    assert process.returncode == 2
    assert message in process.stderr
    assert not (tmp_path / "runs").exists()
