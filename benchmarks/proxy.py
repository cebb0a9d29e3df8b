"""A llama-server that is wrong in a known way: the real one behind a reverse proxy which spoils chosen answers.

Used by `benchmarks.validity` in place of the engine's binary: `wrapper()` writes a script that `engine.binary` names.
What it does depends on the `--alias` of the command line and on the environment, so that one recipe can hold honest
and faulty arms:

    PROXY_SERVER   the real llama-server
    PROXY_FAULTS   {"ALIAS": ["swap", 0.01], …} as JSON; arms with another alias, or none, are passed through
    PROXY_TRUTH    a file to which one JSON line is appended for every spoilt answer

| fault | what happens to an answer |
| --- | --- |
| `swap`, share | in `share` of the answers one token is replaced by the runner-up, and the answer goes on from there |
| `late`, share | the last quarter is generated from a state that lacks the four tokens before it |
| `truncate`, share | the last quarter is missing |
| `penalty`, factor | of every request: its repeat penalty p becomes 1 + factor·(p - 1), and is reported as p |
| a name of `benchmarks.public_bugs` | as that module says; the engine's log has a line each time |

Which answers are spoilt is fixed: those whose number, from 0 at the start of the process, leaves the middle of 1/share
as its remainder, so that 1000 answers hold exactly 1000 × share spoilt ones.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from types import FrameType
from typing import Any, ClassVar

from benchmarks.public_bugs import BUGS, LOOP, FaultyServer

_LISTENING = re.compile(rb"(listening on https?://[^\s/]*?:)(\d+)")
_PENALTY = re.compile(rb'"repeat_penalty":[\d.]+')
_CACHED = re.compile(rb'"cache_n":\d+')
_FORGOTTEN = 4


def wrapper(folder: Path) -> Path:
    """Write the script that stands for the engine's binary, and return it."""
    script = folder / "llama-server"
    root = Path(__file__).resolve().parent.parent
    script.write_text(
        f'#!/bin/sh\nPYTHONPATH="{root}" exec "{sys.executable}" -m benchmarks.proxy "$@"\n', encoding="utf-8"
    )
    script.chmod(0o755)
    return script


def main() -> None:
    """Answer questions about the binary with the real one; for a server, start it and stand before it."""
    real, argv = os.environ["PROXY_SERVER"], sys.argv[1:]
    if "--port" not in argv:
        os.execv(real, [real, *argv])
    alias = argv[argv.index("--alias") + 1] if "--alias" in argv else ""
    fault = json.loads(os.environ.get("PROXY_FAULTS", "{}")).get(alias)
    host, index = argv.index("--host") + 1, argv.index("--port") + 1
    front = _front(argv[host], int(argv[index]))
    front.daemon_threads = True
    argv[host], argv[index] = "127.0.0.1", "0"
    server = subprocess.Popen([real, *argv], stderr=subprocess.PIPE)

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        server.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    assert server.stderr is not None
    for line in server.stderr:
        match = None if _Front.port else _LISTENING.search(line)
        if match:
            _Front.port, _Front.alias, _Front.fault = int(match[2]), alias, fault
            _Front.faulty = FaultyServer(fault[0]) if fault and fault[0] in BUGS else None
            threading.Thread(target=front.serve_forever, daemon=True).start()
        rewritten = _LISTENING.sub(rb"\g<1>" + str(front.server_port).encode(), line) if match else line
        sys.stderr.buffer.write(rewritten)
        sys.stderr.buffer.flush()
    sys.exit(server.wait())


