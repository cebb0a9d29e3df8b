"""How often benchctl is wrong about whether a server keeps up with its arrivals, on simulated queues.

python -m benchmarks.keep_up [--runs 400]

One server, Poisson arrivals, service times of a gamma distribution with a coefficient of variation of 0.5 (M/G/1). A
claim is wrong where a load above 1 is said to be kept up with, or one below 1 not to be.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchctl.analysis.conditions.arrival import SETTLING, kept_up_by, latency_growth, limits_of_growth
from benchmarks.keep import keep

LOADS = (0.5, 0.8, 0.95, 1.05, 1.1, 1.3)
REQUESTS = (20, 40, 100, 200, 400)
BLOCKS = (3, 5)
VARIATION = 0.5


def cell(load: float, requests: int, rng: np.random.Generator) -> float:
    """Return the growth of latency in one simulated cell; the mean service time is one second."""
    service = rng.gamma(VARIATION**-2, VARIATION**2, requests)
    sent = np.cumsum(rng.exponential(1 / load, requests))
    latency = np.empty(requests)
    free = 0.0
    for number in range(requests):
        free = max(free, sent[number]) + service[number]
        latency[number] = free - sent[number]
    settled = round(SETTLING * requests)
    return latency_growth(sent[settled:], latency[settled:], service[settled:])


def cases(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Yield the shares of the three answers for every load, number of requests and number of blocks."""
    for blocks in BLOCKS:
        for requests in REQUESTS:
            for load in LOADS:
                said = Counter(
                    kept_up_by(*limits_of_growth([cell(load, requests, rng) for _ in range(blocks)]))
                    for _ in range(runs)
                )
                wrong = said[load > 1]
                yield {
                    "blocks": blocks,
                    "requests": requests,
                    "load": load,
                    "keeps_up_percent": 100 * said[True] / runs,
                    "does_not_percent": 100 * said[False] / runs,
                    "not_known_percent": 100 * said[None] / runs,
                    "wrong_percent": 100 * wrong / runs,
                }


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=400)
    options = parser.parse_args()
    found = list(cases(options.runs, np.random.default_rng(20261122)))
    wrong = [case["wrong_percent"] for case in found]
    summary = {"most": max(wrong), "mean": float(np.mean(wrong))}
    keep("keep_up", {"runs": options.runs, "wrong_percent": summary, "cases": found})


if __name__ == "__main__":
    main()
