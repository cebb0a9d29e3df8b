"""Latency of requests and their total throughput, for every arm under a condition.

A cell is an arm in a block. Its makespan (s) is the time from its first request sent to the end of its last answer, one
request at a time the sum of their times. Total throughput is tokens over the window in which all slots of a closed
loop are full; a request's tokens are taken to come evenly from its first to its last. A cell of overlapping requests
that took several processes is left out: in each of them fewer requests were in flight than the condition says.

Of an open loop each cell's latency is fitted by send time and length of the answer, its first third left out. At load
ρ > 1 latency grows by ρ - 1 for each second of sending, below 1 not at all. By Student's t over the cells the server
keeps up where the slope is surely below `TOLERATED`, does not where it is above that and surely above 0 or requests
timed out, and else it is not known (misclassified: 1 in 100 simulated queues, up to 6 at load 0.95;
benchmarks/keep_up.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchctl.analysis.cells import identity_of
from benchctl.analysis.conditions.results import DIMENSIONS, Arrival, Level, Quantiles
from benchctl.analysis.speedup import find_latency_speedup, pooled
from benchctl.analysis.statistics import Variance, half_width, level_for, pooled_interval

if TYPE_CHECKING:
    from benchctl.analysis.conditions.split import ConditionRun
    from benchctl.analysis.frame import Floats, Frame, Integers
    from benchctl.recipes.groups import GroupKey

CONFIDENCE = 0.95
BEYOND = 2
"""A quantile is given only where at least so many requests lie beyond it."""
TOLERATED = 0.05
"""Seconds of latency for each second of sending: a server that is surely below this keeps up."""
FEWEST = 20
"""Requests of a cell, from which on its trend counts."""
SETTLING = 1 / 3
"""The share of a cell's requests during which the queue settles."""
CELLS = 3


@dataclass(frozen=True)
class CellLoad:
    """The requests of an arm in a block, added up."""

    tokens: float
    """In `window_s`."""
    window_s: float
    """All slots full; of an open loop, and of one request at a time, the makespan."""
    all_tokens: float
    makespan_s: float
    waited_s: float
    """Sum of e2e_s."""
    prompts: frozenset[int]
    """Those that were answered, as indices of the frame."""


def find_levels(frame: Frame, group: ConditionRun, key: GroupKey, compared: int = 1) -> list[Level]:
    """Return a row for every arm of a condition, whose records are `frame`; the baseline's first.

    `compared`: how many arms the run compares with a baseline under all conditions.
    """
    order = [frame.baseline, *(arm for arm in range(len(frame.arms)) if arm != frame.baseline)]
    slots = key.concurrency if key.rate is None else 1
    waited = frame.column("e2e_s")
    cells = {arm: _cells(frame, arm, slots, waited, one_at_a_time=key.one_at_a_time) for arm in order}
    baseline = frame.rows(frame.baseline)
    of_both_cells = waited.copy()
    of_both_cells[baseline] = frame.baseline_e2e_s(baseline)  # a second cell answers one request at a time
    theirs = _cells(frame, frame.baseline, slots, of_both_cells, one_at_a_time=key.one_at_a_time)
    return [_level(frame, arm, group, key, cells[arm], theirs, compared) for arm in order]


def throughput_by_block(frame: Frame, arm: int, slots: int) -> list[float]:
    """Return an arm's total throughput over the baseline's, in each block of a closed loop that both have."""
    waited = frame.column("e2e_s")
    ours, theirs = (_cells(frame, of, slots, waited, one_at_a_time=False) for of in (arm, frame.baseline))
    ratios: list[float] = _throughput_speedup(frame, ours, theirs, 1)["throughput_by_block"]
    return ratios


