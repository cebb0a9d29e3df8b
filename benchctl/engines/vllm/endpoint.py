"""A vLLM that runs already, recognised by its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.endpoint import (
    EndpointTarget,
    Pages,
    Reading,
    Recognised,
    ServerFamily,
    TokenizingTarget,
    short_line,
)
from benchctl.engines.common.metrics import Counters, since
from benchctl.engines.vllm.ledger import make_ledger
from benchctl.engines.vllm.score import VllmScorer

MOST_LOGPROBS = 20
"""Log-probabilities at a position, unless the server was started with another `--max-logprobs`."""


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
    return since(before, after).ledger()


def _scorer(target: EndpointTarget) -> VllmScorer:
    return VllmScorer(
        TokenizingTarget.of(target),
        (),
        context=target.context,
        vocabulary=MOST_LOGPROBS,
        timeout_s=target.timeout_s,
        model=target.model,
    )


FAMILY = ServerFamily(_recognise, _ledger, _metrics, _scorer)
