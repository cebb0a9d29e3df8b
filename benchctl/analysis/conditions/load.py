"""What requests wait for and what all of them together get, for every arm under one condition.

A cell is an arm in a block. Its makespan is the time from its first request sent to the end of its last answer: total
throughput is tokens over makespan, and adding up the requests' own times over it tells how many were in flight. Where
a cell was resumed, each of its processes has a makespan of its own, and they are added up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.bootstrap import level_for, pooled_intervals
from benchctl.analysis.conditions.arrival import find_arrival
from benchctl.analysis.conditions.results import Level, Quantiles
from benchctl.analysis.speedup import find_latency_speedup, median, pooled

if TYPE_CHECKING:
    from benchctl.analysis.conditions.split import Condition, Group
    from benchctl.analysis.frame import Floats, Frame
    from benchctl.analysis.result import Interval

BEYOND = 2
"""A quantile is told only where at least so many requests lie beyond it."""


@dataclass(frozen=True)
class CellLoad:
    """The requests of an arm in one block, added up."""

    tokens: float
    makespan_s: float
    waited_s: float
    """Sum of e2e_s."""


def find_levels(frame: Frame, group: Group, condition: Condition) -> list[Level]:
    """Return a row for every arm of a condition, whose records are `frame`; the baseline's first."""
    order = [frame.baseline, *(arm for arm in range(len(frame.arms)) if arm != frame.baseline)]
    cells = {arm: _cells(frame, arm) for arm in order}
    return [_level(frame, arm, group, condition, cells[arm], cells[frame.baseline]) for arm in order]


def _level(
    frame: Frame,
    arm: int,
    group: Group,
    condition: Condition,
    cells: dict[int, CellLoad],
    theirs: dict[int, CellLoad],
) -> Level:
    name = frame.arms[arm]
    identity = next((one for one in frame.manifest.arms if one.name == name), None) if frame.manifest else None
    is_baseline = arm == frame.baseline
    rows = frame.rows(arm)
    rows = rows[frame.answered[rows]]
    makespan = sum(cell.makespan_s for cell in cells.values())
    tokens = sum(cell.tokens for cell in cells.values())
    latency, latency_interval = (None, None) if is_baseline else find_latency_speedup(frame, arm)
    gain, gain_interval, by_block = (None, None, []) if is_baseline else _throughput_speedup(frame, cells, theirs)
    return Level(
        arm=name,
        of=(identity.of if identity else None) or name,
        is_baseline=is_baseline,
        overlapping=group.overlapping,
        concurrency=condition.concurrency,
        rate=condition.rate,
        temperature=condition.temperature,
        requests=len(rows),
        planned=len(frame.prompts) * len(frame.blocks),
        ttft=quantiles(frame.told("ttft_s")[rows]),
        e2e=quantiles(frame.told("e2e_s")[rows]),
        tpot=quantiles(1 / frame.rate[rows]),
        tokens=int(tokens) if cells else None,
        makespan_s=makespan if cells else None,
        throughput=tokens / makespan if cells else None,
        in_flight=sum(cell.waited_s for cell in cells.values()) / makespan if cells else None,
        latency_speedup=latency,
        latency_interval=latency_interval,
        throughput_speedup=gain,
        throughput_interval=gain_interval,
        throughput_by_block=by_block,
        arrival=find_arrival(frame, arm) if condition.rate is not None else None,
    )


def _cells(frame: Frame, arm: int) -> dict[int, CellLoad]:
    """Return an arm's cells by block; one of which a time is not known is left out."""
    import numpy as np

    found = {}
    waited = frame.told("e2e_s")
    rows = frame.rows(arm)
    rows = rows[frame.answered[rows]]
    for block in np.unique(frame.block[rows]).tolist():
        here = rows[frame.block[rows] == block]
        starts, ends = span(frame, here)
        processes = np.array([frame.records[row].attempt for row in here.tolist()])
        makespan = sum(
            float(ends[processes == one].max() - starts[processes == one].min()) for one in np.unique(processes)
        )
        if np.isfinite(makespan) and makespan > 0:
            found[block] = CellLoad(float(frame.predicted[here].sum()), makespan, float(waited[here].sum()))
    return found


def span(frame: Frame, rows: Floats) -> tuple[Floats, Floats]:
    """Return when the requests of `rows` were sent (or should have been) and when they ended; NaN: not told."""
    import numpy as np

    sent = np.array([frame.records[row].sent_s for row in rows.tolist()], dtype=np.float64)
    return sent, sent + frame.told("e2e_s")[rows]


def _throughput_speedup(
    frame: Frame, ours: dict[int, CellLoad], theirs: dict[int, CellLoad]
) -> tuple[float | None, Interval | None, list[float]]:
    import numpy as np

    blocks = sorted(ours.keys() & theirs.keys())
    cells = [(ours[block], theirs[block]) for block in blocks]
    sums = np.array([(a.tokens, a.makespan_s, b.tokens, b.makespan_s) for a, b in cells], dtype=np.float64)
    sums = sums.reshape(-1, 4)
    sums = sums[sums[:, 2] > 0]  # a baseline of which nothing came out is no measure
    each = [value for row in range(len(sums)) if (value := pooled(sums[row : row + 1])) is not None]
    if not len(sums) or not all(each):
        return None, None, each
    places = np.arange(len(sums))
    interval, _ = pooled_intervals(sums, places, np.zeros_like(places), level_for(frame.manifest))
    return pooled(sums), interval, each


def quantiles(values: Floats) -> Quantiles:
    """Return the median, and the outer quantiles beyond which enough of the known values lie."""
    import numpy as np

    known = values[np.isfinite(values)]

    def outer(share: float) -> float | None:
        return float(np.quantile(known, share)) if round(len(known) * (1 - share), 6) >= BEYOND else None

    return Quantiles(median=median(known), p95=outer(0.95), p99=outer(0.99))
