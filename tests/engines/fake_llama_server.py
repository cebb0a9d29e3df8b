"""A scripted llama-server for faults that a real one cannot be asked for.

`FAKE_FAULT` in the environment names the fault; without one it answers like a real server that speculates whenever it
was given a draft model. `FAKE_HELP` names the recorded help text that it prints.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path
from socketserver import TCPServer

from tests.engines.scripted import ScriptedHandler, ScriptedServer

FAULT = os.environ.get("FAKE_FAULT", "")
HELP = Path(os.environ.get("FAKE_HELP", Path(__file__).parent / "data" / "help_current.txt"))
WORDS = ["one", " two", " three", " four"]
HOSTILE = "\x1b[2J\x1b]0;owned\x07<script>alert(1)</script>\x00 [bold]x[/bold] \u202etxt"
ERROR = b'{"code": 500, "message": "Compute error.", "type": "server_error"}'
EVENTS = {
    "malformed-json": b'data: {"content": "x", \n\n',
    "invalid-utf8": b'data: {"content": "\xff\xfe", "tokens": [1], "stop": false, "tokens_predicted": 3}\n\n',
    "not-an-object": b"data: [1, 2]\n\n",
    "error-event": b'data: {"error": %s}\n\n' % ERROR,
    "error-field": b"error: %s\n\n" % ERROR,
}


class Handler(ScriptedHandler):
    """Answers the endpoints that benchctl uses."""

    disable_nagle_algorithm = False  # a Unix socket has no such option

    def do_GET(self) -> None:
        speculative = any(flag in sys.argv for flag in ("-md", "--model-draft"))
        slots = 4 if FAULT == "four-slots" else 1
        if self.path == "/health":
            self.reply(503 if FAULT == "never-healthy" else 200, {"status": "ok"})
        elif self.path == "/slots":
            self.reply(200, [{"id": 0, "speculative": speculative}] * slots)
        elif self.path == "/props":
            model = "/other.gguf" if FAULT == "other-server" else sys.argv[sys.argv.index("-m") + 1]
            self.reply(200, {"total_slots": slots, "model_path": model})
        else:
            self.reply(501, {"error": {"code": 501, "message": "no such endpoint", "type": "not_supported_error"}})

    def do_POST(self) -> None:
        body = self.body()
        if self.path == "/apply-template":
            self.reply(200, {"prompt": body["messages"][-1]["content"]})
        elif self.path == "/tokenize":
            self.reply(200, {"tokens": [] if FAULT == "no-tokens" else [1, 2, 3]})
        elif FAULT == "http-500":
            self.reply(500, {"error": {"code": 500, "message": f"out of luck {HOSTILE}", "type": "server_error"}})
        elif FAULT == "http-500-text":
            self.reply(500, "<html>Internal error</html>")
        else:
            self.complete(body)

    def complete(self, body: dict[str, object]) -> None:
        if not body["stream"]:  # an answer that changed where it is asked for again
            text = "another" if FAULT == "counts-by-round-otherwise" else "".join(WORDS)
            self.reply(200, {"content": text, "tokens": [1, 2, 3, 4]})
            return
        self.begin_stream()
        words = [HOSTILE, "\ud800", *WORDS] if FAULT == "hostile-text" else WORDS
        # Two rounds, the second of which ends past the answer's end, as llama-cpp-python 0.3.21 counts them.
        counts = [1, 3, 3, 6] if FAULT.startswith("counts-by-round") else [*range(1, len(words) + 1)]
        for count, (word, counted) in enumerate(zip(words, counts, strict=True), 1):
            self.event(index=0, content=word, tokens=[count], stop=False, tokens_predicted=counted, tokens_evaluated=3)
            if count == 2:
                self.break_off()
        settings = {name: body[name] for name in ("samplers", "temperature", "top_k", "top_p", "seed")}
        if FAULT == "ignores-samplers":
            settings["samplers"] = []
        self.event(
            index=0,
            content="",
            tokens=[],
            stop=True,
            stop_type="sulk" if FAULT == "unknown-stop" else "limit",
            tokens_predicted=counts[-1],
            tokens_evaluated=3,
            generation_settings=settings,
            timings={
                "prompt_ms": 1.0,
                "predicted_ms": 3.0,
                "predicted_n": counts[-1],
                "draft_n": 4,
                "draft_n_accepted": 4,
            }
            if FAULT.startswith("counts-by-round")
            else {"prompt_ms": 1.0, "predicted_ms": 3.0, "predicted_n": len(words)},
        )
        self.send(b"")

    def break_off(self) -> None:
        if FAULT == "dies-mid-answer":
            print("GGML_ASSERT(ctx != nullptr) failed", file=sys.stderr, flush=True)
            os.abort()
        if FAULT == "pings":  # as a real server does every 30 s while it computes, or hangs
            for _ in range(600):
                self.send(b": ping\n\n")
                time.sleep(0.05)
        self.misbehave(FAULT, EVENTS, {"content": "", "tokens": [], "stop": False, "tokens_predicted": 2})


class UnixServer(ScriptedServer):
    """Listens on a Unix socket."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        TCPServer.server_bind(self)


def listening() -> ScriptedServer:
    """The server at the address of the command line."""
    host = sys.argv[sys.argv.index("--host") + 1]
    if host.endswith(".sock"):
        return UnixServer(host, Handler)  # type: ignore[arg-type]
    return ScriptedServer((host, int(sys.argv[sys.argv.index("--port") + 1])), Handler)


def address_of(server: ScriptedServer) -> str:
    """As the real one logs it."""
    return (
        f"unix://{server.server_address!s}"
        if isinstance(server, UnixServer)
        else f"http://127.0.0.1:{server.server_port}"
    )


def main() -> None:
    """Answer questions about the binary, or serve."""
    if "--help" in sys.argv:
        print(HELP.read_text())
    elif "--version" in sys.argv:
        print("version: 4820 (1a24c462)\nbuilt with cc for x86_64-linux-gnu", file=sys.stderr)
    elif "--list-devices" in sys.argv:
        print("Available devices:")
    elif FAULT == "exits-at-once":
        print("error: something \x1b[31mbroke\x1b[0m", file=sys.stderr)
        sys.exit(3)
    elif FAULT == "port-taken":
        print("couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 1", file=sys.stderr)
        sys.exit(1)
    else:
        server = listening()
        if FAULT == "counts-by-round-checkpoints":
            print("srv    load_model: speculative decoding will use checkpoints", file=sys.stderr)
        if FAULT == "config-file":
            print("0.00.001 I using config file: /etc/llama.cpp/config.ini", file=sys.stderr)
        print(
            f"main: server is listening on {address_of(server)} - starting",
            file=sys.stderr,
            flush=True,
        )
        server.serve_forever()


if __name__ == "__main__":
    main()