def _level(
    frame: Frame,
    arm: int,
    group: ConditionRun,
    key: GroupKey,
    cells: dict[int, CellLoad],
    theirs: dict[int, CellLoad],
    compared: int,
) -> Level:
    name = frame.arms[arm]
    identity = identity_of(frame.manifest, name)
    is_baseline = arm == frame.baseline
    sent = frame.rows(arm)
    rows = sent[frame.answered[sent]]
    given_up = count_given_up(frame, sent)
    makespan = sum(cell.makespan_s for cell in cells.values())
    window = sum(cell.window_s for cell in cells.values())
    tokens = sum(cell.tokens for cell in cells.values())
    latency, latency_interval = (None, None) if is_baseline else find_latency_speedup(frame, arm)
    gain = {"throughput_by_block": []} if is_baseline else _throughput_speedup(frame, cells, theirs, compared)
    return Level(
        arm=name,
        of=(identity.of if identity else None) or name,
        is_baseline=is_baseline,
        overlapping=group.overlapping,
        judged=group.judged,
        **{name: getattr(key, name) for name in DIMENSIONS},
        group=key.setups,
        memory_bytes=identity.memory_bytes if identity else None,
        requests=len(rows),
        planned=len(frame.prompts) * frame.blocks_of(arm),
        prompts=len(frame.prompts),
        ttft=quantiles(frame.column("ttft_s")[rows], beyond=given_up),
        e2e=quantiles(frame.column("e2e_s")[rows], beyond=given_up),
        tpot=quantiles(1 / frame.rate[rows]),
        itl=_between_tokens(frame, rows),
        request_rate=_median_rate(frame, rows),
        by_block={
            block: (cell.tokens / cell.window_s, rate)
            for block, cell in cells.items()
            if cell.window_s and (rate := _median_rate(frame, rows[frame.block[rows] == block])) is not None
        },
        tokens=int(sum(cell.all_tokens for cell in cells.values())) if cells else None,
        makespan_s=makespan if cells else None,
        window_s=window if cells else None,
        drain_share=1 - window / makespan if cells else None,
        throughput=tokens / window if window else None,
        goodput=_goodput(frame, rows[np.isin(frame.block[rows], [*cells])], makespan),
        in_flight=sum(cell.waited_s for cell in cells.values()) / makespan if cells else None,
        latency_speedup=latency,
        latency_interval=latency_interval,
        **gain,
        arrival=find_arrival(frame, arm) if key.rate is not None else None,
    )


def _between_tokens(frame: Frame, rows: Integers) -> Quantiles | None:
    """Return the times between tokens of these answers; `None` where one of them does not report its bursts."""
    answers = [frame.records[row] for row in rows.tolist() if frame.records[row].n_predicted > 1]
    if not answers or any(answer.burst_gaps_s is None for answer in answers):
        return None
    gaps = np.concatenate([answer.burst_gaps_s or [] for answer in answers])
    return quantiles(np.append(gaps, np.zeros(max(0, sum(answer.n_predicted - 1 for answer in answers) - len(gaps)))))


def _median_rate(frame: Frame, rows: Integers) -> float | None:
    rates = frame.rate[rows]
    rates = rates[np.isfinite(rates)]
    return float(np.median(rates)) if len(rates) else None


def _goodput(frame: Frame, rows: Integers, makespan: float) -> float | None:
    """Return the requests a second that kept the recipe's limits; a latency that is not known keeps none."""
    limits = (frame.manifest.recipe.get("goodput") if frame.manifest else None) or {}
    times = {"ttft_s": frame.column("ttft_s")[rows], "tpot_s": 1 / frame.rate[rows]}
    within_limits = [times[name] <= limit for name, limit in limits.items() if limit is not None]
    return float(np.logical_and.reduce(within_limits).sum()) / makespan if within_limits and makespan else None


