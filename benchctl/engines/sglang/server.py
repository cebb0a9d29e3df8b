"""An SGLang of a cell: rendering, answering, counting, attesting, stopping, and why it ended.

Every event of `/generate` carries all of the answer, several tokens longer: a verify step's tokens come together,
and a slow client gets those of several steps at once, so that tokens are counted by their ids. (SGLang 0.5.23,
`tokenizer_manager.py`: `text` and `output_ids` are cumulative unless the server was started with
`--incremental-streaming-output`; figures of speculation stand in the last event's `meta_info`.) A process of SGLang's
that fails has its launcher kill all of them with SIGKILL: status 137 is not memory.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchctl.data.record import FinishReason
from benchctl.engines.base import Attestation, Completion, Progress, Rendered
from benchctl.engines.common.completion_stream import StreamedAnswer, completed
from benchctl.engines.common.drafts import Tally, verified_ledger
from benchctl.engines.common.launched_server import (
    MODEL_NAME,
    LaunchedServer,
    StartUp,
    check_tools,
    conclude,
    drafted_nothing,
    other_model,
    unrequested,
)
from benchctl.engines.common.log import READ_THE_LOG, Reason, clean, first_reason, hide, read_causes
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.common.stream import AnswerReader
from benchctl.engines.common.wire import count_in, id_of, ids_in, logprob_of, protocol_error
from benchctl.engines.in_use import Counted, ListedToken
from benchctl.errors import EngineError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import CachingEngineSpec
from benchctl.recipes.schema import Sampling
from benchctl.text import one_line

_KNOWN = read_causes(Path(__file__).with_name("causes.txt"))["known"]


_COUNTED: dict[Counted, str] = {
    "cached tokens": "sglang:cached_tokens_total",
    "preemptions": "sglang:num_retracted_requests_total",
    "running": "sglang:num_running_reqs",
}
"""Its series by what they count, as SGLang's source names them; never read from a running one."""


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return (sentence, fix) for the first reason in the log's lines why SGLang ended; `None` when they show none."""
    return first_reason(log, _KNOWN)


class SglangServer(LaunchedServer):
    """A healthy SGLang; see `benchctl.engines.base.Server`."""

    launch_cause = staticmethod(launch_cause)
    counters = _COUNTED
    salt_key = "extra_key"
    dying_s = 8.0
    """A launcher whose worker has failed takes some seconds to kill the rest."""

    def __init__(self, process: EngineProcess, url: str, spec: CachingEngineSpec, requested: Mapping[str, str]) -> None:
        """`requested`: the options of its command line, by name without dashes, underscores for them."""
        super().__init__(process, url, spec)
        self._requested = requested
        self._caching = spec.prefix_caching
        self._cached = 0
        self._counted = False

    def wait_until_healthy(self, start_up: StartUp, path: str = "/health") -> None:
        """See `LaunchedServer`; by then it has logged its settings, the key among them."""
        super().wait_until_healthy(start_up, path)
        self._hide_key()
        self._counted = drafts_are_counted(self._info())

    def stop(self) -> int | None:
        """See `LaunchedServer`."""
        status = super().stop()
        self._hide_key()
        return status

    def _hide_key(self) -> None:
        if self.access is not None:
            hide(self._log_path, self.access.key)

    def _info(self) -> Mapping[str, Any]:
        """Return `/server_info`, empty where there is none. Raises EngineError."""
        reported = self.http.get_json("/server_info")
        return reported if isinstance(reported, dict) else {}

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        if prompt.prompt is not None:
            return Rendered(prompt.prompt, self._ids({"prompt": prompt.prompt}))
        ids = self._ids({"messages": [message.model_dump() for message in prompt.messages or ()]})
        body = {"model": MODEL_NAME, "tokens": list(ids), "skip_special_tokens": False}
        return Rendered(check_tools(prompt, self.http.post("/detokenize", body).get("text")), ids)

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer and its ledger. Raises EngineError; leaves no request behind."""
        with self._tally.request():
            body = generate_body(prompt.token_ids, sampling) | prompt.settings
            streamed = await self._stream("/generate", body, GenerateReader(sampling.max_tokens), on_tokens)
        answer = streamed.answer
        ledger = verified_ledger(answer.extra, counted=self._counted)
        self._tally.add(len(answer.ids), ledger)
        cached = count_in(answer.extra.get("cached_tokens"), 2**31)
        self._cached += cached or 0
        return replace(completed(streamed, ledger), cached_tokens=cached)

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        """Return the request."""
        body = generate_body(prompt.token_ids, sampling, stream=False) | prompt.settings
        listing = {"return_logprob": True, "top_logprobs_num": likeliest} if likeliest else {}
        return "/generate", body | listing

    async def listed(self, prompt: Rendered, sampling: Sampling, likeliest: int) -> list[ListedToken]:
        """Answer with `return_logprob`. Raises EngineError."""
        path, body = self.request_of(prompt, sampling, likeliest)
        answer = await asyncio.to_thread(self.http.post, path, body, self.timeout_s)
        try:
            meta = answer["meta_info"]
            pairs = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
            return [
                ListedToken(
                    id_of(token), logprob_of(value), {id_of(other): logprob_of(p) for p, other, *_ in likeliest_ones}
                )
                for (value, token, *_), likeliest_ones in pairs
            ]
        except (KeyError, TypeError, ValueError):
            raise protocol_error("The engine returned no log probabilities of its tokens.") from None

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; the evidence is `/server_info`, and the figures of its answers."""
        caching, cached = self._caching, self._cached
        drafts = self._tally.most_drafted(drafted)
        return attest(self._requested, self._info(), self._tally, drafted=drafts, caching=caching, cached=cached)


