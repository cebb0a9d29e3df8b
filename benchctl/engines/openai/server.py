"""An endpoint during a cell: rendering, answering, counting, attesting. Nothing is started or stopped.

What the endpoint does not report is named in the attestation, neither confirmed nor refused.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchctl.engines.base import Attestation, Completion, Launch, Progress, Rendered
from benchctl.engines.common.completion_stream import CompletionReader, StreamedAnswer, first_choice, piece_of
from benchctl.engines.common.drafts import IN_TIMINGS, Drafts, contradictions, read_drafts
from benchctl.engines.common.endpoint import MetricsReading
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.log import log_tail
from benchctl.engines.common.metrics import Tally
from benchctl.engines.common.values import count_in, ids_in
from benchctl.engines.common.wire import protocol_error
from benchctl.engines.openai.discovery import (
    Address,
    Endpoint,
    alone,
    discover,
    endpoint_ledger,
    engine_times,
    read_metrics,
)
from benchctl.engines.openai.request import EndpointPrompt, render, request_body
from benchctl.errors import EngineError
from benchctl.prompts.suite import Prompt
from benchctl.recipes.engine_spec import EngineSpec
from benchctl.recipes.schema import Sampling

_ABSENT = frozenset({404, 405, 501})
_COUNTING_S = 1.0
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
        self,
        client: HttpClient,
        address: Address,
        launch: EndpointLaunch,
        spec: EngineSpec,
        log_path: Path,
    ) -> None:
        """Inspect the endpoint. Raises EngineError (`launch`, …) when it is none."""
        self._client, self._address, self._launch, self._spec = client, address, launch, spec
        self._log_path, self._redact = log_path, client.redact
        self._gone = False
        self._shared = self._cached = 0
        self._tokenizes = not launch.overlapping
        """Whether text may be counted in tokens between two answers, and the endpoint has done it so far."""
        self._tally = Tally()
        self._shapes: dict[str, None] = {}
        """Of drafts in answers, in the order in which they were found."""
        self._lengths: list[float] = []
        """Acceptance lengths of answers that tell no counts."""
        self._contradictions: list[str] = []
        self._first = self._last = discover(client, address)
        self._may_return_ids = self._first.family != "vllm"
        """Whether a request that is not streamed may bring the ids that a stream lacks."""
        self._raw, self._chat = (self._has(path) for path in ("completions", "chat/completions"))
        if not self._raw and not self._chat:
            raise EngineError(
                "There is neither /completions nor /chat/completions.",
                kind="launch",
                where=address.api,
                fix="Write the URL below which they are; it often ends with /v1.",
            )
        self._note(*self._first.evidence)

    def _has(self, path: str) -> bool:
        return self._client.status_of_post(f"{self._address.api}/{path}") not in _ABSENT

    @property
    def log_path(self) -> Path:
        """What benchctl observed of the endpoint, whose own log is not accessible."""
        return self._log_path

    @property
    def endpoint(self) -> Endpoint:
        """What the endpoint reported of itself at the first inspection."""
        return self._first

    def render(self, prompt: Prompt) -> Rendered:
        """Return what is sent; the endpoint applies its own template. Raises EngineError where it has no chat route."""
        if prompt.messages and not self._chat:
            raise EngineError(
                "The endpoint has no /chat/completions, which prompts made of messages need.",
                kind="http",
                fix="Use a suite of raw prompts: benchctl invents no template.",
            )
        if prompt.chat_template_kwargs is not None and self._first.family is None:
            raise EngineError("This server is not known to take chat_template_kwargs.", kind="http")
        return render(prompt, only_chat=not self._raw)

    async def complete(self, prompt: Rendered, sampling: Sampling, on_tokens: Progress | None = None) -> Completion:
        """Stream an answer. Raises EngineError."""
        body = request_body(prompt, self._launch.model, sampling, self._first.family, stream=True)
        before = self._reading()
        try:
            streamed = await self._client.stream(
                self._path(prompt),
                body,
                CompletionReader(sampling.max_tokens),
                silence_s=self._spec.stall_timeout_s,
                timeout_s=self._spec.request_timeout_s,
                on_tokens=on_tokens,
            )
        except EngineError as error:
            self._note(f"{error.kind}: {error.what}")
            self._gone = error.kind == "crash"
            raise
        answer = streamed.answer
        n_predicted, prompt_tokens = answer.completion_tokens, answer.prompt_tokens
        if n_predicted is None or prompt_tokens is None:
            raise protocol_error(
                "The endpoint does not report how many tokens it generated: its stream has no usable usage.",
                "Use a server that supports stream_options.include_usage; pieces of text are not tokens.",
            )
        after = self._counted(before, n_predicted)
        first_tokens = self._first_tokens(answer, n_predicted)
        drafts = self._drafts(answer, n_predicted)
        ledger = endpoint_ledger(self._first, answer, before, after, n_predicted, drafts)
        self._tally.add(n_predicted, ledger)
        self._shared += before is not None and after is not None and not alone(before, after, n_predicted)
        self._cached += _was_cached(answer)
        whole = len(answer.ids) == n_predicted
        prefill_s, decode_s = engine_times(answer.extra)
        return Completion(
            text=self._redact(answer.text),
            token_ids=answer.ids if whole else None,
            n_predicted=n_predicted,
            finish_reason=answer.finish_reason,
            prompt_tokens=prompt_tokens,
            ttft_s=answer.ttft_s,
            decode_s=answer.decode_s,
            first_tokens=first_tokens,
            least_after_first=answer.later_tokens if first_tokens is None else None,
            e2e_s=streamed.e2e_s,
            sent_at=streamed.sent_at,
            burst_gaps_s=streamed.burst_gaps_s,
            engine_prompt_s=None if _was_cached(answer) else prefill_s,
            engine_decode_s=decode_s if n_predicted > 1 else None,
            ledger=ledger,
            token_gap=None if whole else f"the endpoint returned {len(answer.ids)} of {n_predicted} token ids",
        )

    def _drafts(self, answer: StreamedAnswer, n_predicted: int) -> Drafts | None:
        """Read the answer's drafts by its shape, and keep what was found and what contradicts itself."""
        found = read_drafts(answer.extra, answer.usage, silent_is_none=not IN_TIMINGS.isdisjoint(self._shapes))
        if found is not None:
            self._shapes[found.shape] = None
            self._lengths += [] if found.length is None else [found.length]
            self._contradictions += contradictions(found, n_predicted)
        return found

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
        family = self._first.family
        body = request_body(prompt, self._launch.model, sampling, family, stream=False)
        if family is None:
            body["return_token_ids"] = True
        try:
            answer = self._client.post(self._path(prompt), body, timeout_s=self._spec.request_timeout_s)
        except EngineError as error:
            self._note(f"token ids could not be fetched afterwards: {error.what}")
            self._may_return_ids = family is not None
            return None
        ids = _ids_of(answer)
        self._may_return_ids = family is not None or ids is not None
        if ids is None or len(ids) != completion.n_predicted:
            return None
        return (
            tuple(ids) if self._redact(_text_of(answer)).rstrip("\ufffd") == completion.text.rstrip("\ufffd") else None
        )

    def attest(self, drafted: int | None) -> Attestation:
        """Assess the cell now; see `attest.py`."""
        self._last = discover(self._client, self._address)
        found = attest(
            EndpointObserved(
                speculation=self._launch.speculation,
                first=self._first,
                last=self._last,
                drafted=self._tally.most_drafted(drafted),
                accepted=self._tally.accepted or 0,
                answers=self._tally.answers,
                shared=self._shared,
                cached=self._cached,
                only_chat=not self._raw,
                shapes=tuple(self._shapes),
                contradictions=tuple(self._contradictions),
                lengths=tuple(self._lengths),
            )
        )
        evidence = tuple(self._redact(line) for line in found.evidence)
        self._note(*evidence)
        return Attestation(found.state, evidence, found.reason and self._redact(found.reason), found.remedy)

    def alive(self) -> bool:
        """Whether the endpoint accepted the last connection."""
        return not self._gone

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines of what benchctl observed."""
        return log_tail(self._log_path, lines)

    def stop(self) -> int | None:
        """Close the connections; the endpoint goes on."""
        self._client.close()
        return None

    def _path(self, prompt: Rendered) -> str:
        chat = isinstance(prompt, EndpointPrompt) and prompt.messages is not None
        return f"{self._address.api}/{'chat/completions' if chat else 'completions'}"

    def _reading(self) -> MetricsReading | None:
        """Read the counters that all requests share; `None` where several of benchctl's may be in flight."""
        if self._launch.overlapping or self._first.metrics is None:
            return None
        return read_metrics(self._client, self._address, self._first)

    def _counted(self, before: MetricsReading | None, n_predicted: int) -> MetricsReading | None:
        """Read the counters after an answer; wait a moment where they lag behind its end."""
        if before is None or before.generated is None:
            return None
        deadline = time.monotonic() + _COUNTING_S
        while True:
            after = self._reading()
            lags = after is not None and (after.generated or 0) - before.generated < n_predicted
            if not lags or time.monotonic() > deadline:
                return after
            time.sleep(0.05)

    def _note(self, *lines: str) -> None:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._log_path.open("a", encoding="utf-8", errors="replace") as log:
            log.writelines(f"{stamp} {self._redact(line)}\n" for line in lines)


