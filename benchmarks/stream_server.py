"""A server that streams answers in the forms of the engines: all at once, or evenly paced.

Of what is paced it keeps when every token was sent, by the request's `stream`; `GET /sent` returns it.
"""

from __future__ import annotations

import heapq
import json
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

Events = Callable[[int, int, str, str], list[dict[str, Any]]]
"""(number of a token, how many there are, its text, all text so far) -> the events that carry it."""

MODEL = "bench"


def _llama(number: int, count: int, piece: str, text: str) -> list[dict[str, Any]]:
    shared = {"index": 0, "id_slot": -1, "tokens_evaluated": 8, "tokens_predicted": number + 1}
    token = {**shared, "content": piece, "tokens": [number], "stop": False}
    if number + 1 < count:
        return [token]
    end = {"content": "", "tokens": [], "stop": True, "stop_type": "limit", "generation_settings": {}}
    return [token, {**shared, **end, "timings": {"prompt_ms": 1.0, "predicted_ms": 1.0}}]


def _openai(choice: Callable[[str, int], dict[str, Any]], kind: str) -> Events:
    def events(number: int, count: int, piece: str, text: str) -> list[dict[str, Any]]:
        shared = {"id": "cmpl-7c9e6679", "object": kind, "created": 1795000000, "model": MODEL}
        last = number + 1 == count
        delta = {**choice(piece, number), "index": 0, "logprobs": None, "finish_reason": "length" if last else None}
        token = {**shared, "choices": [delta], "usage": None}
        usage = {"prompt_tokens": 8, "completion_tokens": count, "total_tokens": count + 8}
        return [token, {**shared, "choices": [], "usage": usage}] if last else [token]

    return events


def _sglang(number: int, count: int, piece: str, text: str) -> list[dict[str, Any]]:
    finish = {"type": "length", "length": count} if number + 1 == count else None
    meta = {"id": "x", "finish_reason": finish, "prompt_tokens": 8, "completion_tokens": number + 1, "cached_tokens": 0}
    return [{"text": text, "output_ids": list(range(number + 1)), "meta_info": meta}]


FORMS: dict[str, Events] = {
    "/completion": _llama,
    "/v1/completions": _openai(
        lambda piece, number: {"text": piece, "token_ids": [number], "stop_reason": None}, "text_completion"
    ),
    "/v1/chat/completions": _openai(
        lambda piece, number: {"delta": {"content": piece}, "token_ids": [number]}, "chat.completion.chunk"
    ),
    "/generate": _sglang,
}


PIECE = " x"


@cache
def _packed(path: str, number: int, count: int) -> bytes:
    """Return the events of one token, each an HTTP chunk as real servers send them, and the end after the last."""
    found = FORMS[path](number, count, PIECE, PIECE * (number + 1))
    events = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in found]
    if number + 1 == count:
        events += [b""] if path == "/completion" else [b"data: [DONE]\n\n", b""]
    return b"".join(b"%x\r\n%s\r\n" % (len(event), event) for event in events)


@cache
def _whole(path: str, count: int) -> bytes:
    return b"".join(_packed(path, number, count) for number in range(count))


_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"


def serve(listener: socket.socket) -> None:
    """Answer on `listener` for ever."""
    pacer = _Pacer()
    pacer.start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection, pacer), daemon=True).start()


def _answer(connection: socket.socket, pacer: _Pacer) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rb")
    method, path, _ = stream.readline().decode().split(" ", 2)
    length = 0
    while (line := stream.readline()) not in (b"\r\n", b""):
        name, _, value = line.partition(b":")
        length = int(value) if name.lower() == b"content-length" else length
    if method != "GET" and path not in FORMS:  # other clients try what this server does not have
        stream.read(length)
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
    elif method == "GET":
        models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
        body = json.dumps(pacer.sent if path == "/sent" else models).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(body) + body)
    else:
        request = json.loads(stream.read(length))
        count = int(request.get("max_tokens") or request.get("max_completion_tokens") or 16)
        connection.sendall(_HEAD)
        if "pace" in request:
            pacer.add(
                _Paced(connection, path, count, 1 / request["pace"], pacer.sent[request["stream"]]), request["begin"]
            )
            return
        connection.sendall(_whole(path, count))
    connection.close()


@dataclass
class _Paced:
    """A stream that the pacer sends."""

    connection: socket.socket
    path: str
    count: int
    step: float
    """Seconds from token to token."""
    sent: list[float]
    """When each was sent: seconds of `time.perf_counter`."""


class _Pacer(threading.Thread):
    """Sends every token when it is due."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.sent: defaultdict[int, list[float]] = defaultdict(list)
        self._due: list[tuple[float, int, _Paced]] = []
        self._added = threading.Condition()

    def add(self, stream: _Paced, begin: float) -> None:
        # Made before they are due, so that making them delays nothing.
        for number in range(stream.count):
            _packed(stream.path, number, stream.count)
        stream.sent.clear()
        with self._added:
            heapq.heappush(self._due, (begin, id(stream), stream))
            self._added.notify()

    def run(self) -> None:
        while True:
            with self._added:
                while not self._due:
                    self._added.wait()
                due, key, stream = heapq.heappop(self._due)
            wait = due - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            events = _packed(stream.path, len(stream.sent), stream.count)
            stream.sent.append(time.perf_counter())
            stream.connection.sendall(events)
            if len(stream.sent) == stream.count:
                stream.connection.close()
                continue
            with self._added:
                heapq.heappush(self._due, (due + stream.step, key, stream))
