"""A scripted ik_llama.cpp server: its answers have the shape that its source and documents give, of a build never run.

Without token ids in the stream, every end a `stop`, and a count that goes past the end of the answer, as
examples/server of PyPI's ik-llama-cpp-python 0.1.5 has them; with `draft_by_depth` as newer builds have it.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HELP = Path(os.environ["FAKE_HELP"])
IDS, WORDS = [11, 12, 13, 2], ["one", " two", " three", ""]
"""The last ends the answer: it has no text."""
DEPTHS = [{"depth": 1, "draft_n": 2, "draft_n_accepted": 2}, {"depth": 2, "draft_n": 2, "draft_n_accepted": 1}]
KEYS = ("samplers", "temperature", "top_k", "top_p", "seed")


class Handler(BaseHTTPRequestHandler):
    """Answers the endpoints that benchctl uses."""

    settings: dict[str, object] = {}  # noqa: RUF012 - of the last request, as a slot keeps it

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def reply(self, body: object) -> None:
        key = Path(sys.argv[sys.argv.index("--api-key-file") + 1]).read_text().strip()
        allowed = self.path == "/health" or self.headers.get("Authorization") == f"Bearer {key}"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode() if allowed else b"{}")

    def do_GET(self) -> None:
        model = sys.argv[sys.argv.index("-m") + 1]
        pages = {"/slots": [{"id": 0, **Handler.settings}], "/props": {"total_slots": 1, "model_path": model}}
        self.reply(pages.get(self.path, {}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            self.reply({"tokens": [1, 2, 3]})
            return
        Handler.settings = {name: body[name] for name in KEYS}
        if not body["stream"]:
            listed = [{"id": token, "token": word, "logprob": 0.0} for token, word in zip(IDS, WORDS, strict=True)]
            self.reply({"choices": [{"text": "".join(WORDS), "logprobs": {"content": listed}}]})
            return
        drafted = {"draft_n": 4, "draft_n_accepted": 3, "draft_by_depth": DEPTHS} if "none" not in sys.argv else {}
        usage = {"completion_tokens": 6, "prompt_tokens": 3}
        ends: dict[str, object] = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}], "usage": usage}
        ends["timings"] = {"prompt_ms": 1.0, "predicted_ms": 3.0, "predicted_n": 6, **drafted}
        pieces = [{"choices": [{"index": 0, "text": word, "finish_reason": None}]} for word in WORDS]
        self.send_response(200)
        self.end_headers()
        for event in [*pieces, ends]:
            self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")


if "--help" in sys.argv:
    print(HELP.read_text())
elif "--version" in sys.argv:
    print("version: 4000 (abcdef12)", file=sys.stderr)
else:
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    if "none" not in sys.argv:
        print("slot id 0 | speculative decoding context initialized", file=sys.stderr)
    print(
        f'INFO [ main] HTTP server listening | hostname="127.0.0.1" port="{server.server_port}"',
        file=sys.stderr,
        flush=True,
    )
    server.serve_forever()
