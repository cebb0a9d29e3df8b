"""The engine of the toy adapter: it repeats the prompt's words, one a step, or several where it looks them up.

toy_serve.py --version
toy_serve.py --model FILE --port N [--lookup K [--budget V]]

With a budget it simulates an engine that adapts: of K drafted tokens a round verifies V, and reports all three counts.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from typing import Any


def option(name: str, default: str = "") -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


LOOKUP = int(option("--lookup", "0"))
BUDGET = int(option("--budget", "0"))
VERIFIED = BUDGET or LOOKUP
"""Draft tokens of a round that are verified, all of which are right."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 65536

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def head(self, kind: str, **headers: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def do_GET(self) -> None:
        body = json.dumps({"lookup": LOOKUP, "model": option("--model")}).encode()
        self.head("application/json", Content_Length=str(len(body)))
        self.wfile.write(body)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        words = request["prompt"].split()
        ids = list(islice(cycle([sum(word.encode()) for word in words]), request["max_tokens"]))
        self.close_connection = True
        self.head("text/event-stream", Connection="close")
        rounds = 0
        while ids:
            many = 1 + (VERIFIED if rounds else 0)  # the first token is prefill's
            step, ids = ids[:many], ids[many:]
            rounds += 1
            self.event(choices=[{"text": "".join(f" {token}" for token in step), "token_ids": step}])
        self.event(choices=[{"text": "", "finish_reason": "length"}])
        usage = {"prompt_tokens": len(words), "completion_tokens": request["max_tokens"]}
        drafts = {"rounds": rounds - 1, "drafted": (rounds - 1) * LOOKUP} if LOOKUP else None
        if drafts:
            drafts["accepted"] = min((rounds - 1) * VERIFIED, request["max_tokens"] - rounds)
            drafts |= {"verified": (rounds - 1) * VERIFIED} if BUDGET else {}
        self.event(choices=[], usage=usage, drafts=drafts)
        self.wfile.write(b"data: [DONE]\n\n")

    def event(self, **fields: Any) -> None:
        self.wfile.write(b"data: " + json.dumps(fields).encode() + b"\n\n")
        self.wfile.flush()


if __name__ == "__main__":
    if "--version" in sys.argv:
        sys.stdout.write("toy-serve 1.0\n")
    else:
        ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler).serve_forever()
