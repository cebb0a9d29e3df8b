"""What llama-server drafted and accepted in one answer: its counters before and after, and the answer's timings.

`/metrics` counts over the life of the server and is brought up to date when a slot is released; with one slot and one
request at a time the difference is the request's. `timings` carries the drafted and accepted tokens of the request,
and leaves them out when nothing was drafted. Neither overrules the other: drafted and accepted are the timings' where
they speak, rounds and positions are `/metrics`', so that a contradiction stays visible in the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchctl.engines.base import Ledger

_COUNTER = re.compile(
    r"^llamacpp:spec_decode_num_(drafts|draft_tokens|accepted_tokens|accepted_tokens_per_pos)_total"
    r'(?:\{position="(\d+)"\})? (\d+(?:\.\d+)?(?:e\+?\d+)?)\s*$',
    re.MULTILINE,
)


@dataclass(frozen=True)
class Counters:
    """The cumulative counters of `/metrics`; `None` where the binary has none."""

    rounds: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    accepted_by_position: tuple[int, ...] | None = None


def parse_metrics(text: str) -> Counters:
    """Read the counters from the Prometheus text of `/metrics`."""
    single: dict[str, int] = {}
    positions: dict[int, int] = {}
    for name, position, value in _COUNTER.findall(text):
        if position:
            positions[int(position)] = round(float(value))
        else:
            single[name] = round(float(value))
    by_position = tuple(positions.get(i, 0) for i in range(max(positions) + 1)) if positions else None
    return Counters(single.get("drafts"), single.get("draft_tokens"), single.get("accepted_tokens"), by_position)


def _difference(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def make_ledger(before: Counters, after: Counters, timings: Mapping[str, object], *, speculating: bool) -> Ledger:
    """Return the ledger of the request between two readings.

    An engine that does not speculate tells nothing (all `None`), unless its counters say otherwise.
    """
    rounds = _difference(before.rounds, after.rounds)
    drafted = _difference(before.drafted, after.drafted)
    accepted = _difference(before.accepted, after.accepted)
    told, told_accepted = timings.get("draft_n"), timings.get("draft_n_accepted")
    if isinstance(told, int):
        drafted, accepted = told, told_accepted if isinstance(told_accepted, int) else accepted
    if not speculating and not drafted:
        return Ledger()
    by_position = None
    if after.accepted_by_position is not None:
        earlier = before.accepted_by_position or ()
        padded = earlier + (0,) * (len(after.accepted_by_position) - len(earlier))
        by_position = tuple(late - early for late, early in zip(after.accepted_by_position, padded, strict=False))
    return Ledger(drafted=drafted, accepted=accepted, rounds=rounds, accepted_by_position=by_position)
