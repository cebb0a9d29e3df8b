"""An SGLang of one cell: rendering, answering, counting, attesting, stopping, and why it ended.

Every event of `/generate` carries all of the answer, several tokens longer: a verify step's tokens come in one event,
and a slow client gets several steps in one, so that tokens are counted by their ids. (SGLang 0.5.23,
`tokenizer_manager.py`: `text` and `output_ids` are cumulative unless the server was started with
`--incremental-streaming-output`; figures of speculation stand in the last event's `meta_info`.) A process of SGLang's
that fails has its launcher kill all of them with SIGKILL: status 137 is not memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchctl.data.record import FinishReason
from benchctl.engines.base import Attestation, Completion, Progress, Rendered
from benchctl.engines.common.drafts import verified_ledger
from benchctl.engines.common.launched_server import LaunchedServer, StartUp
from benchctl.engines.common.log import READ_THE_LOG, Cause, Reason, clean, first_reason, hide
from benchctl.engines.common.process import Access, EngineProcess
from benchctl.engines.common.stream import AnswerReader
from benchctl.engines.common.values import TokenId, count_in, ids_in
from benchctl.engines.common.wire import protocol_error
from benchctl.engines.sglang.attest import SglangObserved, attest, drafts_are_counted
from benchctl.engines.sglang.command import MODEL_NAME
from benchctl.errors import EngineError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.schema import Sampling
from benchctl.text import one_line

_DYING_S = 8.0
"""A launcher whose worker has failed takes some seconds to kill the rest."""


class SglangServer(LaunchedServer):
    """A healthy SGLang; see `benchctl.engines.base.Server`."""

    def __init__(
        self,
        process: EngineProcess,
        log_path: Path,
        access: Access,
        port: int,
        spec: EngineSpec,
        requested: Mapping[str, str],
    ) -> None:
        """`requested`: the options of its command line, by name without dashes, underscores for them."""
        super().__init__(process, log_path, access.url(port), spec, launch_cause, dying_s=_DYING_S, access=access)
        self._requested = requested
        self._key = access.key
        self._cached = 0
        self._counted = False

    def wait_until_healthy(self, start_up: StartUp, path: str = "/health") -> None:
        """See `LaunchedServer`; by then it has logged its settings, the key among them."""
        super().wait_until_healthy(start_up, path)
        hide(self._log_path, self._key)

    def stop(self) -> int | None:
        """See `LaunchedServer`."""
        status = super().stop()
        hide(self._log_path, self._key)
        return status

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        if prompt.prompt is not None:
            return Rendered(prompt.prompt, self._ids({"prompt": prompt.prompt}))
        ids = self._ids({"messages": [message.model_dump() for message in prompt.messages or ()]})
        body = {"model": MODEL_NAME, "tokens": list(ids), "skip_special_tokens": False}
        text = self.http.post("/detokenize", body).get("text")
        if not isinstance(text, str):
            raise protocol_error("The engine did not return the prompt's text.")
        return Rendered(text, ids)

    def _ids(self, what: dict[str, Any]) -> tuple[int, ...]:
        return self._prompt_ids(self.http.post("/tokenize", {"model": MODEL_NAME, **what}))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream one answer and its ledger. Raises EngineError; leaves no request behind."""
        with self._tally.request():
            body = generate_body(prompt.token_ids, sampling)
            streamed = await self._stream("/generate", body, GenerateReader(sampling.max_tokens), on_tokens)
        answer = streamed.answer
        ledger = verified_ledger(answer.meta, counted=self._counted)
        self._tally.add(len(answer.ids), ledger)
        cached = answer.meta.get("cached_tokens")
        self._cached += count_in(cached, 2**31) or 0
        return Completion(
            text=answer.text,
            token_ids=answer.ids,
            n_predicted=len(answer.ids),
            finish_reason=answer.finish_reason,
            prompt_tokens=answer.prompt_tokens,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            first_tokens=answer.first_tokens,
            e2e_s=streamed.e2e_s,
            sent_at=streamed.sent_at,
            engine_prompt_s=None,
            engine_decode_s=None,
            ledger=ledger,
        )

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `attest.py` for what counts as evidence."""
        reported = self.http.get_json("/server_info")
        info = reported if isinstance(reported, dict) else {}
        self._counted = drafts_are_counted(info)
        tally = self._tally
        return attest(
            SglangObserved(
                requested=self._requested,
                info=info,
                drafted=tally.most_drafted(drafted),
                rounds=tally.rounds or 0,
                accepted=tally.accepted or 0,
                tokens=tally.tokens,
                longest=tally.longest,
                cached=self._cached,
            )
        )


def generate_body(token_ids: tuple[int, ...], sampling: Sampling) -> dict[str, Any]:
    """Return the JSON of one streamed `/generate` request; what the model's own settings would fill in is written."""
    return {
        "input_ids": list(token_ids),
        "sampling_params": {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repetition_penalty": sampling.repeat_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "max_new_tokens": sampling.max_tokens,
            "ignore_eos": sampling.ignore_eos,
            "sampling_seed": sampling.seed,
        },
        "stream": True,
    }


_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


@dataclass(frozen=True)
class GeneratedAnswer:
    """One answer as it was received. Times are seconds since the request was sent."""

    text: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    ttft_s: float
    decode_s: float
    prompt_tokens: int
    meta: Mapping[str, Any]
    """`meta_info` of the last event."""
    first_tokens: int = 1
    """How many tokens came at `ttft_s`."""


class _Meta(msgspec.Struct):
    finish_reason: None


