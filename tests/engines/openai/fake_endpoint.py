"""A scripted OpenAI-compatible server, for what a real one cannot be asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.engines.scripted import ScriptedHandler, listening

WORDS = ["one", " two", " three", " four"]
UNSTREAMED: dict[str, Any] = {
    "error-in-200": {"error": {"message": "model overloaded", "code": 529}},
    "web-page": "<html><title>Sign in</title></html>",
    "ignores-stream": {"choices": [{"message": {"content": "one two"}, "finish_reason": "stop"}]},
}
"""What is sent with status 200 in place of a stream."""


EVENTS = {
    "malformed-json": b'data: {"choices": [\n\n',
    "not-an-object": b"data: [1]\n\n",
    "bad-choices": b'data: {"choices": [7]}\n\n',
    "bad-text": b'data: {"choices": [{"index": 0, "text": 7}]}\n\n',
}
"""Events that no completion has, by fault."""


@dataclass
class Script:
    """What the endpoint does; tests change it while it runs."""

    fault: str = ""
    key: str | None = None
    models: list[str] = field(default_factory=lambda: ["m"])
    routes: tuple[str, ...] = ("completions", "chat/completions")
    api: str = "/v1"
    """The path below which they are."""
    pages: dict[str, Any] = field(default_factory=dict)
    """Answers to GET by path: an object is JSON, text is text."""
    words: list[str] = field(default_factory=lambda: list(WORDS))
    ids: bool = False
    first: int = 1
    """How many tokens the first event has; every later one has one."""
    pace_s: float = 0.0
    """Before each of the later events."""
    tokenizes: bool = False
    """Whether there are a `/tokenize`, for which a word is a token, and a `/detokenize`, which shows what it read."""
    tokenized: list[dict[str, Any]] = field(default_factory=list)
    usage: bool = True
    counted: int | None = None
    """Tokens by `usage`, where these are not those that came."""
    cached: int = 0
    busy: int = 0
    """How many requests are refused first, with 503 and the header `Retry-After`."""
    retry_after: str = "1"
    finish: str = "length"
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the last event."""
    choice_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the last choice."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""


def handler_of(script: Script) -> type[ScriptedHandler]:
    class Handler(ScriptedHandler):
        def allowed(self) -> bool:
            authorization = self.headers.get("Authorization")
            script.keys.append(authorization)
            if script.key is None or authorization == f"Bearer {script.key}":
                return True
            self.reply(401, {"error": {"message": f"wrong key: {authorization}", "code": 401}})
            return False

        def do_GET(self) -> None:
            if not self.allowed():
                return
            if self.path == f"{script.api}/models" and script.fault != "no-list":
                self.reply(200, {"data": [{"id": name} for name in script.models]})
            elif self.path in script.pages:
                self.reply(200, script.pages[self.path])
            else:
                self.reply(404, {"detail": "Not Found"})

        def do_POST(self) -> None:
            body = self.body()
            if not self.allowed():
                return
            if script.tokenizes and self.path == "/tokenize":
                script.tokenized.append(body)
                self.reply(200, {"tokens": list(range(len(str(body.get("prompt")).split())))})
            elif script.tokenizes and self.path == "/detokenize":
                self.reply(200, {"prompt": json.dumps(script.tokenized[-1])})
            elif self.path.removeprefix(f"{script.api}/") not in script.routes:
                self.reply(404, {"detail": "Not Found"})
            elif "model" not in body:
                self.reply(400, {"error": {"message": "model is missing", "code": 400}})
            else:
                script.requests.append(body)
                self.complete(body)

        def complete(self, body: dict[str, Any]) -> None:
            fault, secret = script.fault, script.key or ""
            if fault == "chats-as-sglang" and "messages" in body and body.get("return_token_ids"):
                reason = "return_token_ids is not supported with streaming on /v1/chat/completions."
                choice = {"message": {"content": "".join(script.words)}, "response_token_ids": [1, 2, 3, 4]}
                refused, reply = {"error": {"message": reason}}, {"choices": [choice]}
                self.reply(400 if body["stream"] else 200, refused if body["stream"] else reply)
                return
            if not body["stream"] and fault == "returns-ids":
                ids = list(range(1, len(script.words) + 1)) if body.get("return_token_ids") else None
                self.reply(200, {"choices": [{"text": "".join(script.words), "token_ids": ids}]})
                return
            if fault.startswith("status-"):
                status = int(fault.removeprefix("status-"))
                headers = {"Retry_After": "7"} if status == 429 else {}
                headers |= {"Location": f"http://127.0.0.1:9/?key={secret}"} if status == 307 else {}
                message = f"no: Bearer {secret} \x1b[2J"
                self.reply(status, {"error": {"message": message, "code": status}}, **headers)
                return
            if script.busy and body["stream"]:
                script.busy -= 1
                self.reply(503, {"error": {"message": "Loading model", "code": 503}}, Retry_After=script.retry_after)
                return
            if fault in UNSTREAMED:
                kind = "text/html" if fault == "web-page" else "application/json"
                self.reply(200, UNSTREAMED[fault], Content_Type=kind)
                return
            self.begin_stream()
            if fault == "byte-order-mark":
                self.send(b"\xef\xbb")
                self.send(b"\xbf")
            words = [secret, *script.words] if fault == "echoes-key" else script.words
            for count, word in enumerate(words, 1):
                time.sleep(script.pace_s if count > 1 else 0.0)
                self.piece(body, word, [count])
                if count == 2:
                    out_of_memory = json.dumps({"error": {"message": f"out of memory for {secret}", "code": 500}})
                    events = EVENTS | {"error-event": f"data: {out_of_memory}\n\n".encode()}
                    self.misbehave(fault, events, {"choices": [{"index": 0, "text": "x"}]})
            if fault != "no-finish":
                self.piece(body, "", [], script.finish)
            if script.usage:
                counted = script.first - 1 + len(words) if script.counted is None else script.counted
                usage: dict[str, Any] = {"prompt_tokens": 3, "completion_tokens": counted}
                usage["prompt_tokens_details"] = {"cached_tokens": script.cached}
                self.event(choices=[], usage=usage, **script.extra)
            self.end_stream()

        def piece(self, body: dict[str, Any], text: str, ids: list[int], finish: str | None = None) -> None:
            piece: dict[str, Any] = {"delta": {"content": text}} if "messages" in body else {"text": text}
            streamed_ids = {"token_ids": ids} if script.ids else {}
            extra = script.choice_fields if finish else {}
            self.event(choices=[{"index": 0, **piece, **streamed_ids, **extra, "finish_reason": finish}])

    return Handler


@contextmanager
def serving(script: Script) -> Iterator[Script]:
    """Run the endpoint in this process; a handler that a test leaves stalled is not waited for."""
    with listening(handler_of(script)) as script.url:
        yield script
