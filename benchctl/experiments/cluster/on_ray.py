"""A running Ray cluster: each group is a task that takes a whole node.

Ray does the work: node affinity places a task, its resources (all CPUs and GPUs of the node) keep other tasks away,
cancelling interrupts it, and the end of the driver ends it. No other module imports Ray.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchctl.errors import BenchctlError, UsageError
from benchctl.experiments.cluster.node import GroupWork, Message, NodeFacts, NodeWork, inspect_node, measure_group
from benchctl.experiments.cluster.session import DisconnectedError, OnCluster
from benchctl.text import one_line

LOCAL = "ray"
CONNECT_S = 5.0
ATTEMPTS = 4
"""How often Ray's client may try to connect. The process that its server forks for each client dies at once in some
7 of 100 attempts or more (a race of gRPC's with fork, ray-project/ray issue 63202), and nothing has begun by then."""
INSPECT_S = 600.0
"""Time limit for preparing the recipe on a node, with the first hashing of its model files."""
ANSWER_S = 60.0
"""Time limit for an answer of the inbox; it only returns stored messages."""

Handle = Any
"""Ray's tasks, actors and the module itself: they are made at run time and have no types."""


@contextmanager
def connected(where: str, *, models_dir: Path | None, binary: str | None) -> Iterator[OnCluster]:
    """Join a cluster, `ray` (of this machine) or `ray://HOST:PORT`. Raises UsageError where there is none."""
    try:
        import ray

        if where != LOCAL:
            import_module("grpc")  # Ray's client needs it, and Ray alone does not install it
    except ImportError as missing:
        package = "Ray's client (ray[client])" if missing.name == "grpc" else "Ray"
        raise UsageError(
            f"{package} is not installed here.", where="--on", fix="Install it: pip install 'benchctl[ray]'"
        ) from None
    if where != LOCAL:
        _require_server(where)
    _join(ray, "auto" if where == LOCAL else where)
    try:
        yield OnCluster(RayCluster(ray, where), models_dir, binary)
    finally:
        ray.shutdown()  # this also ends the remaining tasks


def _require_server(where: str) -> None:
    """Raise UsageError unless something listens there; Ray's client would try for half a minute."""
    try:
        parts = urlsplit(where)
        if parts.scheme != "ray" or not parts.hostname or not parts.port:
            raise ValueError
        socket.create_connection((parts.hostname, parts.port), timeout=CONNECT_S).close()
    except ValueError:
        raise UsageError(
            f"A cluster is named ray or ray://HOST:PORT; got '{one_line(where, 60)}'.",
            where="--on",
            fix="ray is that of this machine; the port is that of Ray's client server, 10001 as a rule.",
        ) from None
    except OSError as error:
        raise UsageError(
            f"Nothing answers at {where}: {error.strerror or error}.",
            where="--on",
            fix="Start the head node with `ray start --head --ray-client-server-port=10001`, or correct it.",
        ) from None


def _join(ray: Handle, address: str) -> None:
    """Connect Ray to a cluster, again where its client server failed. Raises UsageError."""
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            ray.init(address=address, log_to_driver=False, configure_logging=False, namespace="benchctl")
        except (ConnectionError, RuntimeError, OSError, ValueError) as error:
            if attempts_left and isinstance(error, ConnectionAbortedError):
                continue
            raise UsageError(
                f"No Ray cluster was joined: {one_line(str(error), 300)}",
                where="--on",
                fix="Start a cluster with `ray start --head`; Ray and Python must be of the same version on all nodes.",
            ) from None
        return


class _Inbox:
    """Collects the messages of the nodes in order. It is an actor on the driver's node."""

    def __init__(self) -> None:
        self._left: list[tuple[str, Message]] = []

    def put(self, node: str, message: Message) -> None:
        """Add a message of a node."""
        self._left.append((node, message))

    def take(self) -> list[tuple[str, Message]]:
        """Return all messages, and forget them."""
        messages, self._left = self._left, []
        return messages


class RayCluster:
    """See `benchctl.experiments.cluster.session.Cluster`."""

    def __init__(self, ray: Handle, where: str) -> None:
        self.where = where
        self._ray = ray
        self._tasks: dict[Handle, str] = {}
        self._resources: dict[str, dict[str, float]] = {}
        # The inbox must be on this node: if another node held it, the loss of that node would lose all messages.
        at_this_node = self._at(ray.get_runtime_context().get_node_id())
        self._inbox = ray.remote(num_cpus=0)(_Inbox).options(**at_this_node).remote()

    def inspect_nodes(self, work: NodeWork, *, accelerator: bool) -> dict[str, NodeFacts | str]:
        """Prepare the run on every node at once."""
        needed = ("CPU", "GPU") if accelerator else ("CPU",)
        self._resources = {node["NodeID"]: node["Resources"] for node in self._ray.nodes() if node["Alive"]}
        up = [node for node, resources in self._resources.items() if all(map(resources.get, needed))]
        tasks = {self._alone_on(node, inspect_node).remote(work): node for node in up}
        late = self._ray.wait(list(tasks), num_returns=len(tasks), timeout=INSPECT_S)[1] if tasks else []
        return {node: self._inspected(task, late=task in late) for task, node in tasks.items()}

    def _inspected(self, task: Handle, *, late: bool) -> NodeFacts | str:
        if late:
            self._ray.cancel(task, force=True)
            return f"it did not answer within {INSPECT_S:g} s"
        try:
            facts: NodeFacts | str = self._ray.get(task)
        except Exception as error:  # any error may come from another version of benchctl, or from none
            return f"benchctl does not run there, or is another version ({_reason(error)})"
        return facts

    def start(self, node: str, work: GroupWork) -> None:
        """Begin a group; its task waits until the node is free."""
        self._tasks[self._alone_on(node, _measure).remote(work, self._inbox, node)] = node

    def poll(self, timeout_s: float) -> list[tuple[str, Message]]:
        """Return messages before ends: a task that has ended has sent all of its own. Raises DisconnectedError."""
        over: list[Handle] = []
        try:
            if self._tasks:
                over, _ = self._ray.wait(list(self._tasks), num_returns=len(self._tasks), timeout=timeout_s)
            messages: list[tuple[str, Message]] = self._ray.get(self._inbox.take.remote(), timeout=ANSWER_S)
        except (self._ray.exceptions.RayError, ConnectionError) as error:
            # The inbox is on the node that connects this process. Without it no message can be received.
            raise DisconnectedError(_reason(error)) from None
        return messages + [(self._tasks.pop(task), self._end_of(task)) for task in over]

    def stop(self, *, force: bool) -> None:
        """Interrupt every task."""
        for task in self._tasks:
            self._ray.cancel(task, force=force)

    def _at(self, node: str) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}

    def _alone_on(self, node: str, function: Callable[..., object]) -> Handle:
        """Return a task that takes all resources of a node."""
        has = self._resources[node]
        task = self._ray.remote(max_retries=0)(function)
        return task.options(**self._at(node), num_cpus=has["CPU"], num_gpus=has.get("GPU", 0))

    def _end_of(self, task: Handle) -> Message:
        try:
            end: Message = self._ray.get(task)
        except self._ray.exceptions.TaskCancelledError:
            return ("done",)
        except Exception as error:
            return "lost", _reason(error)
        return end


def _measure(work: GroupWork, inbox: Handle, node: str) -> Message:
    """The task: measure a group and send what comes, without waiting for it to arrive; return how it ended."""
    import ray

    sent: deque[Handle] = deque(maxlen=1)
    try:
        measure_group(work, lambda message: sent.append(inbox.put.remote(node, message)))
    except BenchctlError as error:
        return "refused", error.what, error.where, error.fix
    finally:
        ray.get(list(sent))  # waiting for the last is enough: an actor handles the calls of a task in order
    return ("done",)


def _reason(error: BaseException) -> str:
    """Return the last line of Ray's message, which is the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return one_line(f"{type(error).__name__}: {lines[-1] if lines else ''}", 300)
