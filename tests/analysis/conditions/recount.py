"""The numbers of a sweep counted again from its raw records, sharing no code with benchctl."""

from __future__ import annotations

import math
import statistics
from typing import Any

Records = list[dict[str, Any]]
T_2 = 4.302652729911275
"""Student's t at 97.5 % with two degrees of freedom."""


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


def totals(records: Records, arm: str) -> dict[str, float]:
    every = cells(records, arm).values()
    span = sum(map(makespan, every))
    tokens = sum(record["n_predicted"] for cell in every for record in cell)
    waited = sum(record["e2e_s"] for cell in every for record in cell)
    return {"tokens": tokens, "makespan_s": span, "throughput": tokens / span, "in_flight": waited / span}


def throughput_speedup(records: Records, arm: str, baseline: str) -> tuple[float, list[float]]:
    """Over all blocks, and block by block."""
    each = []
    for block, cell in cells(records, arm).items():
        theirs = cells(records, baseline)[block]
        rates = [sum(r["n_predicted"] for r in one) / makespan(one) for one in (cell, theirs)]
        each.append(rates[0] / rates[1])
    return totals(records, arm)["throughput"] / totals(records, baseline)["throughput"], each


def latency_speedup(records: Records, arm: str, baseline: str) -> tuple[float, list[float]]:
    """Tokens over the requests' whole times, against the baseline's: over all blocks, and block by block."""

    def rate(rows: Records) -> float:
        return float(sum(r["n_predicted"] for r in rows) / sum(r["e2e_s"] for r in rows))

    ours, theirs = cells(records, arm), cells(records, baseline)
    every = [[record for cell in side.values() for record in cell] for side in (ours, theirs)]
    return rate(every[0]) / rate(every[1]), [rate(ours[block]) / rate(theirs[block]) for block in ours]


def least_interval(middle: float, each: list[float]) -> tuple[float, float]:
    """The ends that an interval over three blocks reaches at least: Student's t on the logarithms."""
    half = T_2 * statistics.stdev(map(math.log, each)) / math.sqrt(3)
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
