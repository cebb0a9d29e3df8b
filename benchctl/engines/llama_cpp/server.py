"""One llama-server of one cell: rendering, answering, counting, attesting, stopping."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchctl.engines.base import Attestation, Completion, Progress, Rendered
from benchctl.engines.common.answer_clock import error_in, protocol_error
from benchctl.engines.common.launched_server import LaunchedServer
from benchctl.engines.common.log import name_log
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.llama_cpp.attest import Observed, judge
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.ledger import Counters, make_ledger, parse_metrics
from benchctl.engines.llama_cpp.request import check_echo, completion_body
from benchctl.engines.llama_cpp.speculation import Asked
from benchctl.engines.llama_cpp.stream import Answer, read_answer
from benchctl.engines.llama_cpp.tally import Tally
from benchctl.engines.llama_cpp.withheld import agreeing_ids, filled_ids
from benchctl.errors import EngineError
from benchctl.models.token_bytes import token_bytes
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import EngineSpec, Sampling

_SIDE_TIMEOUT_S = 60.0
"""For the small requests around a measurement."""
_BROKEN_OFF_GRACE_S = 1.0
"""For an engine that is stopped with requests in flight: it would not end before the last of them."""
_DYING_S = 2.0
_ERROR_BODY_BYTES = 65536
_LAST_ONE = {"Connection": "close", "Content-Type": "application/json"}
"""llama-server often drops a connection after a streamed answer without saying so; whoever sends the next request on
it is told nothing but "disconnected". So every stream is the last on its connection, which the reading of the counters
has just opened."""


@dataclass(frozen=True)
class StreamedCompletion(Completion):
    """A completion that remembers which ids the stream did bring, for checking those that are fetched later."""

    known_ids: tuple[tuple[int, int], ...] = ()


class LlamaServer(LaunchedServer):
    """A healthy llama-server; see `benchctl.engines.base.Server`."""

    def __init__(
        self,
        process: EngineProcess,
        log_path: Path,
        client: httpx.Client,
        spec: EngineSpec,
        asked: Asked,
        model: str,
        *,
        slots: int = 1,
        overlapping: bool = False,
    ) -> None:
        super().__init__(process, log_path, launch_cause, dying_s=_DYING_S)
        self._client = client
        self._spec = spec
        self._asked = asked
        self._model = model
        self._slots = slots
        self._overlapping = overlapping
        self._tally = Tally()
        self._has_metrics = True
        self._at_start: Counters | None = None
        self._before_recovery: Counters | None = None

    @property
    def model(self) -> str:
        """The file of the target, as the engine was given it."""
        return self._model

    @property
    def url(self) -> str:
        """Where the engine listens."""
        return str(self._client.base_url).rstrip("/")

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        text = prompt.prompt
        if text is None:
            messages = [message.model_dump() for message in prompt.messages or ()]
            text = self._post("/apply-template", {"messages": messages}).get("prompt")
        if not isinstance(text, str):
            raise protocol_error("The engine did not tell the prompt's text.")
        return Rendered(text, self.tokenize(text, special=True))

    def tokenize(self, text: str, *, special: bool) -> tuple[int, ...]:
        """Return the ids of `text`; `special`: with the tokens that begin a prompt, and special ones parsed."""
        answer = self._post("/tokenize", {"content": text, "add_special": special, "parse_special": special})
        return self._prompt_ids(answer)

    def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream one answer and its ledger. Raises EngineError; leaves no request behind."""
        body = completion_body(prompt.token_ids, sampling, stream=True)
        with self._tally.request():
            before = self._before_answer()
            answer, e2e_s = self._stream(body, on_tokens)
            after = before if self._overlapping else self._counters()
            check_echo(body, answer.settings)
        ledger = make_ledger(before, after, answer.timings, speculating=bool(self._asked.types))
        self._tally.add(answer.n_predicted, ledger)
        ids = answer.token_ids or filled_ids(answer, Path(self._model))
        return StreamedCompletion(
            text=answer.text,
            token_ids=ids,
            n_predicted=answer.n_predicted,
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            e2e_s=e2e_s,
            engine_prompt_s=_seconds(answer.timings, "prompt_ms"),
            engine_decode_s=_seconds(answer.timings, "predicted_ms") if answer.n_predicted > 1 else None,
            ledger=ledger,
            token_gap=answer.token_gap if ids is None else None,
            known_ids=answer.known_ids,
        )

    def _before_answer(self) -> Counters:
        """Return the counters before an answer; where answers overlap, only that a server which counts is at 0.

        Timings leave out what is 0. That nothing was drafted is certain once the sums agree with the counters.
        """
        if not self._overlapping:
            return self._counters()
        counts = self._at_start is not None and self._at_start.drafted is not None
        return Counters(drafted=0, accepted=0) if counts else Counters()

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, seen: Completion) -> tuple[int, ...] | None:
        """Ask again without streaming; `None` unless the text and every id that the stream brought agree."""
        if seen.token_ids is not None:
            return seen.token_ids
        if self._overlapping and self._before_recovery is None:
            self._before_recovery = self._counters()  # what is asked again is in no answer's sum
        answer = self.ask(completion_body(prompt.token_ids, sampling, stream=False))
        known = seen.known_ids if isinstance(seen, StreamedCompletion) else ()
        return agreeing_ids(answer, seen, known)

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the whole answer to an unstreamed `/completion` request. Raises EngineError."""
        return self._post("/completion", body, timeout_s=self._spec.request_timeout_s)

    def attest(self, drafted: int | None) -> Attestation:
        """Judge the cell now; see `attest.py` for what counts as evidence."""
        slots = self._get("/slots")
        props = self._get("/props") or {}
        told = None
        if isinstance(slots, list):
            told = tuple(slot.get("speculative") if isinstance(slot, dict) else None for slot in slots)
        counters = self._counters()
        if self._at_start is None and self._overlapping:
            token_bytes(Path(self._model))  # kept: to read it while others are timed would hold them up
        self._at_start = self._at_start or counters
        beside = self._tally.beside(self._before_recovery or counters) if self._overlapping else None
        counts = [count for count in (drafted, self._tally.drafted, counters.drafted) if count is not None]
        return judge(
            Observed(
                asked=self._asked,
                slots=told,
                total_slots=props.get("total_slots") if isinstance(props, dict) else None,
                model_path=props.get("model_path") if isinstance(props, dict) else None,
                asked_model=self._model,
                drafted=max(counts, default=None),
                longest_answer=self._tally.longest,
                log=self._log(),
                asked_slots=self._slots,
                counted=beside,
            )
        )

    def stop(self) -> int | None:
        """Close the connections first (a request in flight would delay SIGTERM), then end the process.

        Those that other threads read from end with the process.
        """
        self._stopping = True
        if self._tally.in_flight:
            self._process.stop(_BROKEN_OFF_GRACE_S)
        self._client.close()
        return self._process.stop()

    def _stream(self, body: Mapping[str, Any], on_tokens: Progress | None) -> tuple[Answer, float]:
        silence_s = min(self._spec.stall_timeout_s, self._spec.request_timeout_s)
        timeout = httpx.Timeout(_SIDE_TIMEOUT_S, read=silence_s)
        content = json.dumps(body).encode()
        remedy = "Raise engine.stall_timeout_s if the machine is that slow; else read the engine's log."
        with self._told_apart(silence_s, remedy):
            started = time.perf_counter()
            request = self._client.stream("POST", "/completion", content=content, headers=_LAST_ONE, timeout=timeout)
            with request as response:
                if response.status_code != httpx.codes.OK:
                    raise self._http_error(response)
                answer = read_answer(response.iter_raw(), started, self._spec.request_timeout_s, on_tokens)
            e2e_s = time.perf_counter() - started
        if answer is None:
            raise self._broken_off("The answer ended in its middle")
        return answer, e2e_s

    @contextmanager
    def _told_apart(self, limit_s: float = _SIDE_TIMEOUT_S, fix: str = "Read the engine's log.") -> Iterator[None]:
        """Turn what httpx raises into the engine's own failures; `limit_s` is how long it may be silent."""
        try:
            yield
        except httpx.TimeoutException as error:
            if not self.alive():
                raise self._broken_off("The engine did not answer") from error
            raise EngineError(
                f"The engine sent nothing for {limit_s:g} s.",
                kind="timeout",
                fix=name_log(fix, self._log_path),
                log_tail=self.log_tail(),
            ) from error
        except (httpx.TransportError, httpx.StreamError) as error:
            raise self._broken_off("The connection to the engine broke") from error

    def _http_error(self, response: httpx.Response) -> EngineError:
        body = b""
        for block in response.iter_raw():
            body += block
            if len(body) > _ERROR_BODY_BYTES:
                break
        message, fix = body[:500].decode("utf-8", "replace"), name_log("Read the engine's log.", self._log_path)
        try:
            payload = json.loads(body)
        except ValueError:
            payload = None
        message = error_in(payload) or repr(message)
        if isinstance(payload, dict) and "exceed_context_size_error" in str(payload.get("error")):
            fix = f"Raise engine.context (now {self._spec.context}) or leave the prompt out."
        return EngineError(
            f"The engine refused the request: HTTP {response.status_code}: {message}", kind="http", fix=fix
        )

    def _post(self, path: str, body: Mapping[str, Any], timeout_s: float = _SIDE_TIMEOUT_S) -> dict[str, Any]:
        with self._told_apart(timeout_s), self._client.stream("POST", path, json=body, timeout=timeout_s) as response:
            if response.status_code != httpx.codes.OK:
                raise self._http_error(response)
            response.read()
            try:
                answer = response.json()
            except ValueError as error:
                raise protocol_error(f"The engine's answer to {path} is no JSON.") from error
        if not isinstance(answer, dict):
            raise protocol_error(f"The engine's answer to {path} is no JSON object.")
        return answer

    def _get(self, path: str) -> object:
        """Return the JSON of an endpoint, or `None` when the binary does not have it."""
        with self._told_apart():
            response = self._client.get(path, timeout=_SIDE_TIMEOUT_S)
        try:
            return response.json() if response.status_code == httpx.codes.OK else None
        except ValueError as error:
            raise protocol_error(f"The engine's answer to {path} is no JSON.") from error

    def _counters(self) -> Counters:
        """Read `/metrics`; older binaries and those without `--metrics` tell nothing."""
        if not self._has_metrics:
            return Counters()
        with self._told_apart():
            response = self._client.get("/metrics", timeout=_SIDE_TIMEOUT_S)
        self._has_metrics = response.status_code == httpx.codes.OK
        return parse_metrics(response.text) if self._has_metrics else Counters()


def _seconds(timings: Mapping[str, Any], name: str) -> float | None:
    value = timings.get(name)
    return value / 1000 if isinstance(value, int | float) and math.isfinite(value) else None
