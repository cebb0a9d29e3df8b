"""What the scripted servers share: replies, streams of events, faults of a stream, and running one in a test.

A scripted server keeps its dialect alone: which path it answers, with what.
"""

from __future__ import annotations

import json
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

ROOT = Path(__file__).parents[2]


class ScriptedHandler(BaseHTTPRequestHandler):
    """Answers in JSON, and streams server-sent events in chunks."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65536
    disable_nagle_algorithm = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def body(self) -> dict[str, Any]:
        """The JSON object that was sent."""
        return dict(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def reply(self, status: int, body: object, **headers: str) -> None:
        """Send text as it is, anything else as JSON; `Content_Type=...` is a header."""
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def begin_stream(self) -> None:
        """Send the head of a stream, which ends the connection."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def send(self, data: bytes) -> None:
        """Send a chunk at once; an empty one ends the stream."""
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def event(self, **fields: object) -> None:
        """Send an event whose data is an object."""
        self.send(b"data: " + json.dumps(fields).encode() + b"\n\n")

    def end_stream(self) -> None:
        """End a stream as OpenAI's API does."""
        self.send(b"data: [DONE]\n\n")
        self.send(b"")

    def misbehave(self, fault: str, events: Mapping[str, bytes], repeated: Mapping[str, object]) -> None:
        """Break a stream in its middle. `events`: by fault what is sent; `repeated`: the event of an endless answer."""
        if fault == "cut-off":  # the response is complete, the answer is not
            self.send(b"")
            raise ConnectionAbortedError
        if fault == "hangs-up":
            self.connection.close()
            raise ConnectionAbortedError
        if fault == "stalls":
            time.sleep(60)
        elif fault == "endless":
            for _ in range(600):
                self.event(**repeated)
                time.sleep(0.05)
        elif fault in events:
            self.send(events[fault])


class ScriptedServer(ThreadingHTTPServer):
    """A handler that a test leaves stalled is not waited for."""

    daemon_threads = True
    block_on_close = False

    def server_bind(self) -> None:
        """As HTTPServer's, without asking for the machine's name, which may take long."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", self.server_address[1]

    def handle_error(self, *_: object) -> None:
        """A client that goes away is what some tests are about."""


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve in this process; yields the URL."""
    server = ScriptedServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def write_program(path: Path, module: str) -> Path:
    """Write an executable file that runs a module of the tests as its main program."""
    lines = [f"#!{sys.executable}", "import runpy, sys", f"sys.path.insert(0, {str(ROOT)!r})"]
    path.write_text("\n".join([*lines, f"runpy.run_module({module!r}, run_name='__main__')", ""]))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
