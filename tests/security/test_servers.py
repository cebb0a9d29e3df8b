"""Servers, logs and programs that send without end, or far too much of one thing, or what is not what it should be.

Everything received is bounded in bytes, items and seconds; text is text, and numbers are numbers.
"""

from __future__ import annotations

import asyncio
import math
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.base import Ledger
from benchctl.engines.common import programs, wire
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer
from benchctl.engines.common.drafts import read_counters, read_total
from benchctl.engines.common.drafts import step_ledger as vllm_ledger
from benchctl.engines.common.drafts import verified_ledger as sglang_ledger
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.log import read_log
from benchctl.engines.common.stream import OVERRUN, AnswerReader
from benchctl.engines.common.wire import decode
from benchctl.engines.llama_cpp import causes as llama_causes
from benchctl.engines.llama_cpp import probe
from benchctl.engines.llama_cpp.attest import read_counts, read_memory
from benchctl.engines.llama_cpp.probe import parse_help
from benchctl.engines.llama_cpp.score import likeliest
from benchctl.engines.llama_cpp.stream import LlamaReader
from benchctl.engines.llama_cpp.trace import read_passes
from benchctl.engines.openai.discovery import discover, parse_address
from benchctl.engines.sglang import server as sglang_server
from benchctl.engines.sglang.server import GenerateReader
from benchctl.engines.transformers import server as transformers_server
from benchctl.engines.vllm import server as vllm_server
from benchctl.engines.vllm.attest import tokens_a_step
from benchctl.errors import EngineError
from tests.engines.cells import read