def _cells(frame: Frame, arm: int, slots: int, waited: Floats, *, one_at_a_time: bool) -> dict[int, CellLoad]:
    """Return an arm's cells by block, without those that were resumed or disturbed, or lack a time or a count.

    `slots`: requests of a closed loop in flight at a time, 1 for an open loop. `waited`: `e2e_s` of every record.
    """
    first_token = frame.column("ttft_s")
    cells = {}
    rows = frame.rows(arm)
    rows = rows[frame.answered[rows] & ~frame.disturbed[arm, frame.block[rows]]]
    for block in np.unique(frame.block[rows]).tolist():
        of_block = rows[frame.block[rows] == block]
        busy = float(waited[of_block].sum())
        makespan = window = busy
        tokens = all_tokens = float(frame.predicted[of_block].sum())
        if not one_at_a_time:
            if len({frame.records[row].attempt for row in of_block.tolist()}) > 1:
                continue
            sent = np.array([frame.records[row].sent_s for row in of_block.tolist()], dtype=np.float64)
            makespan = window = float((sent + waited[of_block]).max() - sent.min())
            if slots > 1:
                window, tokens = _full_window(
                    sent, first_token[of_block], waited[of_block], frame.predicted[of_block], slots
                )
        if np.isfinite(makespan + all_tokens) and makespan > 0:
            prompts = frozenset(frame.prompt[of_block].tolist())
            cells[block] = CellLoad(tokens, window, all_tokens, makespan, busy, prompts)
    return cells


def _full_window(sent: Floats, first_s: Floats, whole_s: Floats, tokens: Floats, slots: int) -> tuple[float, float]:
    """Return (seconds, tokens) of the time in which `slots` requests are in flight; zeros where there is none.

    From the time at which so many have been sent to the first end of an answer after the last request was sent. Sent,
    to the first token, to the last: in seconds, a value a request.
    """
    if len(sent) < slots or not np.isfinite(sent + whole_s + first_s).all():
        return 0.0, 0.0
    ends = sent + whole_s
    begins = float(np.sort(sent)[slots - 1])
    over = float(ends[ends > sent.max()].min())
    if over <= begins:
        return 0.0, 0.0
    first = sent + first_s
    inside = (first >= begins) & (first <= over)
    later = np.clip(np.minimum(ends, over) - np.maximum(first, begins), 0.0, None)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(ends > first, later / (ends - first), inside)
    return over - begins, float((inside + (tokens - 1) * share).sum())


def _throughput_speedup(
    frame: Frame, ours: dict[int, CellLoad], theirs: dict[int, CellLoad], compared: int
) -> dict[str, Any]:
    """Return the fields of a level over the blocks in which both answered the same prompts: others are other work."""
    cells = [(ours[block], theirs[block]) for block in sorted(ours.keys() & theirs.keys())]
    sums = np.array(
        [(a.tokens, a.window_s, b.tokens, b.window_s) for a, b in cells if a.prompts == b.prompts], dtype=np.float64
    ).reshape(-1, 4)
    sums = sums[(sums[:, 1:] > 0).all(axis=1)]  # without a window, or a token of the baseline, there is no measure
    by_block = [value for row in range(len(sums)) if (value := pooled(sums[row : row + 1])) is not None]
    fields: dict[str, Any] = {"throughput_by_block": by_block}
    if not len(sums) or not all(by_block):
        return fields
    places, level = np.arange(len(sums)), level_for(frame.manifest)
    times = np.array([(1, a.makespan_s, 1, b.makespan_s) for a, b in cells if a.prompts == b.prompts], dtype=np.float64)
    return fields | {
        "makespan_speedup": pooled(times),
        "makespan_interval": pooled_interval(times, np.arange(len(times)), level, compared),
        "throughput_speedup": pooled(sums),
        "throughput_interval": pooled_interval(sums, places, level, compared),
    }


def quantiles(values: Floats, beyond: int = 0) -> Quantiles:
    """Return the median, and the outer quantiles beyond which enough of the known values lie.

    `beyond` more are known to be larger than all of them; a quantile that lies there is not known.
    """
    reported = np.append(values[np.isfinite(values)], np.full(beyond, np.inf))

    def at(share: float) -> float | None:
        with np.errstate(invalid="ignore"):  # between two that are not known
            value = float(np.quantile(reported, share))
        return value if np.isfinite(value) else None

    def outer(share: float) -> float | None:
        return at(share) if round(len(reported) * (1 - share), 6) >= BEYOND else None

    return Quantiles(median=at(0.5) if len(reported) else None, p95=outer(0.95), p99=outer(0.99))


