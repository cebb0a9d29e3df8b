"""Does an open loop's verdict on keeping up hold? Simulated queues of known load, judged by benchctl's own analysis.

    python -m benchmarks.keep_up

One server works on one request at a time (M/G/1). Requests arrive as benchctl sends them (`arrival_times`); how long
each takes is log-normal, and so is its number of tokens. Below a load of 1 the queue is stable and the server keeps up;
above it, every further request waits longer. A claim is wrong where a load above 1 is said to be kept up with, or one
below 1 not to be. Of the stable loads the outer quantiles are known, too: they are taken from a long simulation.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.conditions.load import quantiles
from benchctl.analysis.conditions.results import Level
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.requests import arrival_times
from benchmarks.keep import keep
from benchmarks.synthetic_run import BASELINE, Answer, baseline_arm, synthetic_run

Floats = NDArray[np.float64]
LOADS = (0.5, 0.8, 0.95, 1.05, 1.1, 1.3)
REQUESTS = (12, 48, 200)
BLOCKS = (3, 5)
SPREAD = 0.5
"""Of the logarithm of the service time, whose mean is 1 s."""
LONG = 400_000
TOKENS = 64
"""A second's worth."""


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="simulated runs of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261122)
    cases = list(_kept_up(options.runs, rng))
    error_rates = [case["wrong_percent"] for case in cases]
    keep(
        "keep_up",
        {
            "runs_a_case": options.runs,
            "wrong_percent": {"most": max(error_rates), "mean": float(np.mean(error_rates))},
            "kept_up": cases,
            "quantiles": list(_quantiles(options.runs, rng)),
        },
    )


def _kept_up(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for blocks in BLOCKS:
        for load in LOADS:
            for requests in REQUESTS:
                outcomes = Counter(str(_kept(level)) for level in _levels(runs, load, requests, blocks, rng))
                shares = {word: 100 * outcomes[word] / runs for word in ("True", "False", "None")}
                yield {
                    "load": load,
                    "requests": requests,
                    "blocks": blocks,
                    "keeps_up_percent": shares["True"],
                    "does_not_percent": shares["False"],
                    "not_known_percent": shares["None"],
                    "wrong_percent": shares["True" if load > 1 else "False"],
                }


def _quantiles(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """How often a quantile lies below the true one: in half of the runs.

    A load of 0: one request at a time, none of which waits.
    """
    for load in (0.0, 0.5, 0.8):
        long = _services(LONG, rng)
        if load:
            long = _latencies(arrival_times(LONG, load, 0, 0), long)[LONG // 10 :]
        truth = np.quantile(long, [0.95, 0.99])
        for requests in (48, 200, 400):
            if load:
                latencies = [level.e2e for level in _levels(runs, load, requests, 1, rng)]
            else:
                latencies = [quantiles(_services(requests, rng)) for _ in range(runs)]
            row: dict[str, Any] = {"load": load, "requests": requests}
            for name, true in zip(("p95", "p99"), truth.tolist(), strict=True):
                row[f"{name}_true_s"] = true
                values = [value for latency in latencies if (value := getattr(latency, name)) is not None]
                row[f"{name}_told_percent"] = 100 * len(values) / runs
                row[f"{name}_below_percent"] = 100 * sum(map(true.__gt__, values)) / len(values) if values else None
            yield row


def _levels(runs: int, load: float, requests: int, blocks: int, rng: np.random.Generator) -> Iterator[Level]:
    arm = baseline_arm(rate=load)
    for number in range(runs):
        answers = []
        for block in range(blocks):
            sent, service = arrival_times(requests, load, number, block), _services(requests, rng)
            latency = _latencies(sent, service)
            tokens = np.maximum(2, np.rint(TOKENS * service)).astype(int)
            for prompt in range(requests):
                half = float(latency[prompt]) / 2
                answers.append(Answer(BASELINE, block, prompt, int(tokens[prompt]), half, sent[prompt], half))
        analysis = analyse_run(synthetic_run([arm], answers, blocks=blocks, prompts=requests))
        assert analysis.sweep is not None
        yield analysis.sweep.levels[0]


def _kept(level: Level) -> bool | None:
    assert level.arrival is not None
    return level.arrival.kept_up


def _services(count: int, rng: np.random.Generator) -> Floats:
    """Return how long each request takes by itself, in seconds."""
    return rng.lognormal(-(SPREAD**2) / 2, SPREAD, count)


def _latencies(sent: list[float], service: Floats) -> Floats:
    """Return how long each request waited and took, in seconds."""
    done = 0.0
    latencies = np.empty(len(sent))
    for number, (sent_s, takes) in enumerate(zip(sent, service.tolist(), strict=True)):
        done = max(done, sent_s) + takes
        latencies[number] = done - sent_s
    return latencies


if __name__ == "__main__":
    main()
