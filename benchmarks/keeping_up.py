"""Does an open loop's verdict on keeping up hold? Simulated queues of known load, judged by benchctl's own analysis.

    python -m benchmarks.keeping_up

One server works on one request at a time. Requests arrive as benchctl sends them (`arrival_times`); how long each takes
is log-normal. Below a load of 1 the queue is stable and the server keeps up; above it, every further request waits
longer. Of the stable loads the outer quantiles are known, too: they are taken from a long simulation.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.analyse import analyse
from benchctl.analysis.conditions.results import Level
from benchctl.measure.arrivals import arrival_times
from benchmarks.keep import keep
from benchmarks.synthetic_run import BASELINE, Answer, baseline_arm, synthetic_run

Floats = NDArray[np.float64]
LOADS = (0.5, 0.8, 0.9, 1.0, 1.05, 1.1, 1.3)
REQUESTS = (12, 48, 200)
SPREAD = 0.5
"""Of the logarithm of the service time, whose mean is 1 s."""
LONG = 400_000
TOKENS = 64


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="simulated runs of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261122)
    keep(
        "keeping_up",
        {
            "runs_a_case": options.runs,
            "kept_up": list(_kept_up(options.runs, rng)),
            "quantiles": list(_quantiles(options.runs, rng)),
        },
    )


def _kept_up(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for blocks in (1, 3):
        for load in LOADS:
            for requests in REQUESTS:
                said = Counter(str(_kept(level)) for level in _levels(runs, load, requests, blocks, rng))
                shares = {word: 100 * said[word] / runs for word in ("True", "False", "None")}
                yield {
                    "load": load,
                    "requests": requests,
                    "blocks": blocks,
                    "keeps_up_percent": shares["True"],
                    "does_not_percent": shares["False"],
                    "not_known_percent": shares["None"],
                }


def _quantiles(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """How often a quantile that is told lies below the true one; half of the time would be no bias."""
    for load in (0.5, 0.8):
        truth = np.quantile(_latencies(_arrivals(LONG, load, 0, 0), rng)[LONG // 10 :], [0.95, 0.99])
        for requests in REQUESTS[1:]:
            told = [level.e2e for level in _levels(runs, load, requests, 1, rng)]
            row: dict[str, Any] = {"load": load, "requests": requests}
            for name, true in zip(("p95", "p99"), truth, strict=True):
                values = [value for one in told if (value := getattr(one, name)) is not None]
                row[f"{name}_true_s"] = float(true)
                row[f"{name}_told_percent"] = 100 * len(values) / runs
                row[f"{name}_below_percent"] = 100 * sum(map(true.__gt__, values)) / max(1, len(values))
            yield row


def _levels(runs: int, load: float, requests: int, blocks: int, rng: np.random.Generator) -> Iterator[Level]:
    arm = baseline_arm(rate=load)
    for number in range(runs):
        answers = []
        for block in range(blocks):
            sent = _arrivals(requests, load, number, block)
            answers += [
                Answer(BASELINE, block, prompt, TOKENS, float(latency) / 2, sent_s=at, ttft_s=float(latency) / 2)
                for prompt, (at, latency) in enumerate(zip(sent, _latencies(sent, rng), strict=True))
            ]
        found = analyse(synthetic_run([arm], answers, blocks=blocks, prompts=requests))
        assert found.sweep is not None
        yield found.sweep.levels[0]


def _kept(level: Level) -> bool | None:
    assert level.arrival is not None
    return level.arrival.kept_up


def _arrivals(count: int, load: float, run: int, block: int) -> list[float]:
    return arrival_times(count, load, run, block)


def _latencies(sent: list[float], rng: np.random.Generator) -> Floats:
    """Return what each request waited and took, in seconds."""
    service = rng.lognormal(-(SPREAD**2) / 2, SPREAD, len(sent))
    done = 0.0
    latencies = np.empty(len(sent))
    for number, (at, takes) in enumerate(zip(sent, service.tolist(), strict=True)):
        done = max(done, at) + takes
        latencies[number] = done - at
    return latencies


if __name__ == "__main__":
    main()
