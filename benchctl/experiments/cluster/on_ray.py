"""A Ray cluster that runs already: each group is a task that has a whole node to itself.

Ray's own pieces do the work: node affinity places a task, its resources (all CPUs and GPUs of the node) hold every
other task off, cancelling interrupts it, and the end of the driver ends it. Nothing else imports Ray.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchctl.errors import BenchctlError, EngineError, UsageError
from benchctl.experiments.cluster.node import GroupWork, Message, NodeFacts, NodeWork, inspect_node, measure_group
from benchctl.experiments.cluster.session import DisconnectedError, Happened, OnCluster
from benchctl.text import one_line

LOCAL = "ray"
CONNECT_S = 5.0
ATTEMPTS = 4
"""How often Ray's client may try to connect. The process that its server forks for each client dies at once in some
7 of 100 attempts or more (a race of gRPC's with fork, ray-project/ray issue 63202), and nothing has begun by then."""
INSPECT_S = 600.0
"""For preparing the recipe on a node, model files hashed for the first time included."""
ANSWER_S = 60.0
"""How long the inbox may take to answer; it only hands over what was left."""
SHIP_S = 0.1
"""How often a node sends what it has collected."""

Handle = Any
"""Ray's tasks, actors and the module itself: they are made at run time and have no types."""


def connect(where: str) -> RayCluster:
    """Join the cluster that `--on` names: `ray` (of this machine) or `ray://HOST:PORT`. Raises UsageError."""
    try:
        import ray

        if where != LOCAL:
            import_module("grpc")  # which Ray alone does not bring, and its client needs
    except ImportError as missing:
        what = "Ray's client (ray[client])" if missing.name == "grpc" else "Ray"
        raise UsageError(
            f"{what} is not installed here.", where="--on", fix="Install it: pip install 'benchctl[ray]'"
        ) from None
    address = "auto"
    if where != LOCAL:
        parts = urlsplit(where)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host = port = None
        if parts.scheme != "ray" or not host or not port:
            raise UsageError(
                f"A cluster is named ray or ray://HOST:PORT; got '{one_line(where, 60)}'.",
                where="--on",
                fix="ray is that of this machine; the port is that of Ray's client server, 10001 as a rule.",
            )
        try:
            socket.create_connection((host, port), timeout=CONNECT_S).close()
        except OSError as error:
            raise UsageError(
                f"Nothing answers at {where}: {error.strerror or error}.",
                where="--on",
                fix="Start the head node with `ray start --head --ray-client-server-port=10001`, or correct it.",
            ) from None
        address = where
    _join(ray, address)
    return RayCluster(where)


def _join(ray: Handle, address: str) -> None:
    """Connect Ray to a cluster, again where its client server failed. Raises UsageError."""
    for left in reversed(range(ATTEMPTS)):
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="benchctl")
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            if left and isinstance(error, ConnectionAbortedError):
                continue
            raise UsageError(
                f"No Ray cluster was joined: {one_line(str(error), 300)}",
                where="--on",
                fix="Start a cluster with `ray start --head`; Ray and Python must be of the same version on all nodes.",
            ) from None
        return


class _Inbox:
    """Where nodes leave their messages, in order; an actor beside the driver."""

    def __init__(self) -> None:
        self._left: list[tuple[str, Message]] = []

    def put(self, node: str, messages: list[Message]) -> None:
        """Leave messages of a node."""
        self._left += [(node, message) for message in messages]

    def take(self) -> list[tuple[str, Message]]:
        """Return everything that was left, and forget it."""
        left, self._left = self._left, []
        return left


