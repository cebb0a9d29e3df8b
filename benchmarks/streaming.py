"""How many streamed tokens one core of the client can take, and how late it notices them.

    python -m benchmarks.streaming

A server in another process replays the events of a `/completion` answer over HTTP. For capacity it sends them as fast
as the client takes them. For timing it sends them at a fixed pace and writes into each event when it did; both
processes read the same monotonic clock, so arrival minus sending is the error of every time that benchctl reports.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Iterator

import httpx

from benchctl.engines.llama_cpp.stream import Answer, read_answer
from benchmarks.keep import keep

CAPACITY_TOKENS = 200_000
PACES = {100: 1_500, 1_000: 10_000, 5_000: 25_000}
"""Tokens a second, and how many of them."""


def main() -> None:
    """Measure capacity three times and the timing error at every pace."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(listener,), daemon=True)
    server.start()
    listener.close()
    try:
        capacity = [_capacity(port) for _ in range(3)]
        timing = {f"{pace} tokens/s": _timing(port, pace, count) for pace, count in PACES.items()}
    finally:
        server.terminate()
    keep(
        "streaming",
        {
            "tokens_per_second_of_client_cpu": statistics.median(rate for rate, _ in capacity),
            "tokens_per_second_wall": statistics.median(rate for _, rate in capacity),
            "timing_error": timing,
        },
    )


def _capacity(port: int) -> tuple[float, float]:
    cpu, began = time.process_time(), time.perf_counter()
    answer, _ = _ask(port, 0, CAPACITY_TOKENS)
    assert answer.n_predicted == CAPACITY_TOKENS
    assert answer.token_ids is not None
    return CAPACITY_TOKENS / (time.process_time() - cpu), CAPACITY_TOKENS / (time.perf_counter() - began)


def _timing(port: int, pace: int, count: int) -> dict[str, float]:
    answer, arrivals = _ask(port, pace, count)
    sent = [float(piece) for piece in answer.text.split()]
    errors: list[float] = []
    taken = 0
    for at, upto in arrivals:
        errors += [at - moment for moment in sent[taken:upto]]
        taken = upto
    errors.sort()
    return {
        "tokens": count,
        "p50_ms": 1000 * errors[len(errors) // 2],
        "p99_ms": 1000 * errors[int(0.99 * (len(errors) - 1))],
        "max_ms": 1000 * errors[-1],
    }


def _ask(port: int, pace: int, count: int) -> tuple[Answer, list[tuple[float, int]]]:
    """Return the answer and, for every chunk, when it arrived and how many tokens had come."""
    arrivals: list[tuple[float, int]] = []
    with httpx.Client(timeout=120) as client:
        started = time.perf_counter()
        with client.stream("POST", f"http://127.0.0.1:{port}/?pace={pace}&count={count}") as response:
            answer = read_answer(
                response.iter_raw(), started, 600, lambda tokens: arrivals.append((time.perf_counter(), tokens))
            )
    assert answer is not None
    return answer, arrivals


def _serve(listener: socket.socket) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request = connection.recv(65536).split(b" ")[1].decode()
            settings = dict(pair.split("=") for pair in request.partition("?")[2].split("&"))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            for event in _events(int(settings["pace"]), int(settings["count"])):
                connection.sendall(event)


def _events(pace: int, count: int) -> Iterator[bytes]:
    begin = time.perf_counter()
    for number in range(count):
        content = " x"
        if pace:
            wait = begin + number / pace - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            content = f" {time.perf_counter():.7f}"
        yield _event(index=0, content=content, tokens=[number], stop=False, id_slot=-1, tokens_predicted=number + 1)
    yield _event(
        index=0,
        content="",
        tokens=[],
        stop=True,
        stop_type="limit",
        tokens_predicted=count,
        tokens_evaluated=8,
        timings={"predicted_ms": 1.0, "prompt_ms": 1.0, "pid": os.getpid()},
        generation_settings={},
    )


def _event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


if __name__ == "__main__":
    main()