Talk = Callable[[socket.socket, bytes], None]
"""What a server does on a connection, given the request."""
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
                        talk(connection, connection.recv(65536))

        threading.Thread(target=serve, daemon=True).start()
        clients.append(HttpClient(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        return clients[-1]

    yield begin
    for client in clients:
        client.close()
    for listener in listeners:
        listener.close()


def for_ever(data: bytes, pause: float = 0.0) -> Talk:
    def talk(connection: socket.socket, _: bytes) -> None:
        connection.sendall(HEAD % b"")
        while True:
            connection.sendall(data)
            time.sleep(pause)

    return talk


def once(head: bytes, body: bytes) -> Talk:
    return lambda connection, _: connection.sendall(HEAD % (head + b"Content-Length: %d\r\n" % len(body)) + body)


def stream_of(
    client: HttpClient, *, silence_s: float = 30.0, timeout_s: float = 30.0, most_tokens: float = math.inf
) -> Any:
    reader = CompletionReader(most_tokens)
    return asyncio.run(client.stream("/x", {}, reader, silence_s=silence_s, timeout_s=timeout_s))


def test_an_endless_list_ends_at_its_limit(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_PAGE_BYTES", 2**20)
    client = listen(for_ever(b'{"id": "m"},' * 1000))
    with pytest.raises(EngineError, match="longer than 1 MiB") as caught:
        client.get("/v1/models")
    assert caught.value.kind == "protocol"


def test_an_unrequested_compression_is_refused(listen: Listen) -> None:
    with pytest.raises(EngineError, match="compressed its answer"):
        listen(once(b"Content-Encoding: br\r\n", b"x")).get("/props")
    with pytest.raises(EngineError, match="compressed its answer"):
        stream_of(listen(once(b"Content-Encoding: gzip\r\n", b"x")))


def test_many_items_are_no_answer(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_ITEMS", 1000)
    assert listen(once(b"", b"[" + b"[]," * 2000 + b"1]")).get_json("/slots") is None


def slow_head(connection: socket.socket, _: bytes) -> None:
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
    assert time.monotonic() - began < 30


def test_lines_of_data_without_a_blank_line_end_at_the_limit(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MOST_EVENT_BYTES", 2**20)
    with pytest.raises(EngineError, match="an event is longer") as caught:
        stream_of(listen(for_ever(b"data: " + b"x" * 1000 + b"\n")))
    assert caught.value.kind == "protocol"


def test_a_stream_without_end_ends_at_the_limit(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CompletionReader, "most_bytes", 2**20)
    with pytest.raises(EngineError, match="longer than 1 MiB"):
        stream_of(listen(for_ever(b": ping\n\n" * 1000)))


def test_pings_end_no_silence(listen: Listen) -> None:
    with pytest.raises(EngineError, match=r"sent nothing for 0\.4 s") as caught:
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


EVENT = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
CHUNKED = HEAD % b"Transfer-Encoding: chunked\r\n" + b"%x\r\n%s\r\n" % (len(EVENT), EVENT)
FLOODS = {
    "trailers": (CHUNKED + b"0\r\n", b"X-Trailer-%d: " + b"t" * 200 + b"\r\n"),
    "one trailer": (CHUNKED + b"0\r\nX-Trailer: ", b"t" * 4000),
    "extension": (CHUNKED + b"1;name=", b"e" * 4000),
    "headers": (b"HTTP/1.1 200 OK\r\n", b"X-Header-%d: " + b"h" * 200 + b"\r\n"),
    "short headers": (b"HTTP/1.1 200 OK\r\n", b"%d:\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nX-Header: ", b"h" * 4000),
    "not yet": (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
}


@contextmanager
def little_memory(mib: int = 32) -> Iterator[None]:
    """Nothing that benchctl does in here may ever hold more than that."""
    tracemalloc.start()
    try:
        yield
        allocated = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert allocated < mib * 2**20


def flood(name: str) -> Talk:
    begin, piece = FLOODS[name]
    parts = [piece % number if b"%d" in piece else piece for number in range(2000)]
    block = b"".join(parts)

    def talk(connection: socket.socket, _: bytes) -> None:
        connection.sendall(begin)
        while True:
            connection.sendall(block)

    return talk


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_beside_the_body_is_cut_off(listen: Listen, name: str) -> None:
    with little_memory(), pytest.raises(EngineError) as caught:
        stream_of(listen(flood(name)), timeout_s=60.0)
    assert caught.value.kind == "protocol", "it was not waited for until the time was up"
    assert "headers" in caught.value.what


@pytest.mark.parametrize("name", FLOODS)
def test_a_flood_beside_a_small_answer_is_cut_off(listen: Listen, name: str) -> None:
    began = time.monotonic()
    with little_memory(), pytest.raises(EngineError) as caught:
        listen(flood(name)).get("/props", timeout_s=1.0)
    assert caught.value.kind in ("protocol", "timeout")
    assert time.monotonic() - began < 30


def test_chunks_may_be_small_and_have_trailers(listen: Listen) -> None:
    complete = EVENT + b'data: {"choices":[{"index":0,"text":"","finish_reason":"length"}]}\n\ndata: [DONE]\n\n'
    chunks = b"".join(b"1;x=%d\r\n%c\r\n" % (index, byte) for index, byte in enumerate(complete))
    head = HEAD % (b"".join(b"X-%d: a\r\n" % number for number in range(100)) + b"Transfer-Encoding: chunked\r\n")
    sound = b"HTTP/1.1 103 Early Hints\r\n\r\n" + head + chunks + b"0\r\nX-Trailer: a\r\n\r\n"
    assert stream_of(listen(lambda connection, _: connection.sendall(sound))).answer.text == "a"


LLAMA = '{"content":"a","tokens":%s,"stop":false,"tokens_predicted":%s,"tokens_evaluated":3}'
COMPLETION = '{"choices":[{"index":0,"text":"a","token_ids":%s}]}'
VERBOSE = '{"choices":[{"index":0,"text":"a"}],"__verbose":{"tokens":%s}}'
GENERATE = '{"text":"a","output_ids":%s,"meta_info":{"finish_reason":null}}'
LAST = '{"choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":{"prompt_tokens":3,"completion_tokens":%s}}'


def event(text: str) -> bytes:
    return f"data: {text}\n\n".encode()


@pytest.mark.parametrize(
    "ids", ["[true,false]", "[1.0,2]", "[-1,2]", '["1",2]', "[null,1]", "[4294967296,1]", "[NaN,1]"]
)
@pytest.mark.parametrize("form", ["llama", "completion", "verbose", "generate"])
def test_token_ids_are_exactly_whole_numbers(form: str, ids: str) -> None:
    readers: dict[str, tuple[AnswerReader[Any], str]] = {
        "llama": (LlamaReader(8), LLAMA % (ids, 2)),
        "completion": (CompletionReader(8), COMPLETION % ids),
        "verbose": (CompletionReader(8), VERBOSE % ids),
        "generate": (GenerateReader(8), GENERATE % ids),
    }
    reader, text = readers[form]
    with pytest.raises(EngineError, match="cannot be read") as caught:
        read(reader, [event(text)])
    assert caught.value.kind == "protocol"


@pytest.mark.parametrize("count", ["true", '"1"', "1.0", "1e0", "-1", "null", "[1]", "1" + "0" * 400, "1e400", "NaN"])
def test_a_count_is_exactly_a_whole_number(count: str) -> None:
    with pytest.raises(EngineError):
        read(LlamaReader(8), [event(LLAMA % ("[7]", count))])
    end = f'{{"type":"length"}},"prompt_tokens":{count},"completion_tokens":1'
    with pytest.raises(EngineError):
        read(GenerateReader(8), [event((GENERATE % "[7]").replace("null", end))])
    with suppress(EngineError):  # more than was requested is refused already
        answer = read(CompletionReader(8), [event(LAST % count)])
        assert answer is not None
        assert answer.completion_tokens is None


def test_more_tokens_than_requested_are_named() -> None:
    floods: list[tuple[AnswerReader[Any], list[bytes]]] = [
        (CompletionReader(16), [event(COMPLETION % list(range(16))), event(LAST % 150)]),
        (CompletionReader(16), [event(COMPLETION % [number]) for number in range(16 + OVERRUN + 1)]),
        (CompletionReader(16), [event(COMPLETION % [number]) for number in range(16)] + [event(LAST % 17)]),
        (CompletionReader(16), [event(COMPLETION % list(range(150)))]),
        (CompletionReader(16), [event(COMPLETION % [])] * 300),
        (GenerateReader(16), [event(GENERATE % list(range(number))) for number in range(16 + OVERRUN + 2)]),
        (GenerateReader(16), [event(GENERATE % list(range(150)))]),
        (LlamaReader(16), [event(LLAMA % ([1], number)) for number in range(1, 16 + OVERRUN + 2)]),
    ]
    for reader, chunks in floods:
        with pytest.raises(EngineError, match=r"16 were requested") as caught:
            read(reader, chunks)
        assert caught.value.kind == "protocol"
    with pytest.raises(EngineError, match="the engine counts 2"):
        read(CompletionReader(16), [event(COMPLETION % [1, 2, 3]), event(LAST % 2)])


@pytest.mark.parametrize(
    ("reader", "chunks"),
    [
        (CompletionReader(16), [event(COMPLETION % list(range(19))), event(LAST % 19)]),
        (GenerateReader(16), [event(GENERATE % list(range(19)))]),
        (LlamaReader(16), [event(LLAMA % ([1], number)) for number in range(1, 20)]),
    ],
)
def test_a_round_beyond_the_limit_is_taken_with_its_ids(reader: AnswerReader[Any], chunks: list[bytes]) -> None:
    for chunk in chunks:
        reader.feed(chunk, 1.0)
    assert reader.count == 19


def test_a_flood_of_pieces_or_lines_stays_small(listen: Listen) -> None:
    for piece in (EVENT, b"data:\n", b"data: {}\n\n", b'data: {"a":[' + b"[]," * 300_000 + b"1]}\n\n"):
        with little_memory(160), pytest.raises(EngineError) as caught:
            stream_of(listen(for_ever(piece * (200 if len(piece) < 99 else 1))), most_tokens=16, timeout_s=2.0)
        assert caught.value.kind in ("protocol", "timeout")


def pages(**replies: bytes) -> Talk:
    """Answer every request with the page of its path; 404 where there is none."""

    def talk(connection: socket.socket, asked: bytes) -> None:
        path = asked.split(b" ", 2)[1].rpartition(b"/")[2].decode()
        body = replies.get(path)
        status = b"404 Not Found" if body is None else b"200 OK"
        body = body or b"{}"
        connection.sendall(
            b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body
        )

    return talk


DEEP = b"[" * 900 + b"]" * 900
MODELS = b'{"data":[{"id":%s,"max_model_len":%s}]}'


@pytest.mark.parametrize(
    ("replies", "models"),
    [
        ({"models": MODELS % (b'"m\\ud800"', b"4096")}, ("m\ufffd",)),
        ({"models": MODELS % (b'"m\xed\xa0\x80"', b"true")}, ("m\ufffd\ufffd\ufffd",)),
        ({"models": MODELS % (b'"m"', b"1e400")}, ("m",)),
        ({"models": MODELS % (b"7", b"1")}, None),
        ({"models": MODELS % (b'"' + b"m" * 5000 + b'"', b"1")}, None),
        ({"models": b'{"data":' + DEEP + b"}"}, None),
        ({"models": b'{"data":[' + b'{"id":"m"},' * 20_000 + b'{"id":"m"}]}'}, None),
        ({"props": b'{"build_info":' + DEEP + b',"total_slots":1}', "models": MODELS % (b'"m"', b"1")}, ("m",)),
        ({"props": b'{"build_info":"\\udfff","total_slots":NaN}', "models": MODELS % (b'"m"', b"1")}, ("m",)),
        ({"server_info": b'{"speculative_algorithm":' + DEEP + b"}", "models": MODELS % (b'"m"', b"1")}, ("m",)),
        ({"version": b'{"version":"\\ud800' + b"9" * 9000 + b'"}', "models": MODELS % (b'"m"', b"1")}, ("m",)),
    ],
)
def test_what_a_server_reports_of_itself(
    listen: Listen, replies: dict[str, bytes], models: tuple[str, ...] | None
) -> None:
    client = listen(pages(**replies))
    with little_memory():
        matches = discover(client, parse_address(f"{client._base}/v1", "url"))
    if models is not None and len(models[0]) > 2:
        assert matches.models is not None and matches.models[0].startswith("m\ufffd")
    else:
        assert matches.models == models
    shown = "\n".join(matches.evidence)
    assert len(shown.encode()) < 4000, "it can be stored, and read"
    assert matches.context in (None, 1, 4096)
    assert not isinstance(matches.context, bool)


def _send(answer: bytes, connection: socket.socket, _: bytes) -> None:
    connection.sendall(answer)


def test_an_error_with_half_a_character_or_nested_deeply(listen: Listen) -> None:
    for body in (b'{"error":{"message":"no \\ud800 \xed\xa0\x80 \x1b[2J"}}', b'{"error":' + DEEP + b"}"):
        head = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\n\r\n" % len(body)
        client = listen(partial(_send, head + body))
        for ask in (lambda there: there.post("/tokenize", {}), stream_of):
            with pytest.raises(EngineError, match="HTTP 500") as caught:
                ask(client)
            str(caught.value).encode()
            assert len(caught.value.what) < 700
            assert "\x1b" not in caught.value.what


def test_an_answers_text_has_no_half_characters() -> None:
    for text in ('"\\ud800b"', '"\\ud83d\\ude00 \\udc00"'):
        answer = read(CompletionReader(8), [event(COMPLETION.replace('"a"', text) % "[1]"), event(LAST % 1)])
        assert answer is not None
        assert "\ufffd" in answer.text
        answer.text.encode()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("3", 3), ("3.0", 3), ("1e+06", 10**6)),
        *((value, None) for value in ("3.5", "-1", "1_000", "NaN", "1e400", "0x10", "true", "9" * 400, "+Inf", "٣")),
    ],
)
def test_a_counter_is_exactly_a_count(value: str, expected: int | None) -> None:
    series = 'vllm:x_total{engine="0"} %s\n'
    assert read_total(series % value, "vllm:x_total") == expected
    total = None if expected is None else 4 + expected
    assert read_total(series % 4 + series % value, "vllm:x_total") == total, "a sum lacks nothing"


def test_metric_positions_are_bounded_in_time_and_memory() -> None:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    text = "".join(f'{name}{{position="{index % 99_999}"}} 1\n' for index in range(150_000)) + f"{name}{{" * 30_000
    began = time.process_time()
    counts, figures = [1] * 300_000, {"num_spec_steps": 1, "num_spec_tokens": 2**40, "num_draft_tokens": True}
    steps = {"per_step_accepted": counts, "per_step_drafted": counts}
    with little_memory():
        assert read_counters(text, "vllm").accepted_by_position is None
        assert vllm_ledger({"speculative_decoding": figures | {"acceptance_histogram": counts}}) == Ledger(rounds=1)
        assert vllm_ledger({"speculative_decoding": figures | steps}).accepted_by_position is None
        deep = vllm_ledger({"speculative_decoding": figures | steps | {"num_spec_tokens": 10_000}})
        assert deep.accepted_by_position == (300_000, *(0,) * 9999)
        sglang = {"spec_verify_ct": 1, "spec_correct_drafts_histogram": counts, "spec_num_correct_drafts": 4}
        assert sglang_ledger(sglang, counted=True).accepted_by_position is None
    assert time.process_time() - began < 10


def test_log_probabilities_are_numbers_of_tokens() -> None:
    for token, value in (
        ("true", "-1"),
        ("1.0", "-1"),
        ("-1", "-1"),
        ("1", "true"),
        ("1", '"-1"'),
        ("1", "NaN"),
        ("1", "2"),
    ):
        answer = decode(
            b'{"completion_probabilities":[{"top_logprobs":[{"id":%s,"logprob":%s}]}],"timings":{"prompt_n":1}}'
            % (token.encode(), value.encode())
        )
        assert likeliest(answer) == {}
    assert likeliest(decode(b'{"completion_probabilities":[{"top_logprobs":[{"id":1,"logprob":-1}]}]}')) == {1: -1.0}


def test_a_log_is_read_in_bounded_memory_and_time(tmp_path: Path) -> None:
    file = tmp_path / "engine.log"
    with file.open("wb") as log:
        log.write(b"the beginning\n" + b"slot: statistics a: #gen tokens = " * 60_000 + b"\n")
        for _ in range(24):
            log.write(b"x" * 2**20 + b"\n")
        log.write(b"offloaded %s/1 layers to GPU, max_num_batched_tokens=%s\n" % (b"9" * 5000, b"9" * 5000))
        log.write(b"created context checkpoint 1 of 1 (size = %s.0 MiB)\nthe end\n" % (b"9" * 400))
    began = time.process_time()
    with little_memory(100):
        lines = read_log(file)
        assert (lines[0], lines[-2]) == ("the beginning", "the end")
        assert max(map(len, lines)) <= 4096
        read_counts(lines)
        read_memory(lines)
        tokens_a_step("\n".join(lines))
        read_passes("\n".join(lines))
        for causes in (llama_causes, vllm_server, sglang_server, transformers_server):
            causes.launch_cause(lines)
    assert time.process_time() - began < 10


PROGRAMS = {
    "endless": "while :; do echo '--aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  b'; done",
    "one line": "while :; do printf aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done",
    "silent": "sleep 100",
    "left behind": "sleep 100 & exit 3",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_probed_program_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\n{PROGRAMS[name]}\n")
    program.chmod(0o755)
    monkeypatch.setattr(programs, "MOST_BYTES", 2**20)
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 1.0 if name == "silent" else 60.0)
    began = time.monotonic()
    with little_memory(), pytest.raises(EngineError) as caught:
        probe.probe_server(program, "option")
    assert caught.value.kind == "launch"
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("tail", ["      more\n", "--flag-%d N  text\n", "-" * 60 + "\n"])
def test_a_long_help_is_read_in_bounded_time(tail: str) -> None:
    lines = "".join(tail % number if "%d" in tail else tail for number in range(100_000))
    began = time.process_time()
    with little_memory(64):
        flags = parse_help("--model FILE  a model\n" + lines)
    assert "--model" in flags
    assert len(flags.all) <= 4096
    assert time.process_time() - began < 10


RECIPE = """name: hostile
engine: {kind: openai, url: %s, context: 2048, request_timeout_s: 6}
prompts: {suite: tiny.json, tasks: [code]}
sampling: {temperature: 0, max_tokens: 16}
blocks: 1
arms:
  - name: baseline
"""
MOST_RESIDENT = 400 * 2**20
"""Bytes of a whole benchctl; idle it takes about a third."""


def endpoint(answer: bytes, piece: bytes = b"", **replies: bytes) -> Talk:
    """An endpoint whose every streamed answer begins with `answer` and goes on with `piece` for ever."""
    address = pages(**({"models": MODELS % (b'"m"', b"4096")} | replies))

    def talk(connection: socket.socket, asked: bytes) -> None:
        if asked.startswith(b"GET "):
            address(connection, asked)
        elif b'"stream": true' not in asked:
            connection.sendall(b"HTTP/1.1 400 No\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}")
        else:
            connection.sendall(answer)
            while piece:
                connection.sendall(piece)

    return talk


def streamed(*events: str) -> bytes:
    body = b"".join(map(event, events)) + b"data: [DONE]\n\n"
    return HEAD % (b"Connection: close\r\nContent-Length: %d\r\n" % len(body)) + body


SOUND = streamed(COMPLETION % "[1]", LAST % 1)
HOSTILE: dict[str, tuple[Talk, int, str]] = {
    "sound": (endpoint(SOUND), 0, ""),
    "half a character in a name": (endpoint(SOUND, models=MODELS % (b'"m\\ud800"', b"4096")), 0, ""),
    "half a character in a text": (endpoint(streamed('{"choices":[{"text":"\\ud800"}]}', LAST % 1)), 0, ""),
    "half a character in a page": (endpoint(SOUND, version=b'{"version":"\\udfff"}'), 0, ""),
    "deep pages": (endpoint(SOUND, props=DEEP, version=b'{"version":' + DEEP + b"}", server_info=DEEP), 0, ""),
    "trailers": (endpoint(CHUNKED + b"0\r\n", b"X-Trailer: " + b"t" * 9000 + b"\r\n"), 3, "headers or trailers"),
    "pieces": (endpoint(HEAD % b"", EVENT * 99), 3, "16 were requested"),
    "ids": (endpoint(HEAD % b"", event(COMPLETION % list(range(999)))), 3, "16 were requested"),
    "more counted": (endpoint(streamed(COMPLETION % "[1]", LAST % 150)), 3, "counts 150 tokens; 16 were requested"),
    "ids that are none": (endpoint(streamed(COMPLETION % "[true,false]", LAST % 2)), 3, "cannot be read"),
    "nested": (endpoint(HEAD % b"" + b"data: " + DEEP + b"\n\n"), 3, "cannot be read"),
    "an error": (endpoint(streamed('{"error":{"message":"no \\ud800"}}')), 3, "aborted the answer"),
    "pings": (endpoint(HEAD % b"", b": ping\n\n" * 999), 3, "longer than|took longer"),
    "models": (endpoint(SOUND, models=b'{"data":[' + b'{"id":"m"},' * 10**6 + b"1]}"), 3, "longer than 8 MiB"),
}


LAUNCHER = """\
import resource, subprocess, sys
status = subprocess.call(sys.argv[2:])
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status)
"""
"""Between the tests and the command: Linux counts what a process was forked from as its own peak."""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_command_ends_with_one_message_in_bounded_memory(listen: Listen, tmp_path: Path, name: str) -> None:
    talk, code, message = HOSTILE[name]
    (tmp_path / "recipe.yaml").write_text(RECIPE % f"{listen(talk)._base}/v1")
    command = [sys.executable, "-m", "benchctl", "run", "recipe.yaml", "-q"]
    with (tmp_path / "said").open("wb") as output:
        launcher = [sys.executable, "-c", LAUNCHER, str(tmp_path / "used"), *command]
        status = subprocess.call(launcher, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    text = (tmp_path / "said").read_text("utf-8")
    assert (status, "Traceback" in text) == (code, False), text
    assert re.search(message, text), text
    assert int((tmp_path / "used").read_text()) * 1024 < MOST_RESIDENT
