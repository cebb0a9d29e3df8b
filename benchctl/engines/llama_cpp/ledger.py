"""What llama-server drafted and accepted in one answer: its counters before and after, and the answer's timings.

`/metrics` counts over the life of the server and is brought up to date when a slot is released; with one slot and one
request at a time the difference is the request's. `timings` carries the drafted and accepted tokens of the request,
and leaves them out when nothing was drafted. Neither overrules the other: drafted and accepted are the timings' where
they speak, rounds and positions are `/metrics`', so that a contradiction stays visible in the record.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchctl.engines.base import Ledger
from benchctl.engines.common.metrics import Counters, read_counters, since
from benchctl.engines.common.stream import count_in
from benchctl.engines.common.tally import Tally


def parse_metrics(text: str) -> Counters:
    """Read the counters from llama-server's `/metrics`."""
    return read_counters(text, "llamacpp")


def make_ledger(before: Counters, after: Counters, timings: Mapping[str, object], *, speculating: bool) -> Ledger:
    """Return the ledger of the request between two readings.

    An engine that does not speculate tells nothing (all `None`), unless its counters say otherwise.
    """
    counted = since(before, after)
    drafted, accepted = counted.drafted, counted.accepted
    told, told_accepted = (count_in(timings.get(name), 2**53) for name in ("draft_n", "draft_n_accepted"))
    if told is not None:
        drafted, accepted = told, accepted if told_accepted is None else told_accepted
    if not speculating and not drafted:
        return Ledger()
    return Ledger(
        drafted=drafted,
        accepted=accepted,
        rounds=counted.rounds,
        accepted_by_position=counted.accepted_by_position,
    )


def against(tally: Tally, counters: Counters) -> str | None:
    """Return a sentence that holds the server's counters against all answers; `None` where either is not told."""
    agrees = tally.agrees(counters)
    if agrees is None:
        return None
    said = (
        f"GET /metrics over all answers: {counters.drafted} drafted, {counters.accepted} accepted in "
        f"{counters.rounds} rounds; the answers' own sums: {tally.drafted} drafted, {tally.accepted} accepted"
    )
    if agrees:
        return said
    if tally.broken:
        return f"{said}; {tally.broken} requests broke off, and the first alone counts them"
    return f"{said}: a contradiction"
