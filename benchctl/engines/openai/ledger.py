"""What an endpoint tells of the drafts of one answer: in the answer itself, or in counters that it alone moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.engines.base import Ledger
from benchctl.engines.common.completion_stream import StreamedAnswer
from benchctl.engines.common.endpoint import Reading
from benchctl.engines.common.metrics import Counters
from benchctl.engines.common.stream import seconds_in
from benchctl.engines.openai.discovery import Endpoint


def endpoint_ledger(
    endpoint: Endpoint, answer: StreamedAnswer, before: Reading | None, after: Reading | None, n_predicted: int
) -> Ledger:
    """Return the ledger of one answer.

    `before` and `after` are readings of the shared counters, `None` where there are none or several requests are in
    flight. They count only where they moved by exactly this answer's tokens: else somebody else was served as well.
    """
    if endpoint.reader is None:
        return Ledger()
    ours = alone(before, after, n_predicted)
    earlier = before.counters if ours and before else Counters()
    later = after.counters if ours and after else Counters()
    return endpoint.reader.ledger(endpoint.server, answer.told, earlier, later)


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
