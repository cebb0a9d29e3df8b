"""The server: a model, one thread, one request at a time; small JSON requests, answers as server-sent events.

    GET  /health           200 once everything is loaded
    GET  /info             what runs: model, precision, device, versions, self-test, speculation
    POST /render           {"messages": [...]} or {"text": "..."} -> {"text", "tokens"}
    POST /v1/completions   {"prompt": [ids], "max_tokens", "temperature", "top_k", "top_p", "seed", "ignore_eos",
                           "repetition_penalty", "logit_bias": {id: number}}
    POST /score            {"prefix": [ids], "top", "kept", "ignore_eos", "repetition_penalty", "logit_bias"} ->
                           {"logprobs": [[id, value]], "evaluated"}
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
import socket
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerBase

from benchctl.engines.transformers.serving.answering import Answer
from benchctl.engines.transformers.serving.assisted import Assistance
from benchctl.engines.transformers.serving.comparing import Comparing, Passage
from benchctl.engines.transformers.serving.decode import Chooser, Drafter, Sampler, Step, Task
from benchctl.engines.transformers.serving.decoder import Decoder, State
from benchctl.engines.transformers.serving.loading import Loaded

TRACE_SCHEMA = 1
"""Version of the lines of a trace file; what they hold is in docs/self-speculation.md."""
_LONGEST_BODY = 64 * 2**20
_SILENCE_S = 60.0
"""How long a connection may send nothing, or accept nothing."""
Reply = dict[str, Any]
Stream = Callable[[Callable[[Reply], None]], None]
"""Sends events with the function that it is given."""


class BadRequestError(ValueError):
    """The request cannot be answered as it is."""


def number_in(
    body: Mapping[str, Any],
    name: str,
    default: float | None = None,
    *,
    low: float = 0,
    high: float = 2**63 - 1,
    whole: bool = False,
) -> float:
    """Return a number of a request. Raises BadRequestError for what is none, or is not from `low` to `high`."""
    value = body.get(name, default)
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        raise BadRequestError(f"{name} is a {'whole number' if whole else 'number'} from {low:g} to {high:g}")
    return value


@dataclass
class Service:
    """What the server answers with."""

    loaded: Loaded
    decoder: Decoder
    way: Drafter | Assistance | None
    context: int
    info: Mapping[str, Any]
    trace: Path | None = None
    """Where the steps of answers are written."""

    def __post_init__(self) -> None:
        self._answers = 0
        self._scoring: Scoring | None = None
        self._comparing: Comparing | None = None

    def describe(self) -> Reply:
        """Return what runs; what a searching method has chosen is as it is now."""
        if self.way is None:
            return dict(self.info)
        return {**self.info, "speculation": {**self.info["speculation"], **self.way.describe()}}

    def render(self, body: Mapping[str, Any]) -> Reply:
        """Apply the chat template and tokenize."""
        text, tokens = render(self.loaded.tokenizer, body)
        return {"text": text, "tokens": tokens}

    def score(self, body: Mapping[str, Any]) -> Reply:
        """Read a prefix."""
        prefix = self._tokens(body.get("prefix"))
        left_out = self.loaded.ends if body.get("ignore_eos") else ()
        self._scoring = self._scoring or Scoring(self.decoder)
        top = int(number_in(body, "top", whole=True, low=1))
        chooser = self._sampler(body).chooser(left_out)
        return self._scoring.read(prefix, top, chooser, kept=body.get("kept") is True)

    def compare(self, body: Mapping[str, Any]) -> Reply:
        """Read an answer with the draft and the target."""
        prompt = self._tokens(body.get("prompt"))
        self._comparing = self._comparing or Comparing(self.decoder, self.way)
        if not body.get("answer"):
            return {"flops": self._comparing.flops(prompt)}
        answer = self._tokens(body["answer"])
        numbers = {name: int(number_in(body, name, whole=True)) for name in ("depth", "stride", "top")}
        return self._comparing.read(Passage(prompt, answer, number_in(body, "temperature", high=1e6), **numbers))

    def complete(self, body: Mapping[str, Any]) -> Stream:
        """Return what sends the events of an answer; a `send` that raises ends it."""
        prompt = self._tokens(body.get("prompt"))
        requested = int(number_in(body, "max_tokens", whole=True))
        available = self.context - len(prompt)
        if available < 1:
            raise BadRequestError(f"the prompt has {len(prompt)} tokens, and the context holds {self.context}")
        ignored = self.loaded.ends if body.get("ignore_eos") else frozenset()
        chooser = self._sampler(body).chooser(ignored)
        task = Task(prompt, min(requested, available), chooser, self.loaded.ends - ignored)
        answer = Answer(self.decoder, task, self.way, traced=self.trace is not None)
        return lambda send: self._events(answer, send)

    def _sampler(self, body: Mapping[str, Any]) -> Sampler:
        """Return how the tokens of a request are chosen. Raises BadRequestError."""
        biases = dict(body.get("logit_bias") or {})
        tokens = self._tokens([int(token) for token in biases]) if biases else []
        return Sampler(
            number_in(body, "temperature", 0.0, high=1e6),
            int(number_in(body, "top_k", 0, whole=True)),
            number_in(body, "top_p", 1.0, high=1.0),
            int(number_in(body, "seed", 1, whole=True)),
            number_in(body, "repetition_penalty", 1.0, high=10),
            dict(zip(tokens, (number_in(biases, token, low=-100, high=100) for token in biases), strict=True)),
        )

    def _events(self, answer: Answer, send: Callable[[Reply], None]) -> None:
        text = TextStream(self.loaded.tokenizer)

        def on_step(step: Step) -> None:
            send({"choices": [{"index": 0, "text": text.add(step.tokens), "token_ids": step.tokens}]})

        try:
            answer.run(on_step)
        finally:
            self._keep_trace(answer)
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

    def _keep_trace(self, answer: Answer) -> None:
        if self.trace is not None:
            with self.trace.open("a", encoding="utf-8") as file:
                file.writelines(
                    json.dumps({"schema": TRACE_SCHEMA, "answer": self._answers, **step}) + "\n"
                    for step in answer.trace
                )
        self._answers += 1

    def _tokens(self, given: object) -> list[int]:
        if not isinstance(given, list) or not given:
            raise BadRequestError("a prompt is a list of token ids, at least one")
        if not all(type(token) is int and 0 <= token < self.decoder.vocabulary for token in given):
            raise BadRequestError(f"a token id is a whole number below {self.decoder.vocabulary}")
        return given


class _Handler(BaseHTTPRequestHandler):
    """Answers a connection. `service` is set by `serve`."""

    protocol_version = "HTTP/1.0"
    timeout = _SILENCE_S
    service: Service
    key: bytes | None = None

    def do_GET(self) -> None:
        self._answer({"/health": lambda _: {}, "/info": lambda _: self.service.describe()}, lambda: {})

    def do_POST(self) -> None:
        service = self.service
        answers = {"/render": service.render, "/score": service.score, "/compare": service.compare}
        self._answer({**answers, "/v1/completions": service.complete}, self._body)

    def _answer(
        self,
        answers: Mapping[str, Callable[[Mapping[str, Any]], Reply | Stream]],
        body: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Answer by the path; without the key a request is refused."""
        given = self.headers.get("Authorization", "").encode("utf-8", "replace")
        if self.key is not None and not hmac.compare_digest(given, b"Bearer " + self.key):
            self._reply(HTTPStatus.UNAUTHORIZED, {"error": {"message": "a key is needed"}})
        elif self.path not in answers:
            self._reply(HTTPStatus.NOT_FOUND, {"error": {"message": f"there is no {self.path}"}})
        else:
            try:
                reply = answers[self.path](body())
            except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
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
        """Keep requests out of the log: each prompt makes a line."""


