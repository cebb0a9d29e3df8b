"""An endpoint during a cell: rendering, answering, counting, attesting. Nothing is started or stopped.

What the endpoint does not report is named in the attestation, neither confirmed nor refused. Servers ignore unknown
fields without an error, so a setting is sent only where it is known to be supported.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Launch, Ledger, Progress, Rendered
from benchctl.engines.common.completion_stream import (
    CompletionReader,
    StreamedAnswer,
    completed,
    first_choice,
    piece_of,
)
from benchctl.engines.common.drafts import IN_TIMINGS, Drafts, contradictions, read_drafts, wait_until
from benchctl.engines.common.endpoint import EndpointTarget, MetricsReading, Pages, as_sent
from benchctl.engines.common.http import HttpClient, Streamed
from benchctl.engines.common.log import log_tail
from benchctl.engines.common.wire import ids_in, protocol_error
from benchctl.engines.in_use import Counted, ListedToken
from benchctl.engines.openai.discovery import (
    Address,
    EndpointObserved,
    attest,
    discover,
    endpoint_ledger,
    engine_times,
    only_ours,
)
from benchctl.errors import EngineError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.schema import GREEDY, Sampling
from benchctl.writing import open_unlinked


@dataclass(frozen=True)
class EndpointPrompt(Rendered):
    """A prompt on its way to an endpoint, which applies its own chat template: `text` is then the messages as JSON."""

    chat: Mapping[str, Any] | None = None
    """Its messages and further fields, such as `tools`; `None` for a raw prompt, which is sent as it is."""


def unsupported(sampling: Sampling, family: str | None) -> list[str]:
    """Return a sentence for every setting of a recipe that this server is not known to support."""
    extensions = {
        "grammar": "grammar" in sampling.constraints and family != "llama.cpp",
        "repeat_penalty": "repeat_penalty" in sampling.constraints and family is None,
        "ignore_eos": sampling.ignore_eos and family is None,
        "top_k (write top_k: 0)": sampling.temperature > 0 and sampling.top_k != 0 and family is None,
    }
    beyond = [name for name, requested in extensions.items() if requested]
    return [f"{name} is not part of the OpenAI API, and this server is not known to support it." for name in beyond]


def request_body(
    prompt: Rendered, model: str, sampling: Sampling, family: str | None, *, stream: bool
) -> dict[str, Any]:
    """Return the JSON of a request, greedy at temperature 0, without reuse of earlier prompts where that is known."""
    chat = prompt.chat if isinstance(prompt, EndpointPrompt) else None
    body: dict[str, Any] = {
        **({"prompt": prompt.text} if chat is None else chat),
        "model": model,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stream": stream,
    }
    body |= {key: value for key, value in sampling.constraints.items() if key != "repeat_penalty"}
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if stream:
        body["stream_options"] = {"include_usage": True}
    if family is not None:
        body |= {"top_k": sampling.top_k or (0 if family == "llama.cpp" else -1), "ignore_eos": sampling.ignore_eos}
    if family == "llama.cpp":
        body |= {"samplers": sampling.chain, "repeat_penalty": sampling.repeat_penalty}
        body |= {"cache_prompt": False, "return_tokens": True, "verbose": True}
    elif family is not None:
        body |= {"repetition_penalty": sampling.repeat_penalty, "return_token_ids": True}
    if family == "vllm":
        body["cache_salt"] = uuid.uuid4().hex
    elif family == "sglang":  # its chat route does not stream ids
        body |= {"return_spec_tokens_details": True, "return_token_ids": chat is None or not stream}
    return body | prompt.settings


_NO_SUCH_ROUTE = frozenset({404, 405, 501})
_COUNTERS_WAIT_S = 1.0
"""How long the counters of `/metrics` may lag behind the end of a stream."""


@dataclass(frozen=True)
class EndpointLaunch(Launch):
    """Which endpoint a cell uses, and how."""

    model: str = ""
    speculation: str | None = None
    """How the endpoint speculates by the recipe; `None`: it does not."""


class EndpointServer:
    """An endpoint that answers; see `benchctl.engines.base.Server`."""

    def __init__(
        self, client: HttpClient, address: Address, launch: EndpointLaunch, spec: EngineSpec, log_path: Path
    ) -> None:
        """Inspect the endpoint. Raises EngineError (`launch`, …) when it is none."""
        self._client, self._address, self._launch, self._spec = client, address, launch, spec
        self._log_path, self._redact = log_path, client.redact
        self._unreachable = False
        self._tokenizes = not launch.overlapping
        """Whether text may be counted in tokens between two answers, and the endpoint has done it so far."""
        self._observed = EndpointObserved(launch.speculation)
        self._at_start = discover(client, address)
        self._may_return_ids = self._at_start.family != "vllm"
        """Whether a request that is not streamed may bring the ids that a stream lacks."""
        self._raw, self._chat = (self._has(path) for path in ("completions", "chat/completions"))
        if not self._raw and not self._chat:
            message = "There is neither /completions nor /chat/completions."
            fix = "Write the URL below which they are; it often ends with /v1."
            raise EngineError(message, kind="launch", where=address.api, fix=fix)
        self._note(*self._at_start.evidence)

    def _has(self, path: str) -> bool:
        return self._client.status_of_post(f"{self._address.api}/{path}") not in _NO_SUCH_ROUTE

    @property
    def log_path(self) -> Path:
        """The file of benchctl's observations; the endpoint's own log is not accessible."""
        return self._log_path

    def render(self, prompt: Prompt) -> Rendered:
        """Return what is sent; the endpoint applies its own template. Raises EngineError where it has no chat route."""
        if prompt.messages and not self._chat:
            raise EngineError(
                "The endpoint has no /chat/completions, which prompts made of messages need.",
                kind="http",
                fix="Use a suite of raw prompts: benchctl invents no template.",
            )
        if prompt.chat_template_kwargs is not None and self._at_start.family is None:
            raise EngineError("This server is not known to take chat_template_kwargs.", kind="http")
        if beyond := unsupported(GREEDY.model_copy(update=prompt.sampling), self._at_start.family):
            raise EngineError(beyond[0], kind="http")
        stop = {"stop": list(prompt.stop)} if prompt.stop else {}
        if self._raw and prompt.prompt is not None:
            return EndpointPrompt(prompt.prompt, (), stop | ({"logprobs": 1} if prompt.logprobs else {}))
        settings = stop | ({"logprobs": True} if prompt.logprobs else {})
        return EndpointPrompt(as_sent(prompt, only_chat=not self._raw), (), settings, chat=EndpointTarget.chat(prompt))

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer. Raises EngineError."""
        body = request_body(prompt, self._launch.model, sampling, self._at_start.family, stream=True)
        before, streamed = await self._streamed(self._path(prompt), body, sampling.max_tokens, on_tokens)
        answer = streamed.answer
        n_predicted = answer.completion_tokens
        if n_predicted is None or answer.prompt_tokens is None:
            raise protocol_error(
                "The endpoint does not report how many tokens it generated: its stream has no usable usage.",
                "Use a server that supports stream_options.include_usage; pieces of text are not tokens.",
            )
        ledger = self._ledger(answer, before, n_predicted)
        first_tokens = self._first_tokens(answer, n_predicted)
        self._observed.cached += bool(answer.cached_tokens)
        complete_ids = len(answer.ids) == n_predicted and bool(answer.ids or not answer.text)
        prefill_s, decode_s = engine_times(answer.extra)
        return replace(
            completed(streamed, ledger),
            text=self._redact(answer.text),
            token_ids=answer.ids if complete_ids else None,
            n_predicted=n_predicted,
            first_tokens=first_tokens,
            least_after_first=answer.later_tokens if first_tokens is None else None,
            engine_prompt_s=None if bool(answer.cached_tokens) else prefill_s,
            engine_decode_s=decode_s if n_predicted > 1 else None,
            token_gap=None if complete_ids else f"the endpoint returned {len(answer.ids)} of {n_predicted} token ids",
        )

    async def _streamed(
        self, path: str, body: Mapping[str, Any], most_tokens: int, on_tokens: Progress | None
    ) -> tuple[MetricsReading | None, Streamed[StreamedAnswer]]:
        """Return the counters before an answer, and the answer as it streamed.

        Of a busy endpoint it is streamed after the wait that it asks for, which no figure includes.
        Where several requests are in flight it is not waited for: there the wait would be part of what is measured.
        """
        deadline = time.monotonic() + self._spec.request_timeout_s
        while True:
            before = self._reading()
            try:
                return before, await self._client.stream(
                    path,
                    body,
                    CompletionReader(most_tokens),
                    silence_s=self._spec.stall_timeout_s,
                    timeout_s=self._spec.request_timeout_s,
                    on_tokens=on_tokens,
                )
            except EngineError as error:
                self._note(f"{error.kind}: {error.what}")
                wait_s = error.retry_after_s
                if wait_s is None or self._launch.overlapping or time.monotonic() + wait_s > deadline:
                    self._unreachable = error.kind == "crash"
                    raise
                self._observed.waits += 1
                await asyncio.sleep(wait_s)

    @property
    def slots(self) -> int | None:
        """It is not known."""
        return None

    @property
    def slot_context(self) -> int | None:
        """It is not known."""
        return None

    def in_use(self, prompt: Rendered, *, cached: bool, slot: int | None = None) -> Rendered:
        """Return a prompt with the server's cache or without it, where a request can choose that; slots are its own."""
        chosen: dict[str, dict[str, object]] = {
            "llama.cpp": {"cache_prompt": cached},
            "vllm": {"cache_salt": "benchctl" if cached else uuid.uuid4().hex},
        }
        return replace(prompt, settings=prompt.settings | chosen.get(self._at_start.family or "", {}))

    def counted(self) -> dict[Counted, int]:
        """Return nothing: others may use the endpoint, too."""
        return {}

    def request_of(self, prompt: Rendered, sampling: Sampling, likeliest: int = 0) -> tuple[str, dict[str, Any]]:
        """Return the request."""
        body = request_body(prompt, self._launch.model, sampling, self._at_start.family, stream=False)
        return self._path(prompt).removeprefix(self._address.root), body

    async def listed(self, prompt: Rendered, sampling: Sampling, likeliest: int) -> list[ListedToken] | None:
        """Return nothing: the API's lists have no token ids."""
        return None

    def _ledger(self, answer: StreamedAnswer, before: MetricsReading | None, n_predicted: int) -> Ledger:
        """Return the answer's ledger, and count it among what was observed."""
        after = self._counted(before, n_predicted)
        ours = only_ours(before, after, n_predicted)
        earlier, later = (reading.counters if ours and reading else Ledger() for reading in (before, after))
        ledger = endpoint_ledger(self._at_start, answer, earlier, later, self._drafts(answer, n_predicted))
        self._observed.tally.add(n_predicted, ledger)
        self._observed.shared += before is not None and after is not None and not ours
        return ledger

    def _drafts(self, answer: StreamedAnswer, n_predicted: int) -> Drafts | None:
        """Read the answer's drafts by its shape, and keep what was found and what contradicts itself."""
        observed = self._observed
        drafts = read_drafts(answer.extra, answer.usage, silent_is_none=not IN_TIMINGS.isdisjoint(observed.shapes))
        if drafts is not None:
            observed.shapes[drafts.shape] = None
            observed.lengths += [] if drafts.length is None else [drafts.length]
            observed.contradictions += contradictions(drafts.ledger, n_predicted)
        return drafts

    def _first_tokens(self, answer: StreamedAnswer, n_predicted: int) -> int | None:
        """Return how many tokens came first, by the endpoint's own tokenizer where the stream does not show it."""
        first = answer.first_of(n_predicted)
        if first is not None or not self._tokenizes:
            return first
        text = answer.first_text
        # llama-server reads `content` and `add_special`, others `prompt` and `add_special_tokens`.
        body = {"model": self._launch.model, "prompt": text, "content": text}
        try:
            ids = self._client.post(
                f"{self._address.root}/tokenize", body | {"add_special": False, "add_special_tokens": False}
            ).get("tokens")
        except EngineError:
            ids = None
        self._tokenizes = isinstance(ids, list)
        return len(ids) if isinstance(ids, list) and 0 < len(ids) <= n_predicted - answer.later_tokens else None

    def recover_token_ids(self, prompt: Rendered, sampling: Sampling, completion: Completion) -> tuple[int, ...] | None:
        """Repeat the request without streaming, where the server then returns ids.

        llama-server does, and SGLang's chat route. Whether a server that is not recognised does, such as a vLLM behind
        a gateway, is tried once.
        """
        if completion.token_ids is not None or not self._may_return_ids:
            return completion.token_ids
        family = self._at_start.family
        body = request_body(prompt, self._launch.model, sampling, family, stream=False)
        if family is None:
            body["return_token_ids"] = True
        try:
            answer = self._client.post(self._path(prompt), body, timeout_s=self._spec.request_timeout_s)
        except EngineError as error:
            self._note(f"token ids could not be fetched afterwards: {error.what}")
            self._may_return_ids = family is not None
            return None
        ids, text = _ids_of(answer), self._redact(_text_of(answer)).rstrip("\ufffd")
        self._may_return_ids = family is not None or ids is not None
        agrees = ids is not None and len(ids) == completion.n_predicted and text == completion.text.rstrip("\ufffd")
        return tuple(ids or ()) if agrees else None

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `discovery.attest`."""
        last = discover(self._client, self._address)
        attestation = attest(self._observed, self._at_start, last, drafted, only_chat=not self._raw)
        evidence = tuple(self._redact(line) for line in attestation.evidence)
        self._note(*evidence)
        return replace(attestation, evidence=evidence, reason=attestation.reason and self._redact(attestation.reason))

    def alive(self) -> bool:
        """Whether the endpoint accepted the last connection."""
        return not self._unreachable

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines of what benchctl observed."""
        return log_tail(self._log_path, lines)

    def stop(self) -> int | None:
        """Close the connections; the endpoint goes on."""
        self._client.close()
        return None

    def _path(self, prompt: Rendered) -> str:
        chat = isinstance(prompt, EndpointPrompt) and prompt.chat is not None
        return f"{self._address.api}/{'chat/completions' if chat else 'completions'}"

    def _reading(self) -> MetricsReading | None:
        """Read the counters that all requests share; `None` where several of benchctl's may be in flight."""
        if self._launch.overlapping or self._at_start.metrics is None:
            return None
        pages, reader = Pages(self._client, self._address.root), self._at_start.reader
        if reader is None:
            return pages.any_metrics()
        return reader.metrics(pages) if reader.metrics else None

    def _counted(self, before: MetricsReading | None, n_predicted: int) -> MetricsReading | None:
        """Read the counters after an answer; wait a moment where they lag behind its end."""
        if before is None or before.generated is None:
            return None
        total = before.generated + n_predicted
        return wait_until(self._reading, lambda now: now is None or (now.generated or 0) >= total, _COUNTERS_WAIT_S)

    def _note(self, *lines: str) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        with open(self._log_path, "a", encoding="utf-8", errors="replace", opener=open_unlinked) as log:
            log.writelines(f"{stamp} {self._redact(line)}\n" for line in lines)


def _ids_of(answer: dict[str, Any]) -> list[int] | None:
    """Return the ids of an answer that was not streamed: of llama-server, else of SGLang."""
    verbose = answer.get("__verbose")
    if isinstance(verbose, dict):
        return ids_in(verbose.get("tokens"))
    choice = first_choice(answer)
    return ids_in(choice.get("response_token_ids") or choice.get("token_ids"))


def _text_of(answer: dict[str, Any]) -> str:
    """Return the text of an answer that was not streamed."""
    choice = first_choice(answer)
    message = choice.get("message")
    if not isinstance(message, dict):
        return str(choice.get("text") or "")
    try:
        return piece_of(message)
    except (TypeError, AttributeError):
        return ""
