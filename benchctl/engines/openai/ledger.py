"""What an endpoint tells of the drafts of one answer: in the answer itself, or in counters that it alone moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.completion_stream import StreamedAnswer
from benchctl.engines.common.metrics import Counters, since
from benchctl.engines.common.stream import seconds_in
from benchctl.engines.llama_cpp.ledger import make_ledger as from_llama_server
from benchctl.engines.openai.shown import Reading, Shown
from benchctl.engines.sglang.ledger import make_ledger as from_sglang
from benchctl.engines.vllm.ledger import make_ledger as from_vllm


def endpoint_ledger(
    shown: Shown, answer: StreamedAnswer, before: Reading | None, after: Reading | None, n_predicted: int
) -> Ledger:
    """Return the ledger of one answer.

    `before` and `after` are readings of the shared counters, `None` where there are none or several requests are in
    flight. They count only where they moved by exactly this answer's tokens: else somebody else was served as well.
    """
    ours = alone(before, after, n_predicted)
    first, last = (before, after) if ours else (None, None)
    earlier = first.counters if first else Counters()
    later = last.counters if last else Counters()
    if shown.family == "llama.cpp":
        timings = answer.told.get("timings")
        speculating = bool(shown.speculates)
        return from_llama_server(earlier, later, timings if isinstance(timings, dict) else {}, speculating=speculating)
    told = _told(shown, answer)
    if told != Ledger():
        return told
    counted = since(earlier, later)
    return Ledger(
        drafted=counted.drafted,
        accepted=counted.accepted,
        rounds=counted.rounds,
        accepted_by_position=counted.accepted_by_position,
    )


def alone(before: Reading | None, after: Reading | None, n_predicted: int) -> bool:
    """Whether nobody else's tokens were generated between two readings."""
    if before is None or after is None or before.generated is None or after.generated is None:
        return False
    return after.generated - before.generated == n_predicted


def engine_times(told: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return the server's own seconds of prefill and of decoding, from llama-server's timings or vLLM's metrics."""
    timings, metrics = told.get("timings"), told.get("metrics")
    if isinstance(timings, dict):
        return seconds_in(timings.get("prompt_ms")), seconds_in(timings.get("predicted_ms"))
    if isinstance(metrics, dict):
        return seconds_in(metrics.get("time_to_first_token_ms")), seconds_in(metrics.get("generation_time_ms"))
    return None, None


def _told(shown: Shown, answer: StreamedAnswer) -> Ledger:
    """Return what the answer itself tells: `metrics` of vLLM, `sglext` of SGLang."""
    metrics, extension = answer.told.get("metrics"), answer.told.get("sglext")
    if shown.family == "vllm" and isinstance(metrics, dict):
        return from_vllm(metrics)
    if shown.family == "sglang" and isinstance(extension, dict):
        details = extension.get("spec_tokens_details")
        details = details[0] if isinstance(details, list) and details else details
        return from_sglang(details, counted=shown.drafts_counted) if isinstance(details, dict) else Ledger()
    return Ledger()