class _UnixServer(ThreadingHTTPServer):
    """Listens on a Unix socket, as benchctl has engines do."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0


def _front(host: str, port: int) -> ThreadingHTTPServer:
    if host.endswith(".sock"):
        return _UnixServer(host, _Front)  # type: ignore[arg-type]
    return ThreadingHTTPServer((host, port), _Front)


class _Front(BaseHTTPRequestHandler):
    """Passes every request on; `/completion` may be spoilt on its way back."""

    protocol_version = "HTTP/1.1"
    port: ClassVar[int] = 0
    alias: ClassVar[str] = ""
    fault: ClassVar[tuple[str, float] | None] = None
    faulty: ClassVar[FaultyServer | None] = None
    answered: ClassVar[int] = 0

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the log is the engine's."""

    def do_GET(self) -> None:
        """Pass a request on."""
        self._pass_on(None)

    def do_POST(self) -> None:
        """Pass a request on, or spoil its answer."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = self.fault
        if self.path != "/completion" or fault is None or not json.loads(body).get("stream"):
            self._pass_on(body)
            return
        if self.faulty is not None:
            self._with_bug(self.faulty, json.loads(body))
            return
        kind, share = fault
        if kind == "penalty":
            request = json.loads(body)
            penalty = request["repeat_penalty"]
            weak = json.dumps(request | {"repeat_penalty": 1 + share * (penalty - 1)})
            self._pass_on(weak.encode(), _PENALTY, b'"repeat_penalty":%f' % penalty)
            return
        number = _Front.answered
        _Front.answered += 1
        if number % round(1 / share) == round(1 / share) // 2:
            self._spoil(kind, json.loads(body), number)
        else:
            self._pass_on(body)

    def _with_bug(self, faulty: FaultyServer, request: dict[str, Any]) -> None:
        ids, cancelled = request["prompt"], False
        sent = faulty.begin(ids, cached=request["cache_prompt"])
        if sent != tuple(ids):
            print(f"proxy | fault: {self.alias}", file=sys.stderr, flush=True)
        try:
            if sent == LOOP:
                answer = self._ask(request)
                self._send_whole(request, answer, [0] * len(answer["tokens"]))
            elif faulty.bug.reports_cached:
                self._pass_on(json.dumps(request | {"prompt": sent}).encode())
            else:
                self._pass_on(json.dumps(request | {"prompt": sent}).encode(), _CACHED, b'"cache_n":0')
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = cancelled = True
        finally:
            faulty.end(ids, cancelled=cancelled)

    def _pass_on(self, body: bytes | None, reports: re.Pattern[bytes] | None = None, reported: bytes = b"") -> None:
        """`reported`: what the answer is to report in place of what matches `reports`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            connection.request(self.command, self.path, body, self._passed_on())
            answer = connection.getresponse()
            self._head(answer.status, answer.getheader("Content-Type", "application/json"))
            for received in _blocks(answer):
                block = reports.sub(reported, received) if reports else received
                self.wfile.write(b"%x\r\n%s\r\n" % (len(block), block))
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # who has the whole answer may leave
                self.wfile.write(b"0\r\n\r\n")

    def _passed_on(self) -> dict[str, str]:
        return {"Content-Type": "application/json", "Authorization": self.headers.get("Authorization", "")}

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _spoil(self, kind: str, body: dict[str, Any], number: int) -> None:
        """Ask for the whole answer, spoil it, and send it as a stream of one piece."""
        answer = self._ask(body)
        ids, fault = self._spoilt(kind, body, answer["tokens"], number)
        self._send_whole(body, answer, ids)
        if fault and ids != answer["tokens"]:
            line = json.dumps({"alias": self.alias, "number": number, "kind": kind, **fault})
            with Path(os.environ["PROXY_TRUTH"]).open("a", encoding="utf-8") as truth:
                truth.write(line + "\n")

    def _send_whole(self, body: dict[str, Any], answer: dict[str, Any], ids: list[int]) -> None:
        """Send an answer with these tokens as a stream of one piece."""
        text = self._post("/detokenize", {"tokens": ids})["content"].rstrip("\ufffd")
        last = answer | {"stop": True, "content": "", "tokens": [], "tokens_predicted": len(ids)}
        last["stop_type"] = "limit" if len(ids) >= body["n_predict"] else "eos"
        piece = {"stop": False, "content": text, "tokens": ids, "tokens_predicted": len(ids)}
        self._head(200, "text/event-stream")
        for event in (piece, last):
            data = b"data: " + json.dumps(event).encode() + b"\n\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")

    def _spoilt(self, kind: str, body: dict[str, Any], ids: list[int], number: int) -> tuple[list[int], dict[str, Any]]:
        """Return the ids of the spoilt answer, and what was done at which token; nothing for one of a single token."""
        if len(ids) < 2:
            return ids, {}
        if kind == "swap":
            first = number * 7919 % (len(ids) - 1)
            places = [1 + (first + further) % (len(ids) - 1) for further in range(len(ids) - 1)]
            return next(filter(None, (self._swapped(body, ids, position) for position in places)), (ids, {}))
        position = max(1, 3 * len(ids) // 4)
        if kind == "truncate":
            return ids[:position], {"token": position}
        continuation = self._went_on(body, ids[: max(0, position - _FORGOTTEN)], body["n_predict"] - position)
        return [*ids[:position], *continuation], {"token": position}

    def _swapped(self, body: dict[str, Any], ids: list[int], position: int) -> tuple[list[int], dict[str, Any]] | None:
        """Put the runner-up at `place` and go on from there; `None` within a character, where none is told."""
        before = ids[:position]
        reply = self._ask(body | {"prompt": body["prompt"] + before, "n_predict": 1, "n_probs": 2})
        if not reply.get("completion_probabilities"):
            return None
        likely = reply["completion_probabilities"][0]["top_logprobs"]
        chosen = next(candidate for candidate in likely if candidate["id"] != ids[position])
        continuation = self._went_on(body, [*before, chosen["id"]], body["n_predict"] - position - 1)
        margin = abs(likely[0]["logprob"] - likely[1]["logprob"])
        return [*before, chosen["id"], *continuation], {"token": position, "margin": margin}

    def _went_on(self, body: dict[str, Any], before: list[int], count: int) -> list[int]:
        if count < 1:
            return []
        tokens: list[int] = self._ask(body | {"prompt": body["prompt"] + before, "n_predict": count})["tokens"]
        return tokens

    def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._post("/completion", body | {"stream": False})

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        with contextlib.closing(connection):
            connection.request("POST", path, json.dumps(body), self._passed_on())
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer


def _blocks(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while block := answer.read1(65536):
        yield block


if __name__ == "__main__":
    main()
