"""Checks of a sweep: did as many requests run at once, and as fast, as the condition asks? Each yields what it saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchctl.analysis.conditions.results import Level
from benchctl.analysis.record_checks import Seen

FILLED = 0.75
"""So much of a concurrency must have been in flight on average."""
LATE_S = 0.005
"""A client that is later than this …"""
LATE_SHARE = 0.01
"""… and than this share of the median latency is named."""
OF_THE_MACHINE = frozenset({"swapping", "throttling", "high-load", "clock-jump"})
"""Warnings that look at the cells of all conditions together."""
EXPECTED_WHEN_OVERLAPPING = frozenset({"baseline-not-reproducible", "drift", "outlier"})
"""Warnings of one request at a time that mean nothing where several share the engine: their answers do not repeat, and
how fast each is depends on its company, of which there is less towards the end."""


def check_levels(levels: Sequence[Level]) -> Iterator[Seen]:
    """Look at every arm under every condition."""
    for row in levels:
        asked = row.concurrency if row.rate is None else 1
        if asked > 1 and row.in_flight is not None and row.in_flight < FILLED * asked:
            seen = f"At concurrency {row.concurrency} only {row.in_flight:.1f} requests were in flight on average."
            yield "not-filled", row.arm, seen
        if row.arrival is None:
            continue
        if row.arrival.kept_up is False:
            yield "rate-not-kept", row.arm, not_kept_up(row)
        late, usual = row.arrival.late_p95_s, row.e2e.median
        if late is not None and late > LATE_S and (usual is None or late > LATE_SHARE * usual):
            which = "one request in twenty" if row.requests >= 40 else "the latest request"
            yield "late-client", row.arm, f"benchctl sent {which} {1000 * late:.0f} ms or more after its time."


def not_kept_up(row: Level) -> str:
    """Say how a server fell behind."""
    arrival = row.arrival
    if arrival is not None and arrival.given_up:
        return (
            f"The server did not keep up with {row.rate:g} requests a second: {arrival.given_up} of {row.planned} "
            "were given up unanswered. Latencies take these for longer than all others."
        )
    if arrival is None or arrival.growth is None:
        return f"The server did not keep up with {row.rate:g} requests a second."
    return (
        f"The server did not keep up with {row.rate:g} requests a second: latency grew by {arrival.growth:.2f} s "
        f"(at least {arrival.growth_low:.2f} s) for each second of sending."
    )
