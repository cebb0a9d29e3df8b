"""How many streamed tokens one core of the client can take, and how late it notices them, for every form of stream.

    python -m benchmarks.streaming [--vllm PROGRAM] [--guidellm PROGRAM] [--aiperf PROGRAM] [--tokenizer DIR]

Servers in processes of their own stream answers in the forms of the engines: llama-server's `/completion`,
`/v1/completions` and `/v1/chat/completions` as vLLM and other OpenAI-compatible servers send them, and SGLang's
`/generate`, which repeats the whole answer with every event. For capacity they send as fast as the client takes it, 32
and 256 answers at a time; what counts is the client's own processor time. For timing, 256 streams of 50 tokens a second
each, begun one after the other within two seconds and evenly staggered, are sent by one server that keeps when each
token left. Both processes read the same monotonic clock, so that arrival minus sending is the error of every time that
benchctl reports. The server has a core of its own where the system lets programs choose: two processes that take turns
on one core would measure the scheduler. A bare loop that only receives shows the machine's share of the error. Clients
that others wrote, where their programs are given, then take the same stream of `/v1/completions`, 32 and 256 answers at
a time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import selectors
import socket
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchctl.data.store import collector_paused
from benchctl.engines.common.completion_stream import CompletionReader
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.stream import AnswerReader
from benchctl.engines.llama_cpp.stream import LlamaReader
from benchctl.engines.sglang.server import GenerateReader
from benchmarks import other_clients
from benchmarks.keep import keep
from benchmarks.stream_server import FORMS, serve

Receive = Callable[[str, str, list[dict[str, Any]], list[list[float]]], None]
"""Has the server of a URL stream in a form, an answer for every request's body, and notes when tokens arrived."""
READERS: dict[str, Callable[[], AnswerReader[Any]]] = {
    "/completion": LlamaReader,
    "/v1/completions": CompletionReader,
    "/v1/chat/completions": CompletionReader,
    "/generate": GenerateReader,
}
IN_FLIGHT = (32, 256)
TOKENS = 256
"""Of an answer."""
CAPACITY_TOKENS = 400_000
ROUNDS = 3
STREAMS, PACE, SECONDS = 256, 50, 12
"""Streams, tokens a second of each, and how long."""
STAGGER_S = 2.0
"""From the first stream's beginning to the last's."""


def main() -> None:
    """Measure capacity and the timing error of every form, then the other clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in other_clients.CLIENTS:
        parser.add_argument(f"--{name}", metavar="PROGRAM")
    parser.add_argument("--tokenizer", type=Path, help="a Hugging Face folder, which the other clients need")
    options = parser.parse_args()
    clients = {name: program for name in other_clients.CLIENTS if (program := getattr(options, name))}
    if clients and options.tokenizer is None:
        parser.error("the other clients need --tokenizer")
    results: dict[str, Any] = {"tokens_an_answer": TOKENS, "load_before": os.getloadavg()[0]}
    cores = _cores()
    with _servers(1, cores[:1]) as url, _running_on(cores[1:]), collector_paused():
        ways = {"as benchctl": _as_benchctl, "received and not read": _bare}
        timing: dict[tuple[str, str], list[dict[str, float]]] = {(name, path): [] for path in FORMS for name in ways}
        for _ in range(ROUNDS):
            for (name, path), rounds in timing.items():
                rounds.append(_timing(url, path, ways[name]))
    with _servers(2) as url, collector_paused():
        for path in FORMS:
            capacity = {f"{width} in flight": _capacity(url, path, width) for width in IN_FLIGHT}
            results[path] = {**capacity, "timing": {name: _middle(timing[name, path]) for name in ways}}
        results["other clients"] = {
            name: {
                f"{width} in flight": other_clients.capacity(name, program, url, options.tokenizer, TOKENS, width)
                for width in IN_FLIGHT
            }
            for name, program in clients.items()
        }
    keep("streaming", results)


def _cores() -> list[int]:
    """Return the logical cores of this process; none where the system does not let programs choose, or there is one."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return cores if len(cores) > 1 else []