class _Step(msgspec.Struct):
    """What every event but the last holds; see `GenerateReader.payload`."""

    text: msgspec.Raw
    output_ids: msgspec.Raw
    meta_info: _Meta
    error: None = None


_step_in = msgspec.json.Decoder(_Step).decode
_QUOTE = ord('"')
_ids_in = msgspec.json.Decoder(list[TokenId]).decode


class GenerateReader(AnswerReader[GeneratedAnswer]):
    """Reads a whole answer."""

    most_bytes = 4 * 2**30  # every event repeats the answer so far
    bytes_a_token = 2**20

    def __init__(self, most_tokens: float = math.inf) -> None:
        super().__init__(most_tokens)
        self._ids: list[int] = []
        self._known = b"["
        """The ids so far as the last step wrote them, without the bracket at their end."""
        self._answer: GeneratedAnswer | None = None

    def payload(self, payload: bytes) -> None:
        """Take one event: a step's at once, any other as a whole."""
        try:
            step = _step_in(payload)
            added = self._added(bytes(step.output_ids)) if memoryview(step.text)[0] == _QUOTE else None
        except (ValueError, RecursionError):
            added = None
        if added is None:
            super().payload(payload)
        elif added:
            self.tokens(len(added))
            self._ids += added
            if self.count > self.most_ids:
                raise self.too_many(self.count)

    def _added(self, written: bytes) -> list[int] | None:
        """Return the ids behind those that are known; `None` where the beginning is written in another way.

        What every event repeats is compared as bytes: to read 256 ids again for one more would take most of the time.
        """
        known = self._known
        if not written.startswith(known) or not written.endswith(b"]"):
            return None
        rest = written[len(known) : -1].lstrip()
        if self._ids and rest:
            if not rest.startswith(b","):
                return None
            rest = rest[1:]
        added = _ids_in(b"[" + rest + b"]")
        self._known = written[:-1].rstrip()
        return added

    def event(self, event: dict[str, Any]) -> None:
        """Take one event."""
        text, received, meta = event["text"], ids_in(event["output_ids"]), event["meta_info"]
        if not isinstance(text, str) or received is None or not isinstance(meta, dict):
            raise TypeError("text, output_ids and meta_info")
        self._go_on(received)
        finish = meta.get("finish_reason")
        if finish is not None:
            self._answer = self._finished(text, finish, meta)
            self.over = True

    def _go_on(self, received: list[int]) -> None:
        before = len(self._ids)
        if received[:before] != self._ids:
            raise protocol_error("The engine retracted tokens that it had sent.")
        if len(received) > before:
            self.tokens(len(received) - before)
            self._ids = received
            self._known = b"-"  # from here on every event is read as a whole
        if self.count > self.most_ids:
            raise self.too_many(self.count)

    def answer(self) -> GeneratedAnswer | None:
        """Return the whole answer; `None` when the stream ended before its `finish_reason`."""
        return self._answer

    def _finished(self, text: str, finish: Mapping[str, Any], meta: Mapping[str, Any]) -> GeneratedAnswer:
        kind = finish["type"]
        if kind == "abort":
            raise EngineError(
                f"The engine aborted the request: {clean(str(finish.get('message', 'no message')))[:500]}", kind="http"
            )
        if kind not in _FINISH:
            raise protocol_error(f"The answer ended for an unknown reason: {clean(str(kind))[:80]}")
        counted, prompt_tokens = count_in(meta["completion_tokens"]), count_in(meta["prompt_tokens"], 2**31)
        if counted != len(self._ids):
            raise protocol_error(
                f"{len(self._ids)} tokens were received, and the engine counts {one_line(str(counted), 20)}."
            )
        if prompt_tokens is None:
            raise TypeError("prompt_tokens is a count")
        first = max(1, self.first_tokens)
        return GeneratedAnswer(
            text, tuple(self._ids), _FINISH[kind], self.ttft_s, self.decode_s, prompt_tokens, meta, first
        )


_KNOWN = (
    Cause(r"unrecognized arguments: (.*)", "This SGLang has no option {0}.", "Correct engine.args or the arm's args."),
    Cause(r"error: argument (--\S+?)[:/].*?: (.*)", "SGLang refuses the value of {0}: {1}", "Correct the recipe."),
    Cause(
        r"No module named '(sgl_kernel[\w.]*)'",
        "This SGLang lacks its compiled kernels ({0}).",
        "Install the sgl-kernel that belongs to it; the package index has it for CUDA alone.",
    ),
    Cause(
        r"((?:CUDA )?out of memory|OutOfMemoryError|Not enough memory)(.*)",
        "There is too little memory: {0}{1}",
        "Lower engine.context or --mem-fraction-static in engine.args, or take a smaller model.",
    ),
    Cause(
        r"[Aa]ddress already in use|port .* is (?:already )?(?:in use|occupied)", "The port is taken.", "Run it again."
    ),
    Cause(
        r"(\w+ speculative decoding is not supported by .*)",
        "SGLang refuses: {0}",
        "Use another algorithm, or another device.",
    ),
    # The last two are looked for where no other is there.
    Cause(r"^\s*(?:\[[^\]]*\]\s*)*(?:[\w.]*\.)?([A-Z]\w*(?:Error|Exception)): (.+)", "{0}: {1}", READ_THE_LOG),
    Cause(
        r"Received sigquit from a child process",
        "One of its processes failed, and its launcher killed the others (so SIGKILL is not lack of memory).",
        READ_THE_LOG,
    ),
)


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return (sentence, fix) for the first reason in the log's lines why SGLang ended; `None` when they show none."""
    return first_reason(log, _KNOWN)