def _was_cached(answer: StreamedAnswer) -> bool:
    details = answer.usage.get("prompt_tokens_details")
    count = details.get("cached_tokens") if isinstance(details, dict) else None
    return bool(count_in(count))


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


_REMEDY = "Check how the endpoint was launched, and write the recipe accordingly."


@dataclass(frozen=True)
class EndpointObserved:
    """What was observed of a cell."""

    speculation: str | None
    """The speculation that the recipe states for this endpoint; `None`: none."""
    first: Endpoint
    last: Endpoint
    drafted: int | None
    """Draft tokens of our answers; `None` when they are not reported."""
    answers: int
    accepted: int = 0
    """Draft tokens accepted in our answers, as far as they are reported."""
    shared: int = 0
    """Answers during which the endpoint also generated tokens for other clients."""
    cached: int = 0
    """Answers whose prompt was partly taken from a cache."""
    only_chat: bool = False
    shapes: tuple[str, ...] = ()
    """Of drafts in answers, as `benchctl.engines.common.drafts` reads them."""
    contradictions: tuple[str, ...] = ()
    lengths: tuple[float, ...] = ()
    """Acceptance lengths of answers that tell that alone: what was drafted and accepted is not known."""

    @property
    def drafts_seen(self) -> bool:
        """Whether anything shows that it drafted for us."""
        return bool(self.drafted or self.accepted) or max(self.lengths, default=1.0) > 1.0


