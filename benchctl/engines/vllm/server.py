"""The vLLM of a cell: rendering, answering, counting, attesting, stopping, and the root cause of its end."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Ledger, Progress, Rendered
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer, completed
from benchctl.engines.common.drafts import (
    counted_since,
    read_counters,
    read_total,
    step_ledger,
    wait_until,
)
from benchctl.engines.common.launched_server import MODEL_NAME, LaunchedServer, check_tools
from benchctl.engines.common.log import Reason, first_reason, read_causes, read_log
from benchctl.engines.common.process import EngineProcess
from benchctl.engines.common.wire import id_marked, id_of, logprob_of, protocol_error, seconds_in, text_in
from benchctl.engines.in_use import Counted, ListedToken
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.attest import VllmObserved, attest, contradictions, mismatches, plain_steps, tokens_a_step
from benchctl.engines.vllm.command import BY_BATCH_SIZE
from benchctl.errors import EngineError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.schema import Sampling

_STEPS = "vllm:iteration_tokens_total_count"
"""A histogram of tokens a step, whose count is the number of steps of the engine."""
_COUNTED: dict[Counted, str] = {
    "cached tokens": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "rounds": "vllm:spec_decode_num_drafts_total",
    "drafted": "vllm:spec_decode_num_draft_tokens_total",
    "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "running": "vllm:num_requests_running",
}
"""Its series by what they count (vLLM 0.32: `v1/metrics/loggers.py`, `v1/spec_decode/metrics.py`)."""
_DEAD = re.compile(r"EngineCore|EngineDeadError")
"""How an engine reports that it is dead, some 0.3 s before `/health` does."""
_HEALTH_TIMEOUT_S = 30.0
_CAUSE_WAIT_S = 3.0
"""After a worker's death the log first shows the errors that it caused, and the death itself a moment later."""
_COUNTERS_WAIT_S = 1.0
"""How long the counters of `/metrics` may lag behind the end of a stream."""


_CAUSES = read_causes(Path(__file__).with_name("causes.txt"))
_KNOWN = _CAUSES["known"]
_OTHERWISE = _CAUSES["otherwise"]
"""Patterns for unknown causes. The last one matches an executor that ended before it named the worker."""


def launch_cause(log: Sequence[str]) -> Reason | None:
    """Return (sentence, fix) for the first reason in the log's lines why vLLM ended; `None` when they show none."""
    return first_reason(log, (*_KNOWN, *_OTHERWISE))