def generate_body(token_ids: tuple[int, ...], sampling: Sampling, *, stream: bool = True) -> dict[str, Any]:
    """Return the JSON of a `/generate` request; what the model's own settings would fill in is written."""
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
        "stream": stream,
    }


_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length"}


class GenerateReader(AnswerReader[StreamedAnswer]):
    """Reads a whole answer; `extra` of it is the `meta_info` of its last event."""

    most_bytes = 4 * 2**30  # every event repeats the answer so far
    bytes_a_token = 2**20

    def __init__(self, most_tokens: float = math.inf) -> None:
        super().__init__(most_tokens)
        self._ids: list[int] = []
        self._answer: StreamedAnswer | None = None

    def event(self, event: dict[str, Any]) -> None:
        """Take an event."""
        text, received, meta = event["text"], ids_in(event["output_ids"]), event["meta_info"]
        if not isinstance(text, str) or received is None or not isinstance(meta, dict):
            raise TypeError("text, output_ids and meta_info")
        before = len(self._ids)
        if received[:before] != self._ids:
            raise protocol_error("The engine retracted tokens that it had sent.")
        if len(received) > before:
            self.tokens(len(received) - before)
            self._ids = received
        if self.count > self.most_ids:
            raise self.too_many(self.count)
        if meta.get("finish_reason") is not None:
            self._answer = self._finished(text, meta["finish_reason"], meta)
            self.over = True

    def answer(self) -> StreamedAnswer | None:
        """Return the whole answer; `None` when the stream ended before its `finish_reason`."""
        return self._answer

    def _finished(self, text: str, finish: Mapping[str, Any], meta: Mapping[str, Any]) -> StreamedAnswer:
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
        return StreamedAnswer(
            text=text,
            ids=tuple(self._ids),
            finish_reason=_FINISH[kind],
            ttft_s=self.ttft_s,
            decode_s=self.decode_s,
            first_tokens=max(1, self.first_tokens),
            usage={"prompt_tokens": prompt_tokens},
            extra=meta,
        )


_DEPTH = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
_SETTINGS = (
    *("version", "speculative_algorithm", *_DEPTH, "speculative_accept_threshold_single"),
    *("speculative_accept_threshold_acc", "disable_radix_cache", "max_running_requests", "dtype", "device"),
    "attention_backend",
)
_SAME = {"NEXTN": {"EAGLE", "FROZEN_KV_MTP"}, "EAGLE": {"FROZEN_KV_MTP"}}
"""SGLang's name of an algorithm after resolving it, where that differs."""
_EVERY_ROUND_ALIKE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP", "DFLASH"})