def find_arrival(frame: Frame, arm: int) -> Arrival:
    """Return how the open loop of an arm went, over all of its cells."""
    late, slopes = [np.empty(0)], []
    sent_at, ended_at = [], []
    for process in _processes(frame, arm):
        sent, lateness = _clocked(frame, process)
        late.append(lateness)
        sent_at.append(sent + lateness)
        rows = process[frame.answered[process]]
        sent, _ = _clocked(frame, rows)
        latency = frame.column("e2e_s")[rows]
        ended_at.append(sent + latency)
        if len(rows) >= FEWEST and np.isfinite(ended_at[-1] + frame.predicted[rows]).all():
            settled = np.argsort(sent, kind="stable")[round(SETTLING * len(rows)) :]
            slopes.append(latency_growth(sent[settled], latency[settled], frame.predicted[rows][settled]))
    given_up = count_given_up(frame, frame.rows(arm))
    growth, low, high = limits_of_growth(slopes)
    return Arrival(
        sent_rate=_rate(sent_at),
        finished_rate=_rate(ended_at),
        late_p95_s=_late(np.concatenate(late)),
        growth=growth,
        growth_low=low,
        growth_high=high,
        given_up=given_up,
        kept_up=False if given_up else kept_up_by(growth, low, high),
    )


def _rate(processes: Sequence[Floats]) -> float | None:
    """Return how many a second there are between the first and the last of the times of each process."""
    timed = [times for times in processes if len(times) > 1 and np.isfinite(times).all()]
    seconds = sum(float(times.max() - times.min()) for times in timed)
    return sum(len(times) - 1 for times in timed) / seconds if seconds > 0 else None


def kept_up_by(growth: float | None, low: float | None, high: float | None) -> bool | None:
    """Return whether a server keeps up whose latency grows so, with one-sided limits; `None`: not known."""
    if growth is None or low is None or high is None:
        return None
    return True if high < TOLERATED else False if growth > TOLERATED and low > 0 else None


def latency_growth(sent: Floats, latency: Floats, tokens: Floats) -> float:
    """Return the slope of latency over send time, both in seconds, for answers of equal length (least squares)."""
    columns = [np.ones(len(sent)), sent - sent.mean(), tokens - tokens.mean()]
    return float(np.linalg.lstsq(np.stack(columns, axis=1), latency, rcond=None)[0][1])


def limits_of_growth(slopes: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean slope and its one-sided limits; nothing below three cells."""
    if len(slopes) < CELLS:
        return None, None, None
    middle = float(np.mean(slopes))
    variance = Variance(float(np.var(slopes, ddof=1)) / len(slopes), len(slopes) - 1)
    half = half_width(variance, 2 * CONFIDENCE - 1)
    return middle, middle - half, middle + half


def count_given_up(frame: Frame, rows: Integers) -> int:
    """Return how many requests timed out: slower than every answered one, they have no time."""
    errors = (frame.records[row].error for row in rows.tolist())
    return sum(error is not None and error.kind == "timeout" for error in errors)


def _processes(frame: Frame, arm: int) -> list[Integers]:
    """The requests of an arm that were sent, process by process: their clocks start at 0."""
    by_process: dict[tuple[int, int], list[int]] = {}
    for row in frame.rows(arm).tolist():
        if not frame.answered[row] and frame.records[row].sent_s is None:
            continue  # never sent: the engine refused its prompt
        by_process.setdefault((int(frame.block[row]), frame.records[row].attempt), []).append(row)
    return [np.array(rows, dtype=np.int64) for rows in by_process.values()]


def _clocked(frame: Frame, rows: Integers) -> tuple[Floats, Floats]:
    """When requests were due, and how much later they were sent, in seconds; NaN: not reported."""
    times = [(record.sent_s, record.late_s) for record in (frame.records[row] for row in rows.tolist())]
    due, late = np.array(times, dtype=np.float64).reshape(-1, 2).T
    return due, late


def _late(values: Floats) -> float | None:
    reported = values[np.isfinite(values)]
    if not len(reported):
        return None
    return float(np.quantile(reported, 0.95)) if len(reported) >= 40 else float(reported.max())
