"""The HTTP server: one model, one thread, one request at a time. Requests are JSON, answers are server-sent events.

    GET  /health           200 once everything is loaded
    GET  /info             what runs: model, precision, device, versions, self-test, speculation
    POST /render           {"messages": [...]} or {"text": "..."} -> {"text", "tokens"}
    POST /v1/completions   {"prompt": [ids], "max_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos",
                           "repetition_penalty", "logit_bias": {id: number}}
    POST /score            {"prefix": [ids], "top", "kept", "ignore_eos", "repetition_penalty", "logit_bias"} ->
                           {"logprobs": [[id, value]], "evaluated"}
    POST /replay           {"prompt": [ids], "answer": [ids], "steps": [[drafted, accepted]], "ignore_eos",
                           "repetition_penalty", "logit_bias"} -> {"deviations": [[index, likeliest, gap]]}
    POST /compare          {"prompt": [ids], "answer": [ids], "temperature", "depth", "stride", "top"} -> draft and
                           target compared along the answer; an empty answer -> {"flops": {"target", "draft"}} of a step

Events of a completion are OpenAI's with `token_ids`; the last also carries `ledger` and `phases` (seconds). Where the
server has a key, every request needs it (`Authorization: Bearer KEY`). One thread, because OpenMP keeps a pool of
threads for every thread that computes. For the same reason every connection carries a single request: a second would
wait for the first to be closed.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import UnixStreamServer
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from benchctl.engines.transformers.serving.answering import Answer, Comparing, Passage
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.decode import Chooser, Drafter, Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder, State
from benchctl.engines.transformers.serving.loading import Loaded
from benchctl.engines.transformers.serving.replaying import replay

TRACE_SCHEMA = 1
"""Version of the lines of a trace file; what they hold is in docs/self-speculation.md."""
_LONGEST_BODY = 64 * 2**20
_SILENCE_S = 60.0
"""A connection is closed if it is silent for so many seconds."""
Reply = dict[str, Any]
Stream = Callable[[Callable[[Reply], None]], None]
"""A function that sends events with the function that it gets."""


def number_in(
    body: Mapping[str, Any], name: str, kind: type = float, *, low: float = 0, high: float = 2**63 - 1
) -> Any:  # noqa: ANN401 - of `kind`
    """Return a number of a request. Raises ValueError for what is none of its kind, or is not from `low` to `high`."""
    value = body[name]
    if type(value) not in (int, kind) or not low <= value <= high:
        raise ValueError(f"{name} is a number from {low:g} to {high:g}")
    return value


_DEFAULTS = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 1, "repetition_penalty": 1.0}


def _for_template(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn as chat templates read it: OpenAI's API has the arguments of a call as a JSON text."""
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function", {})
        with contextlib.suppress(KeyError, TypeError, ValueError):
            function = {**function, "arguments": json.loads(function["arguments"])}
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls} if calls else dict(message)


