"""How an adapter recognises its own server behind an OpenAI-compatible endpoint, and reads what it reports of drafts.

An adapter declares a `ServerFamily` (`benchctl.recipes.adapters.Adapter.endpoint`); the adapter of endpoints tries
every registered family. Nothing is concluded from what is absent: an endpoint behind a gateway may report none of this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from benchctl.engines.base import Ledger, Rendered
from benchctl.engines.common.drafts import prefix_of, read_counters, read_total
from benchctl.engines.common.http import HttpClient
from benchctl.engines.common.wire import prompt_ids
from benchctl.engines.scoring import Scorer
from benchctl.prompts.suite import Prompt
from benchctl.text import one_line

_GENERATED = ("generation_tokens_total", "tokens_predicted_total")
"""The names of vLLM's and llama-server's counters of generated tokens."""
LEAST_CONTEXT = 2048
"""Assumed where a server does not report how long a sequence may be."""


@dataclass(frozen=True)
class MetricsReading:
    """The counters of `/metrics` at a moment; all requests of the endpoint are in them, other people's too."""

    counters: Ledger
    generated: int | None
    """Tokens generated so far."""

    def __str__(self) -> str:
        counted = self.counters
        if counted == Ledger():
            return "GET /metrics: no counters of speculation"
        return f"GET /metrics: {counted.rounds} rounds, {counted.drafted} drafted, {counted.accepted} accepted so far"


@dataclass(frozen=True)
class Recognised:
    """A server as it describes itself."""

    version: str | None
    speculates: bool | None
    """Whether it reports that speculation is on; `None` where it reports neither."""
    metrics: MetricsReading | None
    evidence: tuple[str, ...]
    drafts_counted: bool = True
    """Whether its figure of drafted tokens is a count."""


class Pages:
    """The paths below a server's root at which it may report something of itself."""

    def __init__(self, client: HttpClient, root: str) -> None:
        self._client = client
        self._root = root

    def json(self, path: str) -> Any:  # noqa: ANN401 - whatever JSON can hold
        """Return the JSON at `path`; `None` where there is none."""
        return self._client.get_json(f"{self._root}{path}")

    def object(self, path: str) -> dict[str, Any]:
        """Return the JSON object at `path`, its strings without the key; empty where there is none."""
        page = self.json(path)
        if not isinstance(page, dict):
            return {}
        return {name: self._client.redact(value) if isinstance(value, str) else value for name, value in page.items()}

    def metrics(self, prefix: str, generated: str) -> MetricsReading | None:
        """Read the counters below `prefix` of `/metrics`, and the total called `generated`; `None` without either."""
        text = self._metrics()
        total, counters = read_total(text, generated), read_counters(text, prefix)
        return None if total is None and counters == Ledger() else MetricsReading(counters, total)

    def any_metrics(self) -> MetricsReading | None:
        """Read such counters below whatever name they stand; `None` where there are none."""
        text = self._metrics()
        prefix = prefix_of(text)
        if prefix is None:
            return None
        totals = (read_total(text, f"{prefix}:{name}") for name in _GENERATED)
        return MetricsReading(read_counters(text, prefix), next((total for total in totals if total is not None), None))

    def _metrics(self) -> str:
        response = self._client.get(f"{self._root}/metrics")
        return response.text if response.status_code == 200 else ""


@dataclass
class EndpointTarget:
    """A baseline's endpoint that returns log-probabilities: what a family's scorer sends its requests to."""

    http: HttpClient
    api: str
    """The address below which `/completions` is."""
    model: str
    """The name that it is served by."""
    context: int
    """The longest sequence, in tokens."""
    timeout_s: float

    @classmethod
    def of(cls, target: EndpointTarget) -> Self:
        """Return the same endpoint as an object of this class."""
        return cls(**vars(target))

    @staticmethod
    def chat(prompt: Prompt) -> dict[str, Any]:
        """Return what a request to a chat route has of a prompt; a raw prompt becomes a user's message."""
        if prompt.prompt is not None:
            return {"messages": [{"role": "user", "content": prompt.prompt}], **prompt.request}
        return {"messages": [message.model_dump() for message in prompt.messages or ()], **prompt.request}

    token_ids = staticmethod(prompt_ids)

    def log_tail(self, lines: int = 20) -> tuple[str, ...]:
        """Return nothing: an endpoint's log is not accessible."""
        del lines
        return ()

    def stop(self) -> int | None:
        """Close the connections; the endpoint runs on."""
        self.http.close()
        return None


class TokenizingTarget(EndpointTarget):
    """A server with `/tokenize` for prompts and messages, as vLLM and SGLang have it."""

    def render(self, prompt: Prompt) -> Rendered:
        """Tokenize as the endpoint itself does; the text is what is sent."""
        content = {"prompt": prompt.prompt} if prompt.prompt is not None else self.chat(prompt)
        return Rendered(as_sent(prompt), self.token_ids(self.http.post("/tokenize", {"model": self.model, **content})))


@dataclass(frozen=True)
class ServerFamily:
    """A kind of server, as an endpoint."""

    recognise: Callable[[Pages], Recognised | None]
    """Inspect the server; `None` where it is not of this family."""
    ledger: Callable[[Recognised, Mapping[str, Any], Ledger, Ledger], Ledger]
    """Return the ledger of an answer from the further fields of its stream, and the counters before and after."""
    metrics: Callable[[Pages], MetricsReading | None] | None = None
    """Reads the counters of all requests; `None` where it has none."""
    scorer: Callable[[EndpointTarget], Scorer] | None = None
    """Return a scorer that reads log-probabilities of given tokens; `None` where the server returns none."""


def short_line(value: object) -> str | None:
    """Return a value that a server reports as a short line."""
    return None if value is None else one_line(str(value), 120)


def as_sent(prompt: Prompt, *, only_chat: bool = False) -> str:
    """Return a prompt as an endpoint is sent it: raw, or its messages as JSON, to which it applies its own template."""
    if prompt.prompt is not None and not only_chat:
        return prompt.prompt
    chat = EndpointTarget.chat(prompt)
    return json.dumps(chat if prompt.request else chat["messages"], ensure_ascii=False, sort_keys=True)
