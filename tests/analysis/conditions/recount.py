"""The numbers of a sweep counted again from its raw records, sharing no code with benchctl."""

from __future__ import annotations

import math
import statistics
from typing import Any

Records = list[dict[str, Any]]
T_2 = {1: 4.302652729911275, 4: 8.860200034654316}
"""Student's t with two degrees of freedom at 97.5 %, and at what leaves 5 % to so many claims together."""


def cells(records: Records, arm: str) -> dict[int, Records]:
    """The answered records of an arm by block."""
    found: dict[int, Records] = {}
    for record in records:
        if record["label"] == arm and not record.get("error"):
            found.setdefault(record["block"], []).append(record)
    return found


def makespan(cell: Records) -> float:
    processes = {record.get("attempt", 0) for record in cell}
    total = 0.0
    for one in processes:
        mine = [record for record in cell if record.get("attempt", 0) == one]
        total += max(r["sent_s"] + r["e2e_s"] for r in mine) - min(r["sent_s"] for r in mine)
    return total


def window(cell: Records, slots: int) -> tuple[float, float]:
    """Seconds and tokens while all slots of a closed loop are full, by adding up each token at its own time."""
    begins = sorted(record["sent_s"] for record in cell)[slots - 1]
    last_sent = max(record["sent_s"] for record in cell)
    over = min(end for record in cell if (end := record["sent_s"] + record["e2e_s"]) > last_sent)
    tokens = 0.0
    for record in cell:
        first, end = record["sent_s"] + record["ttft_s"], record["sent_s"] + record["e2e_s"]
        tokens += begins <= first <= over
        later = max(0.0, min(end, over) - max(first, begins))
        tokens += (record["n_predicted"] - 1) * later / (end - first)
    return over - begins, tokens


def totals(records: Records, arm: str, slots: int = 1) -> dict[str, float]:
    """`slots`: of a closed loop of several requests; 1 for an open loop, and for one request at a time."""
    every = cells(records, arm).values()
    span = sum(map(makespan, every))
    tokens = sum(record["n_predicted"] for cell in every for record in cell)
    waited = sum(record["e2e_s"] for cell in every for record in cell)
    windows = [window(cell, slots) for cell in every] if slots > 1 else [(span, tokens)]
    seconds = sum(one[0] for one in windows)
    return {
        "tokens": tokens,
        "makespan_s": span,
        "window_s": seconds,
        "drain_share": 1 - seconds / span,
        "throughput": sum(one[1] for one in windows) / seconds,
        "in_flight": waited / span,
    }


def throughput_speedup(records: Records, arm: str, baseline: str, slots: int = 1) -> tuple[float, list[float]]:
    """Over all blocks, and block by block."""
    each = []
    for block in cells(records, arm):
        here = [record for record in records if record["block"] == block]
        each.append(totals(here, arm, slots)["throughput"] / totals(here, baseline, slots)["throughput"])
    return totals(records, arm, slots)["throughput"] / totals(records, baseline, slots)["throughput"], each


def latency_speedup(records: Records, arm: str, baseline: str) -> tuple[float, list[float]]:
    """Tokens over the requests' whole times, against the baseline's: over all blocks, and block by block."""

    def rate(rows: Records) -> float:
        return float(sum(r["n_predicted"] for r in rows) / sum(r["e2e_s"] for r in rows))

    ours, theirs = cells(records, arm), cells(records, baseline)
    every = [[record for cell in side.values() for record in cell] for side in (ours, theirs)]
    return rate(every[0]) / rate(every[1]), [rate(ours[block]) / rate(theirs[block]) for block in ours]


def least_interval(middle: float, each: list[float], claims: int = 1) -> tuple[float, float]:
    """The ends that an interval over three blocks reaches at least: Student's t on the logarithms."""
    half = T_2[claims] * statistics.stdev(map(math.log, each)) / math.sqrt(3)
    return middle * math.exp(-half), middle * math.exp(half)


def quantile(values: list[float], share: float) -> float | None:
    """By linear interpolation between the sorted values; `None` where fewer than two lie beyond."""
    if share != 0.5 and len(values) < round(2 / (1 - share)):
        return None
    ranked = sorted(values)
    place = share * (len(ranked) - 1)
    low = math.floor(place)
    return ranked[low] + (place - low) * (ranked[min(low + 1, len(ranked) - 1)] - ranked[low])


def latencies(records: Records, arm: str) -> dict[str, list[float]]:
    rows = [record for cell in cells(records, arm).values() for record in cell]
    return {
        "ttft": [row["ttft_s"] for row in rows],
        "e2e": [row["e2e_s"] for row in rows],
        "tpot": [1 / row["client_tok_per_sec"] for row in rows],
    }