@dataclass
class Service:
    """Answers requests."""

    loaded: Loaded
    decoder: Decoder
    way: Drafter | Assistance | None
    context: int
    info: Mapping[str, Any]
    trace: Path | None = None
    """File to which the steps of answers are appended."""

    def __post_init__(self) -> None:
        self._answers = 0
        self._scoring, self._scored = State(self.decoder), list[int]()

    def describe(self) -> Reply:
        """Return the facts of this server. For a searching method they hold what it has chosen by now."""
        if self.way is None:
            return dict(self.info)
        return {**self.info, "speculation": {**self.info["speculation"], **self.way.describe()}}

    def render(self, body: Mapping[str, Any]) -> Reply:
        """Return a prompt as the model sees it: `messages` through the chat template, or `text` as it is."""
        tokenizer = self.loaded.tokenizer
        if (messages := body.get("messages")) is None:
            text = str(body["text"])
            return {"text": text, "tokens": list(tokenizer(text)["input_ids"])}
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the model has no chat template; use raw prompts")
        settings = {**(body.get("chat_template_kwargs") or {}), "tokenize": False, "add_generation_prompt": True}
        turns = [_for_template(turn) for turn in messages]
        text = tokenizer.apply_chat_template(turns, tools=body.get("tools"), **settings)
        return {"text": text, "tokens": list(tokenizer(text, add_special_tokens=False)["input_ids"])}

    def score(self, body: Mapping[str, Any]) -> Reply:
        """Return the likeliest tokens after a prefix, with natural logarithms; see `Chooser`.

        With `kept` only what the prefix has more than the last one is read, in a single batch.
        """
        prefix, before = self._tokens(body.get("prefix")), len(self._scored)
        chooser = self._chooser(body)
        top = min(number_in(body, "top", int, low=1), self.decoder.vocabulary - len(chooser.never))
        if not (body.get("kept") is True and len(prefix) > before and prefix[:before] == self._scored):
            self._scoring, before = State(self.decoder), 0
        with torch.inference_mode():
            logits = chooser.processed(self._scoring.advance(prefix[before:]), prefix)[-1].float()
            # Excluded tokens get minus infinity, and the others are not renormalized, as in a sampler.
            values, ids = chooser.allowed(logits.log_softmax(-1)).topk(top)
        self._scored = prefix
        # Ties are common in bfloat16. The lower id comes first, as in decoding.
        likeliest = sorted(zip(ids.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
        return {"logprobs": likeliest, "evaluated": len(prefix) - before}

    def replay(self, body: Mapping[str, Any]) -> Reply:
        """Read an answer again in its steps."""
        prompt, answer = self._tokens(body.get("prompt")), self._tokens(body.get("answer"))
        steps = [(int(drafted), int(accepted)) for drafted, accepted in body["steps"]]
        if not all(drafted <= self.context for drafted, _ in steps):
            raise ValueError("a draft is longer than the context")
        return {"deviations": replay(self.decoder, prompt, answer, steps, self._chooser(body))}

    def compare(self, body: Mapping[str, Any]) -> Reply:
        """Read an answer with the draft and the target."""
        prompt = self._tokens(body.get("prompt"))
        comparing = Comparing(self.decoder, self.way)
        if not body.get("answer"):
            return {"flops": comparing.flops(prompt)}
        answer = self._tokens(body["answer"])
        numbers = [number_in(body, name, int) for name in ("depth", "stride", "top")]
        return comparing.read(Passage(prompt, answer, number_in(body, "temperature", high=1e6), *numbers))

    def complete(self, body: Mapping[str, Any]) -> Stream:
        """Return what sends the events of an answer; a `send` that raises ends it."""
        prompt = self._tokens(body.get("prompt"))
        requested = number_in(body, "max_tokens", int)
        available = self.context - len(prompt)
        if available < 1:
            raise ValueError(f"the prompt has {len(prompt)} tokens, and the context holds {self.context}")
        chooser = self._chooser(body)
        task = Task(prompt, min(requested, available), chooser, self.loaded.ends - chooser.never)
        answer = Answer(self.decoder, task, self.way, traced=self.trace is not None)
        return lambda send: self._events(answer, send)

    def _chooser(self, body: Mapping[str, Any]) -> Chooser:
        """Return what chooses the tokens of a request. Raises ValueError."""
        biases, numbers = dict(body.get("logit_bias") or {}), {**_DEFAULTS, **body}
        tokens = self._tokens([int(token) for token in biases]) if biases else []
        sampler = Sampler(
            number_in(numbers, "temperature", high=1e6),
            number_in(numbers, "top_k", int),
            number_in(numbers, "top_p", high=1.0),
            number_in(numbers, "seed", int),
            number_in(numbers, "repetition_penalty", high=10),
            dict(zip(tokens, (number_in(biases, token, low=-100, high=100) for token in biases), strict=True)),
        )
        return sampler.chooser(self.loaded.ends if body.get("ignore_eos") else ())

    def _events(self, answer: Answer, send: Callable[[Reply], None]) -> None:
        text = TextStream(self.loaded.tokenizer)

        def on_step(step: Step) -> None:
            send({"choices": [{"index": 0, "text": text.add(step.tokens), "token_ids": step.tokens}]})

        try:
            answer.run(on_step)
        finally:
            if self.trace is not None:
                with open(self.trace, "a", encoding="utf-8", opener=_without_links) as file:
                    for step in answer.trace:
                        file.write(json.dumps({"schema": TRACE_SCHEMA, "answer": self._answers, **step}) + "\n")
            self._answers += 1
        tokens = sum(len(step.tokens) for step in answer.steps)
        finish = "stop" if answer.steps[-1].ended else "length"
        send(
            {
                "choices": [{"index": 0, "text": text.rest(), "token_ids": [], "finish_reason": finish}],
                "usage": {"prompt_tokens": len(answer.task.prompt), "completion_tokens": tokens},
                "ledger": answer.ledger(),
                "phases": dict(answer.clock.seconds),
            }
        )

    def _tokens(self, value: object) -> list[int]:
        if not isinstance(value, list) or not value:
            raise ValueError("a prompt is a list of token ids, at least one")
        if not all(type(token) is int and 0 <= token < self.decoder.vocabulary for token in value):
            raise ValueError(f"a token id is a whole number below {self.decoder.vocabulary}")
        return value


def _without_links(file: str, flags: int) -> int:
    """Open as `open` asks, unless a link lies there: this process imports nothing of benchctl's writing."""
    return os.open(file, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class _Handler(BaseHTTPRequestHandler):
    """Answers a connection. `service` is set by `serve`."""

    protocol_version = "HTTP/1.0"
    timeout = _SILENCE_S
    service: Service
    key: bytes | None = None

    def do_POST(self) -> None:
        """Answer by the path; without the key a request is refused."""
        service = self.service
        answers: Mapping[str, Callable[[Mapping[str, Any]], Reply | Stream]] = {
            "GET /health": lambda _: {},
            "GET /info": lambda _: service.describe(),
            "POST /render": service.render,
            "POST /score": service.score,
            "POST /replay": service.replay,
            "POST /compare": service.compare,
            "POST /v1/completions": service.complete,
        }
        authorization = self.headers.get("Authorization", "").encode("utf-8", "replace")
        answer = answers.get(f"{self.command} {self.path}")
        if self.key is not None and not hmac.compare_digest(authorization, b"Bearer " + self.key):
            self._refuse(HTTPStatus.UNAUTHORIZED, "a key is needed")
        elif answer is None:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is no {self.path}")
        else:
            try:
                reply = answer(self._body() if self.command == "POST" else {})
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
                self._refuse(HTTPStatus.BAD_REQUEST, str(error) or type(error).__name__)
                return
            if isinstance(reply, dict):
                self._reply(HTTPStatus.OK, reply)
            else:
                self._stream(reply)

    do_GET = do_POST  # the name that the base class calls

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._reply(status, {"error": {"message": reason}})

    def _body(self) -> Mapping[str, Any]:
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 < length <= _LONGEST_BODY:
            raise ValueError("a request has a body")
        body = json.loads(self.rfile.read(length))
        if not isinstance(body, dict):
            raise TypeError("a request is a JSON object")
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
        """Keep requests out of the log: each prompt makes a line."""


def serve(service: Service, address: tuple[str, int] | str, key: str | None, ready: Callable[[], None]) -> None:
    """Answer requests until the process is ended. Raises OSError where the address is taken.

    `address`: host and port, or the path of a Unix socket. `key`: every request needs it; `None`: none does.
    """
    # Without this, TCP would hold small events back to fill a packet. Unix sockets do not wait.
    fields = {"service": service, "key": key and key.encode(), "disable_nagle_algorithm": not isinstance(address, str)}
    handler = type("Handler", (_Handler,), fields)
    listener = UnixStreamServer(address, handler) if isinstance(address, str) else HTTPServer(address, handler)
    with listener as server:
        ready()
        server.serve_forever()


class TextStream:
    """Turns tokens into text piece by piece; a character split over tokens comes when it is whole."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._sent = ""

    def add(self, tokens: Sequence[int]) -> str:
        """Return the text that these tokens complete."""
        self._ids += tokens
        backend = self._tokenizer.backend_tokenizer
        piece = "".join(self._stream.step(backend, token) or "" for token in tokens)
        self._sent += piece
        return piece

    def rest(self) -> str:
        """Return what is left at the end, such as half a character."""
        text = self._tokenizer.decode(self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text[len(self._sent) :] if text.startswith(self._sent) else ""
