"""Servers that send without end, or far too much of one thing: every answer is bounded, and every number in it."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from benchctl.engines.common import http, stream
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer
from benchctl.engines.common.http import HttpClient
from benchctl.engines.llama_cpp.stream import LlamaReader
from benchctl.errors import EngineError
from tests.engines.cells import read

Talk = Callable[[socket.socket], None]
Listen = Callable[[Talk], HttpClient]
HEAD = b"HTTP/1.1 200 OK\r\n%s\r\n"


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Listen on a port and, after each request, do what a test says until the client has gone."""
    listeners: list[socket.socket] = []
    clients: list[HttpClient] = []

    def begin(talk: Talk) -> HttpClient:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection, suppress(OSError):
                        connection.recv(65536)
                        talk(connection)

        threading.Thread(target=serve, daemon=True).start()
        clients.append(HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        return clients[-1]

    yield begin
    for client in clients:
        client.close()
    for listener in listeners:
        listener.close()


def for_ever(data: bytes, pause: float = 0.0) -> Talk:
    def talk(connection: socket.socket) -> None:
        connection.sendall(HEAD % b"")
        while True:
            connection.sendall(data)
            time.sleep(pause)

    return talk


def once(head: bytes, body: bytes) -> Talk:
    return lambda connection: connection.sendall(HEAD % (head + b"Content-Length: %d\r\n" % len(body)) + body)


def stream_of(client: HttpClient, *, silence_s: float = 30.0, timeout_s: float = 30.0) -> Any:
    return asyncio.run(client.stream("/x", {}, CompletionReader(), silence_s=silence_s, timeout_s=timeout_s))


def test_an_endless_list_ends_at_its_limit(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 2**20)
    client = listen(for_ever(b'{"id": "m"},' * 1000))
    with pytest.raises(EngineError, match="longer than 1 MiB") as caught:
        client.get("/v1/models")
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_compressed_is_bounded_as_it_unfolds(
    listen: Listen, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 2**20)
    bomb = bytes(50 * 2**20)
    packed = gzip.compress(bomb) if encoding == "gzip" else zlib.compress(bomb)
    client = listen(once(f"Content-Encoding: {encoding}\r\n".encode(), packed))
    with pytest.raises(EngineError, match="longer than 1 MiB"):
        client.get("/v1/models")
    honest = gzip.compress(b'{"a": 1}') if encoding == "gzip" else zlib.compress(b'{"a": 1}')
    assert listen(once(f"Content-Encoding: {encoding}\r\n".encode(), honest)).get_json("/v1/models") == {"a": 1}


def test_an_unrequested_compression_is_refused(listen: Listen) -> None:
    with pytest.raises(EngineError, match="compressed its answer"):
        listen(once(b"Content-Encoding: br\r\n", b"x")).get("/props")
    with pytest.raises(EngineError, match="compresses its stream"):
        stream_of(listen(once(b"Content-Encoding: gzip\r\n", b"x")))


def test_many_items_are_no_answer(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_ITEMS", 1000)
    assert listen(once(b"", b"[" + b"[]," * 2000 + b"1]")).get_json("/slots") is None


def slow_head(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
    while True:
        connection.sendall(b"a")
        time.sleep(0.1)


@pytest.mark.parametrize("talk", [for_ever(b"x", 0.1), slow_head])
def test_a_byte_now_and_then_is_not_waited_for_without_end(listen: Listen, talk: Talk) -> None:
    began = time.monotonic()
    with pytest.raises(EngineError) as caught:
        listen(talk).get("/props", timeout_s=0.5)
    assert caught.value.kind == "timeout"
    with pytest.raises(EngineError) as caught:
        stream_of(listen(talk), timeout_s=0.5)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - began < 8


def test_lines_of_data_without_a_blank_line_end_at_the_limit(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MAX_EVENT_BYTES", 2**20)
    with pytest.raises(EngineError, match="an event is longer") as caught:
        stream_of(listen(for_ever(b"data: " + b"x" * 1000 + b"\n")))
    assert caught.value.kind == "protocol"


def test_a_stream_without_end_ends_at_the_limit(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompletionReader, "most_bytes", 2**20)
    with pytest.raises(EngineError, match="stream is longer than 1 MiB"):
        stream_of(listen(for_ever(b": ping\n\n" * 1000)))


def test_pings_end_no_silence(listen: Listen) -> None:
    with pytest.raises(EngineError, match=r"sent nothing for 0\.4 s since the request was sent") as caught:
        stream_of(listen(for_ever(b": ping\n\n", 0.05)), silence_s=0.4)
    assert caught.value.kind == "timeout"


@pytest.mark.parametrize("count", ["1" + "0" * 400, "1" + "0" * 30, "-1", "true", "1e400", '"4"', "NaN"])
def test_numbers_are_bounded_by_what_was_received(count: str) -> None:
    last = 'data: {"choices":[{"index":0,"text":"a","finish_reason":"length"}],"usage":{"completion_tokens":%s}}\n\n'
    answer: StreamedAnswer | None = read(CompletionReader(), [(last % count).encode()])
    assert answer is not None
    assert answer.completion_tokens is None
    end = 'data: {"content":"","stop":true,"stop_type":"limit","tokens_predicted":%s,"tokens_evaluated":3,"timings":{},'
    event = (end % count + '"generation_settings":{}}\n\n').encode()
    if count not in ("true", '"4"'):
        with pytest.raises(EngineError):
            read(LlamaReader(8), [event])
