"""A vLLM that runs already, recognised by its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger, Rendered
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    Pages,
    Reading,
    Recognised,
    ServerFamily,
    as_sent,
    short_line,
)
from benchctl.engines.common.metrics import Counters, since
from benchctl.engines.vllm.ledger import make_ledger
from benchctl.engines.vllm.score import VllmScorer
from benchctl.prompts.suite import Prompt

MOST_LOGPROBS = 20
"""Log-probabilities at a position, unless the server was started with another `--max-logprobs`."""
_LEAST_CONTEXT = 2048
"""Assumed where the server does not report how long a sequence may be."""


def _metrics(pages: Pages) -> Reading | None:
    return pages.metrics("vllm", "vllm:generation_tokens_total")


def _recognise(pages: Pages) -> Recognised | None:
    reading = _metrics(pages)
    if reading is None:
        return None
    version = short_line(pages.object("/version").get("version"))
    # vLLM has the counters of speculation exactly where speculation is on.
    speculates = reading.counters.rounds is not None or reading.counters.drafted is not None
    return Recognised(version, speculates, reading, (f"GET /version: vLLM {version}", str(reading)))


def _ledger(server: Recognised, extra: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    del server
    metrics = extra.get("metrics")
    found = make_ledger(metrics) if isinstance(metrics, dict) else Ledger()
    if found != Ledger():
        return found
    counted = since(before, after)
    return Ledger(
        drafted=counted.drafted,
        accepted=counted.accepted,
        rounds=counted.rounds,
        accepted_by_position=counted.accepted_by_position,
    )


class _Served(EndpointTarget):
    """A vLLM that serves the target."""

    def render(self, prompt: Prompt) -> Rendered:
        """Tokenize as the endpoint itself does; the text is what is sent."""
        text = as_sent(prompt)
        what = {"prompt": prompt.prompt} if prompt.prompt is not None else {"messages": self.messages(prompt)}
        return Rendered(text, self.token_ids(self.http.post("/tokenize", {"model": self.model, **what})))


def _scorer(target: EndpointTarget) -> VllmScorer:
    served = _Served(target.http, target.model, context=target.context, timeout_s=target.timeout_s)
    context = target.context or _LEAST_CONTEXT
    return VllmScorer(
        served, (), context=context, vocabulary=MOST_LOGPROBS, timeout_s=target.timeout_s, model=target.model
    )


FAMILY = ServerFamily(_recognise, _ledger, _metrics, _scorer)
