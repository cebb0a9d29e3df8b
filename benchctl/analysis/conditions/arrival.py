"""Open-loop arrival: were requests sent when they should have been, and did the server keep up with them?

A server that does not keep up ends fewer requests a second than are sent, and makes each wait longer than the one
before. Both must be seen: with few requests of unequal length either alone is chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.conditions.results import Arrival
from benchctl.analysis.speedup import median

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Frame, Integers

KEPT_UP = 0.9
"""A server keeps up that ends at least so many of the requests that are sent in the same time …"""
GROWN = 1.5
"""… or whose last third of requests waits less than so many times as long as the first third."""
FEWEST = 9
"""Requests of a cell, from which on it is asked."""


def find_arrival(frame: Frame, arm: int) -> Arrival:
    """Return how the open loop of an arm went, over all of its cells."""
    import numpy as np

    late: list[Floats] = []
    first: list[Floats] = []
    last: list[Floats] = []
    gaps, sending, ending = 0, 0.0, 0.0
    for rows in _processes(frame, arm):
        sent = np.array([frame.records[row].sent_s for row in rows.tolist()], dtype=np.float64)
        lateness = np.array([frame.records[row].late_s for row in rows.tolist()], dtype=np.float64)
        latency = frame.told("e2e_s")[rows]
        late.append(lateness)
        ends, starts = sent + latency, sent + lateness
        if len(rows) >= 2 and np.isfinite(ends).all() and np.isfinite(starts).all():
            gaps += len(rows) - 1
            sending += float(starts.max() - starts.min())
            ending += float(ends.max() - ends.min())
        if len(rows) >= FEWEST:
            in_order = latency[np.argsort(sent, kind="stable")]
            first.append(in_order[: len(rows) // 3])
            last.append(in_order[-(len(rows) // 3) :])
    sent_rate = gaps / sending if sending > 0 else None
    finished_rate = gaps / ending if ending > 0 else None
    early, later = median(_joined(first)), median(_joined(last))
    kept_up = None
    if sent_rate and finished_rate and early and later:
        kept_up = finished_rate >= KEPT_UP * sent_rate or later < GROWN * early
    return Arrival(
        sent_rate=sent_rate,
        finished_rate=finished_rate,
        late_p95_s=_late(_joined(late)),
        first_third_s=early,
        last_third_s=later,
        kept_up=kept_up,
    )


def _processes(frame: Frame, arm: int) -> list[Integers]:
    """The answered requests of an arm, process by process: their clocks start anew."""
    rows = frame.rows(arm)
    found: dict[tuple[int, int], list[int]] = {}
    for row in rows[frame.answered[rows]].tolist():
        found.setdefault((int(frame.block[row]), frame.records[row].attempt), []).append(row)
    import numpy as np

    return [np.array(one, dtype=np.int64) for one in found.values()]


def _late(values: Floats) -> float | None:
    import numpy as np

    known = values[np.isfinite(values)]
    if not len(known):
        return None
    return float(np.quantile(known, 0.95)) if len(known) >= 40 else float(known.max())


def _joined(parts: list[Floats]) -> Floats:
    import numpy as np

    return np.concatenate([np.empty(0), *parts])
