"""The server: one model, one thread, one request at a time; small JSON requests, answers as server-sent events.

    GET  /health           200 once everything is loaded
    GET  /info             what runs: model, precision, device, versions, self-test, speculation
    POST /render           {"messages": [...]} or {"text": "..."} -> {"text", "tokens"}
    POST /v1/completions   {"prompt": [ids], "max_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos"}
    POST /score            {"prefix": [ids], "top", "kept", "ignore_eos"} -> {"logprobs": [[id, value]], "evaluated"}

Events of a completion are OpenAI's with `token_ids`; the last one also carries `ledger` and `phases` (seconds).
One thread, because OpenMP keeps a pool of threads for every thread that computes. For the same reason every connection
carries one request: a second one would wait for the first to be closed.
"""

from __future__ import annotations

import contextlib
import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from benchctl.engines.transformers.serving.answering import Answer
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.choose import Sampler
from benchctl.engines.transformers.serving.decode import Drafter, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.loading import Loaded
from benchctl.engines.transformers.serving.scoring import Scoring
from benchctl.engines.transformers.serving.text import TextStream, render

_LONGEST_BODY = 64 * 2**20
_SILENCE_S = 60.0
"""How long a connection may say nothing, or take nothing."""
Reply = dict[str, Any]
Stream = Callable[[Callable[[Reply], None]], None]
"""Sends events with the function that it is given."""


class BadRequestError(ValueError):
    """The request cannot be answered as it is."""


@dataclass
class Service:
    """What the server answers with."""

    loaded: Loaded
    decoder: Decoder
    way: Drafter | Assistance | None
    context: int
    info: Mapping[str, Any]

    def __post_init__(self) -> None:
        self._scoring: Scoring | None = None

    def render(self, body: Mapping[str, Any]) -> Reply:
        """Apply the chat template and tokenize."""
        text, tokens = render(self.loaded.tokenizer, body)
        return {"text": text, "tokens": tokens}

    def score(self, body: Mapping[str, Any]) -> Reply:
        """Read a prefix."""
        prefix = self._tokens(body.get("prefix"))
        left_out = self.loaded.ends if body.get("ignore_eos") else ()
        self._scoring = self._scoring or Scoring(self.decoder)
        return self._scoring.read(prefix, int(body["top"]), kept=bool(body.get("kept")), left_out=left_out)

    def complete(self, body: Mapping[str, Any]) -> Stream:
        """Return what sends the events of one answer; a `send` that raises ends it."""
        prompt = self._tokens(body.get("prompt"))
        sampler = Sampler(
            float(body.get("temperature", 0.0)),
            int(body.get("top_k", 0)),
            float(body.get("top_p", 1.0)),
            int(body.get("seed", 1)),
        )
        room = self.context - len(prompt)
        if room < 1:
            raise BadRequestError(f"the prompt has {len(prompt)} tokens, and the context holds {self.context}")
        ignored = self.loaded.ends if body.get("ignore_eos") else frozenset()
        task = Task(prompt, min(int(body["max_tokens"]), room), sampler.chooser(ignored), self.loaded.ends - ignored)
        answer = Answer(self.decoder, task, self.way)
        return lambda send: self._events(answer, send)

    def _events(self, answer: Answer, send: Callable[[Reply], None]) -> None:
        text, tokens = TextStream(self.loaded.tokenizer), 0

        def on_step(step: Step) -> None:
            nonlocal tokens
            tokens += len(step.tokens)
            send({"choices": [{"index": 0, "text": text.add(step.tokens), "token_ids": step.tokens}]})

        answer.run(on_step)
        finish = "stop" if answer.ended else "length"
        send(
            {
                "choices": [{"index": 0, "text": text.rest(), "token_ids": [], "finish_reason": finish}],
                "usage": {"prompt_tokens": len(answer.task.prompt), "completion_tokens": tokens},
                "ledger": answer.tally.to_json(),
                "phases": dict(answer.clock.seconds),
            }
        )

    def _tokens(self, given: object) -> list[int]:
        if not isinstance(given, list) or not given:
            raise BadRequestError("a prompt is a list of token ids, at least one")
        if not all(isinstance(one, int) and 0 <= one < self.decoder.vocabulary for one in given):
            raise BadRequestError(f"a token id is a whole number below {self.decoder.vocabulary}")
        return given


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection. `service` is set by `serve`."""

    protocol_version = "HTTP/1.0"
    timeout = _SILENCE_S
    service: Service
    # Events are small: waiting to fill a packet would hold tokens back.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == "/health":
            self._reply(HTTPStatus.OK, {})
        elif self.path == "/info":
            self._reply(HTTPStatus.OK, dict(self.service.info))
        else:
            self._reply(HTTPStatus.NOT_FOUND, {"error": {"message": f"there is no {self.path}"}})

    def do_POST(self) -> None:
        answers: Mapping[str, Callable[[Mapping[str, Any]], Reply | Stream]] = {
            "/render": self.service.render,
            "/score": self.service.score,
            "/v1/completions": self.service.complete,
        }
        answer = answers.get(self.path)
        if answer is None:
            self._reply(HTTPStatus.NOT_FOUND, {"error": {"message": f"there is no {self.path}"}})
            return
        try:
            reply = answer(self._body())
        except (ValueError, KeyError, TypeError) as error:
            self._reply(HTTPStatus.BAD_REQUEST, {"error": {"message": str(error) or type(error).__name__}})
            return
        if isinstance(reply, dict):
            self._reply(HTTPStatus.OK, reply)
        else:
            self._stream(reply)

    def _body(self) -> Mapping[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= _LONGEST_BODY:
            raise BadRequestError("a request has a body")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise BadRequestError("a request is a JSON object")
        return body

    def _reply(self, status: HTTPStatus, reply: Reply) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, stream: Stream) -> None:
        """Send events until the end; a client that is gone ends the answer."""
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            stream(lambda event: self._event(json.dumps(event)))
            self._event("[DONE]")
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            return
        except Exception as error:
            traceback.print_exc()
            with contextlib.suppress(OSError):
                self._event(json.dumps({"error": {"message": f"{type(error).__name__}: {error}"}}))

    def _event(self, data: str) -> None:
        self.wfile.write(b"data: " + data.encode() + b"\n\n")

    def log_message(self, format: str, *args: object) -> None:
        """Keep requests out of the log: there is one a prompt."""


def serve(service: Service, host: str, port: int, ready: Callable[[], None]) -> None:
    """Answer requests until the process is ended. Raises OSError where the port is taken."""
    handler = type("Handler", (_Handler,), {"service": service})
    with HTTPServer((host, port), handler) as server:
        ready()
        server.serve_forever()