class VllmServer(LaunchedServer):
    """A healthy vLLM; see `benchctl.engines.base.Server`."""

    launch_cause = staticmethod(launch_cause)
    counters = _COUNTED
    salt_key = "cache_salt"
    dying_s = 8.0
    """The server outlives its engine by some 5 s, and then ends with status 0."""
    interrupt_s = 5.0
    """An engine that ignores SIGTERM (while it loads) or hangs (with requests in flight) ends on a SIGINT."""

    def __init__(
        self,
        process: EngineProcess,
        url: str,
        spec: VllmSpec,
        *,
        model: str,
        method: str | None,
        overlapping: bool,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        """`model`: the folder that it was given; `method`: of speculation; `overlapping`: `Launch.overlapping`.

        `config`: of speculation. With adaptive verification it verifies a part of what it counts as drafted, and does
        not report which.
        """
        super().__init__(process, url, spec)
        self._model = model
        self._method = method
        settings = config or {}
        self._adaptive = bool(settings.get("enable_adaptive_verification"))
        self._may_hold_back = any(entry[-1] == 0 for entry in settings.get(BY_BATCH_SIZE) or ())
        self._prefix_caching = spec.prefix_caching
        self._alone = not overlapping
        self._contradictions: list[str] = []

    def render(self, prompt: Prompt) -> Rendered:
        """Apply the chat template (raw prompts stay as they are) and tokenize, special tokens included."""
        if prompt.prompt is not None:
            ids = self._ids({"prompt": prompt.prompt, "add_special_tokens": True})
            return Rendered(prompt.prompt, ids, answer_settings(prompt))
        request = {key: value for key, value in prompt.request.items() if key not in ("response_format", "tool_choice")}
        messages = [message.model_dump() for message in prompt.messages or ()]
        ids = self._ids({"messages": messages, "add_generation_prompt": True, **request})
        answer = self.http.post("/detokenize", {"model": MODEL_NAME, "tokens": list(ids)})
        text = check_tools(prompt, answer.get("prompt"))
        return Rendered(text, ids, answer_settings(prompt))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer and its ledger. Raises EngineError; leaves no request behind."""
        body = completion_body(prompt.token_ids, sampling) | prompt.settings
        with self._tally.request():
            before = self._reading() if self._alone and self._method is not None else None
            try:
                streamed = await self._stream("/v1/completions", body, CompletionReader(sampling.max_tokens), on_tokens)
            except EngineError as error:
                # It may take seconds; other streams are read meanwhile.
                raise await asyncio.to_thread(self._dead_or_refused, error) from error
            answer = streamed.answer
            self._check(answer, sampling, len(prompt.token_ids))
        reported = answer.extra.get("metrics")
        metrics = reported if isinstance(reported, dict) else {}
        ledger = step_ledger(metrics)
        tokens = len(answer.ids)
        counted, steps = (None, None) if before is None else self._counted(before, ledger)
        at_once = self._batch is not None and len(prompt.token_ids) <= self._batch
        verified = None if self._adaptive else ledger.drafted
        ledger = replace(ledger, verified=verified, plain_steps=plain_steps(ledger, tokens, steps if at_once else None))
        stopped = "stop" in prompt.settings and answer.finish_reason == "stop"
        self._tally.add(tokens, ledger)
        self._tally.stopped += stopped
        self._contradictions += contradictions(ledger, tokens, None if stopped else counted, steps)
        unread = self._prefix_caching and answer.cached_tokens is None  # how much was read in that time is not known
        return replace(
            completed(streamed, ledger),
            engine_prompt_s=None if unread else seconds_in(metrics.get("time_to_first_token_ms")),
            engine_decode_s=seconds_in(metrics.get("generation_time_ms")) if tokens > 1 else None,
        )

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        """Return the request."""
        body = completion_body(prompt.token_ids, sampling, stream=False) | prompt.settings
        listing = {"logprobs": likeliest, "return_tokens_as_token_ids": True} if likeliest else {}
        return "/v1/completions", body | listing

    async def listed(self, prompt: Rendered, sampling: Sampling, likeliest: int) -> list[ListedToken]:
        """Answer with `logprobs`. Raises EngineError."""
        path, body = self.request_of(prompt, sampling, likeliest)
        try:
            answer = await asyncio.to_thread(self.http.post, path, body, self._spec.request_timeout_s)
        except EngineError as error:
            raise await asyncio.to_thread(self._dead_or_refused, error) from error
        try:
            (choice,) = answer["choices"]
            lists, logprobs = choice["logprobs"]["top_logprobs"], choice["logprobs"]["token_logprobs"]
            return [
                ListedToken(
                    id_of(token), logprob_of(logprob), {id_marked(name): logprob_of(p) for name, p in top.items()}
                )
                for token, logprob, top in zip(choice["token_ids"], logprobs, lists, strict=True)
            ]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise protocol_error("The engine returned no log probabilities of its tokens.") from None

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `attest.py` for what counts as evidence. Raises EngineError (`crash`)."""
        if not self._healthy():
            raise self._broken_off("The engine is no longer healthy")
        models = self.http.get_json("/v1/models")
        reading = wait_until(self._reading, lambda counts: not mismatches(self._tally, counts[0]), _COUNTERS_WAIT_S)
        return attest(
            VllmObserved(
                method=self._method,
                model_path=_root(models),
                requested_model=self._model,
                counters=reading[0],
                tally=self._tally,
                contradictions=[*self._contradictions, *mismatches(self._tally, reading[0])],
                log=self._log(),
                prefix_caching=self._prefix_caching,
                may_hold_back=self._may_hold_back,
            )
        )

    def _check(self, answer: StreamedAnswer, sampling: Sampling, sent: int) -> None:
        """Raise EngineError for half an answer: a vLLM that is being ended closes its streams as if they were whole."""
        tokens, counted, read = len(answer.ids), answer.completion_tokens, answer.prompt_tokens
        if (counted, read) != (tokens, sent):
            raise protocol_error(
                f"{sent} tokens were sent and {tokens} received; the engine counts {read} and {counted}."
            )
        full = sent + tokens >= self._spec.context
        if answer.finish_reason == "length" and tokens != sampling.max_tokens and not full:
            raise protocol_error(f"The answer ended for its length after {tokens} of {sampling.max_tokens} tokens.")

    def _reading(self) -> tuple[Ledger, int | None]:
        """Return the server's counters of speculation, and how many steps its engine has made."""
        text = self.http.get("/metrics").text
        return read_counters(text, "vllm"), read_total(text, _STEPS)

    def _counted(self, before: tuple[Ledger, int | None], reported: Ledger) -> tuple[Ledger, int | None]:
        """Return what the server counted for the answer that has just ended; wait a moment where they lag."""
        expected = (reported.drafted, reported.rounds)

        def agrees(after: tuple[Ledger, int | None]) -> bool:
            counted = counted_since(before[0], after[0])
            return (counted.drafted, counted.rounds) == expected

        after = wait_until(self._reading, agrees, _COUNTERS_WAIT_S)
        steps = None if before[1] is None or after[1] is None else after[1] - before[1]
        return counted_since(before[0], after[0]), steps

    @cached_property
    def _batch(self) -> int | None:
        """How many tokens of a prompt are read in a single step; longer prompts take several."""
        return tokens_a_step("\n".join(read_log(self._log_path)))

    def _healthy(self) -> bool:
        """Whether the server reports its engine as alive; failed requests call this, so its request is plain."""
        return self.http.status("/health", timeout_s=_HEALTH_TIMEOUT_S) == 200

    def _dead_or_refused(self, error: EngineError) -> EngineError:
        """Return a crash where the engine is dead although its server still answers, else the refusal."""
        if error.kind == "http" and not self._stopping and (_DEAD.search(error.what) or not self._healthy()):
            return self._broken_off(error.what.rstrip("."))
        if "maximum context length" in error.what or "max_model_len" in error.what:
            error.fix = f"Raise engine.context (now {self._spec.context}) or leave the prompt out."
        return error

    def _broken_off(self, message: str) -> EngineError:
        """Return a crash also for an engine that is dead behind a server that still runs."""
        error = super()._broken_off(message)
        alive = error.kind != "protocol" or self._stopping or launch_cause(self._log()) is None or self._healthy()
        return error if alive else self._crash(message, "its workers are dead")

    def _crash(self, message: str, reason: str) -> EngineError:
        """Wait a moment for the log to show the reason."""
        within_s = 0.0 if self._stopping else _CAUSE_WAIT_S
        wait_until(self._log, lambda lines: first_reason(lines, _KNOWN) is not None, within_s)
        return super()._crash(message, reason)


def _root(models: object) -> str | None:
    """Return the folder of the only model in the answer of `/v1/models`."""
    with suppress(KeyError, TypeError, ValueError):
        (served,) = models["data"]  # type: ignore[index]
        return text_in(served["root"])
    return None


REQUEST_FIELDS = frozenset({"tools", "response_format", "chat_template_kwargs", "stop", "choice", "regex", "logprobs"})
"""What a prompt may have beside its text."""


def answer_settings(prompt: Prompt) -> dict[str, Any]:
    """Return what `/v1/completions` is sent of a prompt beside its text."""
    settings: dict[str, Any] = {}
    if prompt.response_format is not None:
        settings["response_format"] = prompt.response_format
    elif prompt.call_schema is not None:
        schema = {"name": "call", "schema": prompt.call_schema}
        settings["response_format"] = {"type": "json_schema", "json_schema": schema}
    if prompt.regex is not None and prompt.grammar is None:
        settings["structured_outputs"] = {"regex": prompt.regex}
    elif prompt.choice is not None:
        settings["structured_outputs"] = {"choice": list(prompt.choice)}
    if prompt.stop is not None:
        settings["stop"] = list(prompt.stop)
    return settings | ({"logprobs": 1} if prompt.logprobs else {})


def completion_body(token_ids: Sequence[int], sampling: Sampling, *, stream: bool = True) -> dict[str, Any]:
    """Return the JSON of a `/v1/completions` request.

    The prompt goes as token ids: nothing is tokenized or templated while the clock runs. What is left out here vLLM
    takes from the model's `generation_config.json`, penalties included.
    """
    return {
        "model": MODEL_NAME,
        "prompt": list(token_ids),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": 0.0,
        "repetition_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "logit_bias": {str(token): bias for token, bias in sampling.logit_bias.items()} or None,
        "seed": sampling.seed,
        "ignore_eos": sampling.ignore_eos,
        **({"structured_outputs": {"grammar": sampling.grammar}} if sampling.grammar else {}),
        "return_token_ids": True,
        "stream": stream,
    } | ({"stream_options": {"include_usage": True}} if stream else {})


def scoring_body(token_ids: Sequence[int], *, tokens: int, top: int) -> dict[str, Any]:
    """Return the JSON of a request for `tokens` greedy tokens and, of raw logits, the `top` logprobs at each."""
    return {
        "model": MODEL_NAME,
        "prompt": list(token_ids),
        "max_tokens": tokens,
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": True,
        "logprobs": top,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "stream": False,
    }