class RayCluster:
    """See `benchctl.experiments.cluster.session.Cluster`."""

    def __init__(self, where: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.where = where
        self._ray: Handle = ray
        self._on = NodeAffinitySchedulingStrategy
        here = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(num_cpus=0)(_Inbox)
        # Not soft: Ray would then put it on any node, and that node's end would take every message with it.
        self._inbox = actor.options(scheduling_strategy=self._on(here, soft=False)).remote()
        self._tasks: dict[Handle, str] = {}
        self._connected = True

    def nodes(self, *, accelerator: bool) -> list[str]:
        """Return the ids of the nodes that are up."""
        up = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return [found_node["NodeID"] for found_node in up if not accelerator or found_node["Resources"].get("GPU")]

    def inspect_nodes(self, nodes: Sequence[str], work: NodeWork) -> dict[str, NodeFacts | str]:
        """Prepare the run on every node at once."""
        task = self._ray.remote(max_retries=0)(inspect_node)
        node_of = {task.options(**self._alone_on(node)).remote(work): node for node in nodes}
        tasks = list(node_of)
        ready, late = self._ray.wait(tasks, num_returns=len(tasks), timeout=INSPECT_S) if tasks else ([], [])
        found: dict[str, NodeFacts | str] = {
            node_of[late_task]: f"it did not answer within {INSPECT_S:g} s" for late_task in late
        }
        for asked in late:
            self._ray.cancel(asked, force=True)
        for asked in ready:
            try:
                found[node_of[asked]] = self._ray.get(asked)
            except Exception as error:  # whatever another version of benchctl, or none, makes of the task
                found[node_of[asked]] = f"benchctl does not run there, or is another version ({_reason(error)})"
        return {node: found[node] for node in nodes}

    def start(self, node: str, work: GroupWork) -> None:
        """Begin a group; its task waits until the node is free."""
        task = self._ray.remote(max_retries=0)(_measure)
        self._tasks[task.options(**self._alone_on(node)).remote(work, self._inbox, node)] = node

    def poll(self, timeout_s: float) -> list[Happened]:
        """Return messages first: a task that has ended has sent all of them. Raises DisconnectedError, once."""
        if not self._connected:
            return [Happened(self._tasks.pop(task), done=True) for task in list(self._tasks)]
        over: list[Handle] = []
        try:
            if self._tasks:
                over, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=timeout_s)
            messages = self._ray.get(self._inbox.take.remote(), timeout=ANSWER_S)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            # The inbox lives on the node through which this process is connected: without it nothing can be received.
            self._connected = False
            raise DisconnectedError(_reason(error)) from None
        return [Happened(node, message=message) for node, message in messages] + [self._ended(task) for task in over]

    def stop(self, *, force: bool) -> None:
        """Interrupt every task; those of a lost connection end with it."""
        for task in self._tasks if self._connected else ():
            self._ray.cancel(task, force=force)

    def close(self) -> None:
        """Leave the cluster; tasks that are left end with it."""
        self._ray.shutdown()

    def _alone_on(self, node: str) -> dict[str, Any]:
        has: dict[str, float] = next((known["Resources"] for known in self._ray.nodes() if known["NodeID"] == node), {})
        return {
            "scheduling_strategy": self._on(node, soft=False),
            "num_cpus": has.get("CPU", 1),
            "num_gpus": has.get("GPU", 0),
        }

    def _ended(self, task: Handle) -> Happened:
        node = self._tasks.pop(task)
        try:
            refused = self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return Happened(node, done=True)
        except Exception as error:
            return Happened(node, lost=_reason(error))
        if refused is not None:
            what, where, fix = refused
            return Happened(node, error=EngineError(what, kind="launch", where=where, fix=fix))
        return Happened(node, done=True)


def _measure(work: GroupWork, inbox: Handle, node: str) -> tuple[str, str | None, str | None] | None:
    """The task: measure a group and ship what comes; return what benchctl refused, if anything."""
    import ray

    left: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    shipping = threading.Thread(target=_ship, args=(ray, left, inbox, node), daemon=True)
    shipping.start()
    try:
        measure_group(work, left.put)
    except BenchctlError as error:
        return error.what, error.where, error.fix
    finally:
        left.put(None)
        shipping.join()
    return None


def _ship(ray: Handle, left: queue.SimpleQueue[Message | None], inbox: Handle, node: str) -> None:
    """Send what is left in the queue, a batch at a time, until `None` comes; never in the way of measuring."""
    going = True
    while going:
        batch = [left.get()]
        time.sleep(SHIP_S if batch[0] is not None else 0)
        while not left.empty():
            batch.append(left.get())
        going = None not in batch
        messages = [message for message in batch if message is not None]
        if messages:
            ray.get(inbox.put.remote(node, messages))


def _reason(error: BaseException) -> str:
    """Return the last line of Ray's message, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(f"{type(error).__name__}: {lines[-1] if lines else ''}", 300)


@contextmanager
def connected(where: str, *, models_dir: Path | None, binary: str | None) -> Iterator[OnCluster]:
    """Stay connected to a cluster, `ray` or `ray://HOST:PORT`. Raises UsageError where there is none."""
    cluster = connect(where)
    try:
        yield OnCluster(cluster, models_dir, binary)
    finally:
        cluster.close()