def attest(observed: EndpointObserved) -> Attestation:
    """Return the attestation of a cell."""
    evidence = [*observed.last.evidence, f"draft tokens of our answers: {_rendered(observed.drafted)}"]
    evidence.append(
        f"drafts read from {', '.join(observed.shapes)}" if observed.shapes else "drafts in answers: not reported"
    )
    if lengths := observed.lengths:
        each = f"{min(lengths):.2f} to {max(lengths):.2f} tokens a step in {len(lengths)} answers"
        evidence.append(f"acceptance length, as the answers state it: {each}; no counts")
    if count := len(observed.contradictions):
        evidence.append(f"contradiction ({count} in all): {observed.contradictions[0]}")
    if observed.shared:
        evidence.append(f"{observed.shared} of {observed.answers} answers shared the endpoint with other requests")
    if observed.cached:
        evidence.append(
            f"{observed.cached} of {observed.answers} prompts were partly taken from a cache, which shortens TTFT"
        )
    if observed.only_chat:
        evidence.append("no /v1/completions: raw prompts were sent as a user message")
    if (observed.first.family, observed.first.version) != (observed.last.family, observed.last.version):
        was, now = (f"{server.family} {server.version}" for server in (observed.first, observed.last))
        reason = f"A different server answers than at the start: {now}, not {was}."
        return Attestation("failed", tuple(evidence), reason, "Run it again while nothing is deployed.")
    if observed.speculation is None:
        return _alone(observed, tuple(evidence))
    return _speculating(observed, (*evidence, f"type and depth: not reported; the recipe says {observed.speculation}"))


def _alone(observed: EndpointObserved, evidence: tuple[str, ...]) -> Attestation:
    """Without speculation in the recipe."""
    if observed.drafts_seen:
        count = observed.drafted or observed.accepted
        what = f"drafted {count} tokens for it" if count else "states an acceptance length above 1"
        reason = f"The arm requests no speculation, but the endpoint {what}."
        return Attestation("failed", evidence, reason, _REMEDY)
    if observed.last.speculates:
        reason = "The arm requests no speculation, but the endpoint reports that it is on."
        return Attestation("failed", evidence, reason, _REMEDY)
    if observed.last.speculates is False:
        return Attestation("off", evidence)
    return Attestation(
        "unverified", evidence, "The endpoint does not report whether it speculated; none was requested."
    )


def _speculating(observed: EndpointObserved, evidence: tuple[str, ...]) -> Attestation:
    if observed.drafts_seen:
        return Attestation("active", evidence)
    if observed.last.speculates is False:
        reason = f"The recipe says {observed.speculation}, but the endpoint reports that it does not speculate."
        return Attestation("failed", evidence, reason, _REMEDY)
    if observed.last.speculates and (observed.drafted == 0 or not observed.answers):
        return Attestation("idle", evidence)
    known = "has speculation on, but not whether it drafted" if observed.last.speculates else "speculated"
    lead = "The endpoint reports that it" if observed.last.speculates else "The endpoint does not report whether it"
    reason = f"{lead} {known}; the recipe says {observed.speculation}."
    return Attestation("unverified", evidence, reason)


def _rendered(count: int | None) -> str:
    return "not reported" if count is None else str(count)
