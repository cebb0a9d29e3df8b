"""A vLLM that runs already, recognised by its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.endpoint import Pages, Reading, Recognised, ServerFamily, word
from benchctl.engines.common.metrics import Counters, since
from benchctl.engines.vllm.ledger import make_ledger


def _metrics(pages: Pages) -> Reading | None:
    return pages.metrics("vllm", "vllm:generation_tokens_total")


def _recognise(pages: Pages) -> Recognised | None:
    reading = _metrics(pages)
    if reading is None:
        return None
    version = word(pages.object("/version").get("version"))
    # vLLM has the counters of speculation exactly where speculation is on.
    speculates = reading.counters.rounds is not None or reading.counters.drafted is not None
    return Recognised(version, speculates, reading, (f"GET /version: vLLM {version}", str(reading)))


def _ledger(seen: Recognised, told: Mapping[str, Any], before: Counters, after: Counters) -> Ledger:
    del seen
    metrics = told.get("metrics")
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


FAMILY = ServerFamily(_recognise, _ledger, _metrics)