class _UnixServer(TCPServer):
    """Listens on a Unix socket; its address is a path."""

    address_family = getattr(socket, "AF_UNIX", socket.AF_INET)


def serve(service: Service, address: tuple[str, int] | str, key: str | None, ready: Callable[[], None]) -> None:
    """Answer requests until the process is ended. Raises OSError where the address is taken.

    `address`: host and port, or the path of a Unix socket. `key`: every request needs it; `None`: none does.
    """
    # Events are small: waiting to fill a packet would hold tokens back. A Unix socket does not.
    fields = {"service": service, "key": key and key.encode(), "disable_nagle_algorithm": not isinstance(address, str)}
    handler = type("Handler", (_Handler,), fields)
    made = _UnixServer(address, handler) if isinstance(address, str) else HTTPServer(address, handler)  # type: ignore[arg-type]
    with made as server:
        ready()
        server.serve_forever()


class Scoring:
    """Reads prefixes and returns the likeliest next tokens; the last prefix stays in memory."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._state = State(decoder)
        self._tokens: tuple[int, ...] = ()

    def read(self, prefix: Sequence[int], top: int, chooser: Chooser, *, kept: bool) -> dict[str, Any]:
        """Read `prefix`, with `kept` only what it has more than the last prefix, in a single batch.

        Returns `logprobs` (pairs of id and natural logarithm, likeliest first, of what `chooser` chooses from) and
        `evaluated`.
        """
        before = len(self._tokens)
        if not (kept and len(prefix) > before and tuple(prefix[:before]) == self._tokens):
            self._state, before = State(self._decoder), 0
        with torch.inference_mode():
            logits = chooser.processed(self._state.advance(prefix[before:]), prefix)[-1].float()
            if chooser.never:
                # As a sampler that never chooses them: nothing is renormalized.
                known = torch.tensor(sorted(chooser.never), device=logits.device)
                logprobs = logits.log_softmax(-1).index_fill(0, known, -torch.inf)
            else:
                logprobs = logits.log_softmax(-1)
            values, ids = logprobs.topk(min(top, logprobs.shape[-1] - len(chooser.never)))
        self._tokens = tuple(prefix)
        return {
            # Of equals the lower id first, as decoding chooses: in bfloat16 exact ties are common.
            "logprobs": sorted(zip(ids.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0])),
            "evaluated": len(prefix) - before,
        }


def render(tokenizer: PreTrainedTokenizerBase, prompt: Mapping[str, Any]) -> tuple[str, list[int]]:
    """Return a prompt as the model sees it: `messages` through the chat template, or `text` as it is.

    Raises ValueError for messages where the tokenizer has no chat template.
    """
    if (messages := prompt.get("messages")) is not None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("the model has no chat template; use raw prompts")
        own = {**(prompt.get("chat_template_kwargs") or {}), "tokenize": False, "add_generation_prompt": True}
        text = tokenizer.apply_chat_template(messages, tools=prompt.get("tools"), **own)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    else:
        text = str(prompt["text"])
        ids = tokenizer(text)["input_ids"]
    return text, list(ids)


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
        whole = self._tokenizer.decode(self._ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return whole[len(self._sent) :] if whole.startswith(self._sent) else ""
