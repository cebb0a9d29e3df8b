"""Open-loop arrival: were requests sent when they should have been, and did the server keep up with them?

A server that does not keep up ends fewer requests a second than are sent, and makes each wait longer than the one
before. Both must be seen: with few requests of unequal length either alone is chance. One that let requests wait until
benchctl gave them up did not keep up, whatever the others tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

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
    late: list[Floats] = []
    first: list[Floats] = []
    last: list[Floats] = []
    sends, sending, ends, ending = 0, 0.0, 0, 0.0
    for process in _processes(frame, arm):
        sent, lateness = _clocked(frame, process)
        late.append(lateness)
        starts = sent + lateness
        if len(process) >= 2 and np.isfinite(starts).all():
            sends += len(process) - 1
            sending += float(starts.max() - starts.min())
        rows = process[frame.answered[process]]
        sent, _ = _clocked(frame, rows)
        latency = frame.told("e2e_s")[rows]
        over = sent + latency
        if len(rows) >= 2 and np.isfinite(over).all():
            ends += len(rows) - 1
            ending += float(over.max() - over.min())
        if len(rows) >= FEWEST:
            in_order = latency[np.argsort(sent, kind="stable")]
            first.append(in_order[: len(rows) // 3])
            last.append(in_order[-(len(rows) // 3) :])
    sent_rate = sends / sending if sending > 0 else None
    finished_rate = ends / ending if ending > 0 else None
    given_up = count_given_up(frame, frame.rows(arm))
    early, later = median(_joined(first)), median(_joined(last))
    kept_up = False if given_up else None
    if not given_up and sent_rate and finished_rate and early and later:
        kept_up = finished_rate >= KEPT_UP * sent_rate or later < GROWN * early
    return Arrival(
        sent_rate=sent_rate,
        finished_rate=finished_rate,
        late_p95_s=_late(_joined(late)),
        first_third_s=early,
        last_third_s=later,
        given_up=given_up,
        kept_up=kept_up,
    )


def count_given_up(frame: Frame, rows: Integers) -> int:
    """Return how many requests benchctl waited for in vain: slower than every answered one, they have no time."""
    errors = (frame.records[row].error for row in rows.tolist())
    return sum(error is not None and error.kind == "timeout" for error in errors)


def _processes(frame: Frame, arm: int) -> list[Integers]:
    """The requests of an arm that were sent, process by process: their clocks start anew."""
    found: dict[tuple[int, int], list[int]] = {}
    for row in frame.rows(arm).tolist():
        if not frame.answered[row] and frame.records[row].sent_s is None:
            continue  # never sent: the engine refused its prompt
        found.setdefault((int(frame.block[row]), frame.records[row].attempt), []).append(row)
    return [np.array(one, dtype=np.int64) for one in found.values()]


def _clocked(frame: Frame, rows: Integers) -> tuple[Floats, Floats]:
    """When requests were due, and how much later they were sent, in seconds; NaN: not told."""
    told = [(record.sent_s, record.late_s) for record in (frame.records[row] for row in rows.tolist())]
    due, late = np.array(told, dtype=np.float64).reshape(-1, 2).T
    return due, late


def _late(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    return float(np.quantile(known, 0.95)) if len(known) >= 40 else float(known.max())


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])