def attest(
    requested: Mapping[str, str],
    info: Mapping[str, Any],
    tally: Tally,
    *,
    drafted: int | None,
    caching: bool,
    cached: int,
) -> Attestation:
    """Return the attestation of a cell. It fails closed: without evidence there is no confirmation.

    `requested`: the options of the command line; `info`: `/server_info`, empty where it is not available; `drafted`: of
    all answers; `caching`: whether the recipe requests a prefix cache; `cached`: prompt tokens taken from it.
    """
    evidence = [f"GET /server_info: {key} = {one_line(str(info[key]), 80)}" for key in _SETTINGS if key in info]
    algorithm, rounds, accepted = requested.get("speculative_algorithm", ""), tally.rounds or 0, tally.accepted or 0
    counted = "not reported" if drafted is None else drafted
    evidence.append(f"answers: {rounds} rounds, {counted} drafted, {accepted} accepted")
    if rounds:
        evidence.append(f"SGLang's own acceptance length (its bonus token included): {tally.tokens / rounds:.3f}")
        if not drafts_are_counted(info):
            evidence.append(ONLY_THE_MAXIMUM)
    failure = _wrong_server(requested, info, None if caching else cached) or _wrong_speculation(
        requested, info, tally, drafted
    )
    if algorithm and not failure and not drafted and not accepted and rounds:
        reason = f"SGLang verified {rounds} rounds and accepted nothing; it does not report whether it drafted."
        return Attestation("unverified", tuple(evidence), reason)
    return conclude(evidence, failure, requested=bool(algorithm), drafted=drafted or accepted)


def _wrong_server(requested: Mapping[str, str], info: Mapping[str, Any], cached: int | None) -> Reason | None:
    """Return what is not as requested; `cached`: tokens of a cache that is to be off, `None`: it is to be on."""
    if "speculative_algorithm" not in info:
        return "SGLang does not report its settings in /server_info.", "Use an SGLang that has it (0.5 or newer)."
    model = info.get("model_path")
    if model is not None and (mismatch := other_model(str(model), requested.get("model_path"))):
        return mismatch
    if cached is None:
        if info.get("disable_radix_cache"):
            return "Its prefix cache is off, and engine.prefix_caching requests it.", "Remove what turns it off."
    elif info.get("disable_radix_cache") is False or cached:
        evidence = f"{cached} prompt tokens were taken from a cache" if cached else "its prefix cache is on"
        return f"Prompts are to be read without a cache, but {evidence}.", "Remove what turns the cache on."
    return None


def _wrong_speculation(
    requested: Mapping[str, str], info: Mapping[str, Any], tally: Tally, drafted: int | None
) -> Reason | None:
    algorithm, runs = requested.get("speculative_algorithm", ""), str(info.get("speculative_algorithm") or "")
    if not algorithm:
        on = runs or tally.rounds or drafted
        return unrequested(f"SGLang has it on ({one_line(runs or 'None', 40)})") if on else None
    if runs.upper() not in {algorithm, *_SAME.get(algorithm, ())}:
        return f"{algorithm} was requested, but SGLang runs {runs or 'without speculation'}.", READ_THE_LOG
    for name in _DEPTH:
        if name in requested and info.get(name) is not None and str(info[name]) != requested[name]:
            message = f"SGLang took {name} = {info[name]}; {requested[name]} was requested."
            return message, "Write what it takes, or give its own keys in options."
    if algorithm != "NGRAM" and not tally.rounds:
        return drafted_nothing(algorithm, tally.longest, did="verified")
    return None


ONLY_THE_MAXIMUM = "SGLang reports only the maximum number of draft tokens: drafted tokens are not reported"


def drafts_are_counted(settings: Mapping[str, Any]) -> bool:
    """Whether a server with these `/server_info` settings counts its proposed drafts."""
    algorithm = str(settings.get("speculative_algorithm") or "").upper()
    return algorithm in _EVERY_ROUND_ALIKE and not settings.get("speculative_adaptive")