@contextmanager
def _running_on(cores: list[int]) -> Iterator[None]:
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _servers(count: int, cores: list[int] | None = None) -> Iterator[str]:
    """Serve in `count` processes, on `cores` where some are given; yields the URL of all."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    start = multiprocessing.get_context("fork")
    servers = [start.Process(target=serve, args=(listener,), daemon=True) for _ in range(count)]
    with listener, _running_on(cores or []):
        for server in servers:
            server.start()
        port = listener.getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        for server in servers:
            server.terminate()


def _capacity(url: str, path: str, width: int) -> dict[str, float]:
    rounds = [asyncio.run(_answers(url, path, width)) for _ in range(ROUNDS)]
    return {
        "tokens_per_second_of_client_cpu": statistics.median(cpu for cpu, _ in rounds),
        "lowest": min(cpu for cpu, _ in rounds),
        "highest": max(cpu for cpu, _ in rounds),
        "tokens_per_second_wall": statistics.median(wall for _, wall in rounds),
    }


async def _answers(url: str, path: str, width: int) -> tuple[float, float]:
    """Return tokens a second of this process's processor time, and of the clock."""
    client = HttpClient(url)
    waiting = iter(range(max(width, CAPACITY_TOKENS // TOKENS)))
    total = 0

    async def ask() -> None:
        nonlocal total
        for _ in waiting:
            reader = READERS[path]()
            await client.stream(path, {"max_tokens": TOKENS}, reader, silence_s=60, timeout_s=600)
            assert reader.count == TOKENS
            total += reader.count

    cpu, began = time.process_time(), time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(width)))
    passed = time.process_time() - cpu, time.perf_counter() - began
    client.close()
    return total / passed[0], total / passed[1]


def _timing(url: str, path: str, receive: Receive) -> dict[str, float]:
    arrivals = [list[float]() for _ in range(STREAMS)]
    began = time.perf_counter() + 1.0
    cpu = time.process_time()
    # A token's interval is split evenly among the streams, whatever whole intervals lie between their beginnings.
    stagger = (round(STAGGER_S * PACE) + 1) / PACE / STREAMS
    bodies = [
        {"max_tokens": PACE * SECONDS, "pace": PACE, "begin": began + number * stagger, "stream": number}
        for number in range(STREAMS)
    ]
    receive(url, path, bodies, arrivals)
    passed = time.process_time() - cpu
    with urllib.request.urlopen(f"{url}/sent") as reply:
        sent = json.load(reply)
    errors = sorted(
        received_s - sent_s
        for number, stream in enumerate(arrivals)
        for received_s, sent_s in zip(stream, sent[str(number)], strict=True)
        if began + STAGGER_S < sent_s < began + SECONDS  # all streams are under way
    )
    return {
        "tokens": len(errors),
        "p50_ms": 1000 * errors[len(errors) // 2],
        "p99_ms": 1000 * errors[int(0.99 * (len(errors) - 1))],
        "p999_ms": 1000 * errors[int(0.999 * (len(errors) - 1))],
        "max_ms": 1000 * errors[-1],
        "client_cpu_share": passed / (SECONDS + STAGGER_S + 1.0),
        "load": os.getloadavg()[0],
    }


def _middle(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Return the median of every figure, and p99 of every round."""
    middle: dict[str, Any] = {key: statistics.median(row[key] for row in rounds) for key in rounds[0]}
    return {**middle, "p99_ms_of_rounds": [row["p99_ms"] for row in rounds]}


def _as_benchctl(url: str, path: str, bodies: list[dict[str, Any]], arrivals: list[list[float]]) -> None:
    async def together() -> None:
        client = HttpClient(url)
        readers = [_noting(READERS[path](), times) for times in arrivals]
        await asyncio.gather(
            *(
                client.stream(path, body, reader, silence_s=60, timeout_s=600)
                for body, reader in zip(bodies, readers, strict=True)
            )
        )
        client.close()

    asyncio.run(together())


def _bare(url: str, path: str, bodies: list[dict[str, Any]], arrivals: list[list[float]]) -> None:
    """Receive and count events, and do nothing else: what the machine itself makes late."""
    host = urlsplit(url)
    with selectors.DefaultSelector() as selector:
        for body, times in zip(bodies, arrivals, strict=True):
            connection = socket.create_connection((host.hostname, host.port))
            text = json.dumps(body).encode()
            connection.sendall(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path.encode(), len(text)) + text)
            selector.register(connection, selectors.EVENT_READ, times)
        while selector.get_map():
            for key, _ in selector.select():
                assert isinstance(key.fileobj, socket.socket)
                received = key.fileobj.recv(1 << 20)
                now = time.perf_counter()
                remaining = PACE * SECONDS - len(key.data)  # events behind the tokens carry counts
                key.data.extend([now] * min(remaining, received.count(b"data: ")))
                if not received:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def _noting(reader: AnswerReader[Any], arrivals: list[float]) -> AnswerReader[Any]:
    """Have a reader note when each of its tokens was received."""
    count = reader.tokens

    def tokens(number: int = 1) -> None:
        count(number)
        arrivals.extend([reader.clock] * number)

    reader.tokens = tokens  # type: ignore[method-assign,assignment]
    return reader


if __name__ == "__main__":
    main()
