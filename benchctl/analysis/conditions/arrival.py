"""Open-loop arrival: were requests sent on time, and did the server keep up with them?

A server that does not keep up makes each request wait longer than the one before: at load ρ > 1 latency grows by ρ - 1
for each second of sending, at ρ < 1 it does not grow once the queue has settled. So each cell's latency is fitted by
send time and length of the answer, its first third left out, and the cells give Student's t limits for the slope over
send time. The server keeps up when the slope is surely below `TOLERATED`, it does not when it is above that and surely
above 0, and else it is not known. Of simulated queues (benchmarks/keep_up.py) 1 in 100 is misclassified, at load 0.95
up to 6. A server whose requests timed out did not keep up, whatever the others show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.conditions.results import Arrival
from benchctl.analysis.speedup import median

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Frame, Integers

TOLERATED = 0.05
"""Seconds of latency for each second of sending: a server that is surely below this keeps up. At load 0.95 the slope of
a finite cell is hard to distinguish from it, and the result is not known."""
FEWEST = 20
"""Requests of a cell, from which on its trend counts."""
SETTLING = 1 / 3
"""Of a cell's requests, during which the queue settles."""
CELLS = 3
CONFIDENCE = 0.95


def find_arrival(frame: Frame, arm: int) -> Arrival:
    """Return how the open loop of an arm went, over all of its cells."""
    late: list[Floats] = []
    first: list[Floats] = []
    last: list[Floats] = []
    slopes: list[float] = []
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
        latency = frame.column("e2e_s")[rows]
        over = sent + latency
        if len(rows) >= 2 and np.isfinite(over).all():
            ends += len(rows) - 1
            ending += float(over.max() - over.min())
        order = np.argsort(sent, kind="stable")
        if len(rows) >= 3:
            first.append(latency[order][: len(rows) // 3])
            last.append(latency[order][-(len(rows) // 3) :])
        if len(rows) >= FEWEST and np.isfinite(over).all():
            settled = order[round(SETTLING * len(rows)) :]
            slopes.append(latency_growth(sent[settled], latency[settled], frame.predicted[rows][settled]))
    sent_rate = sends / sending if sending > 0 else None
    finished_rate = ends / ending if ending > 0 else None
    given_up = count_given_up(frame, frame.rows(arm))
    growth, low, high = limits_of_growth(slopes)
    return Arrival(
        sent_rate=sent_rate,
        finished_rate=finished_rate,
        late_p95_s=_late(_joined(late)),
        first_third_s=median(_joined(first)),
        last_third_s=median(_joined(last)),
        growth=growth,
        growth_low=low,
        growth_high=high,
        given_up=given_up,
        kept_up=False if given_up else kept_up_by(growth, low, high),
    )


def kept_up_by(growth: float | None, low: float | None, high: float | None) -> bool | None:
    """Return whether a server keeps up whose latency grows so, with one-sided limits; `None`: not known."""
    if growth is None or low is None or high is None:
        return None
    if high < TOLERATED:
        return True
    return False if growth > TOLERATED and low > 0 else None


def latency_growth(sent: Floats, latency: Floats, tokens: Floats) -> float:
    """Return the slope of latency over send time, both in seconds, for answers of equal length (least squares)."""
    columns = [np.ones(len(sent)), sent - sent.mean(), tokens - tokens.mean()]
    return float(np.linalg.lstsq(np.stack(columns, axis=1), latency, rcond=None)[0][1])


def limits_of_growth(slopes: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean slope and its one-sided limits; nothing below three cells."""
    from scipy.special import stdtrit

    if len(slopes) < CELLS:
        return None, None, None
    middle = float(np.mean(slopes))
    half = float(stdtrit(len(slopes) - 1, CONFIDENCE)) * float(np.std(slopes, ddof=1)) / len(slopes) ** 0.5
    return middle, middle - half, middle + half


def count_given_up(frame: Frame, rows: Integers) -> int:
    """Return how many requests timed out: slower than every answered one, they have no time."""
    errors = (frame.records[row].error for row in rows.tolist())
    return sum(error is not None and error.kind == "timeout" for error in errors)


def _processes(frame: Frame, arm: int) -> list[Integers]:
    """The requests of an arm that were sent, process by process: their clocks start at 0."""
    found: dict[tuple[int, int], list[int]] = {}
    for row in frame.rows(arm).tolist():
        if not frame.answered[row] and frame.records[row].sent_s is None:
            continue  # never sent: the engine refused its prompt
        found.setdefault((int(frame.block[row]), frame.records[row].attempt), []).append(row)
    return [np.array(one, dtype=np.int64) for one in found.values()]


def _clocked(frame: Frame, rows: Integers) -> tuple[Floats, Floats]:
    """When requests were due, and how much later they were sent, in seconds; NaN: not reported."""
    times = [(record.sent_s, record.late_s) for record in (frame.records[row] for row in rows.tolist())]
    due, late = np.array(times, dtype=np.float64).reshape(-1, 2).T
    return due, late


def _late(values: Floats) -> float | None:
    known = values[np.isfinite(values)]
    if not len(known):
        return None
    return float(np.quantile(known, 0.95)) if len(known) >= 40 else float(known.max())


def _joined(parts: list[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])
