"""What is said of throughput under concurrency, against a simulated engine whose steady state is known.

    python -m benchmarks.crossings

A closed loop keeps `width` requests in flight until the prompts run out; then it drains. The engine shares its time:
with n requests in flight a step takes `1 + SHARE * (n - 1)` times as long as with one. A speculating arm is `gain(n)`
times as fast as the baseline with n in flight. The truth at a level is `gain(width)`: what a loop that never drains
would show.

| engine | gain |
| --- | --- |
| equal | 1 at every level: whatever is said to help or to cost is a false claim |
| pays | 1.15 at every level |
| crosses | 1.4 with one request, falling through 1 between 4 and 8 |
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchctl.analysis.conditions.results import Sweep
from benchctl.data.manifest import ArmIdentity
from benchctl.lossless.judge.run import analyse_run
from benchmarks.keep import keep
from benchmarks.synthetic_run import BASELINE, Answer, baseline_arm, speculating_arm, synthetic_run

Gain = Callable[[int], float]
ENGINES: dict[str, Gain] = {
    "equal": lambda width: 1.0,
    "pays": lambda width: 1.15,
    "crosses": lambda width: float(1.4 * width**-0.2),
}
CROSSES_AT = 1.4**5
"""The truth of the last one."""
WIDTHS = (1, 2, 4, 8, 16)
SHARE = 0.35
STEP_S = 0.05
BETWEEN, WITHIN = 0.01, 0.03
_ARM = "spec"


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200, help="simulated runs of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261122)
    cases = [
        _case(name, prompts, blocks, options.runs, rng)
        for name in ENGINES
        for blocks in (3, 5)
        for prompts in (16, 32, 64)
    ]
    keep("crossings", {"runs_a_case": options.runs, "cases": cases})


def _case(engine: str, prompts: int, blocks: int, runs: int, rng: np.random.Generator) -> dict[str, Any]:
    gain = ENGINES[engine]
    outcomes: Counter[str] = Counter()
    false, placed, held = 0, 0, 0
    covered = dict.fromkeys(WIDTHS, 0)
    bias: dict[int, list[float]] = {width: [] for width in WIDTHS}
    for _ in range(runs):
        sweep = _sweep(gain, prompts, blocks, rng)
        crossing = sweep.crossings[0]
        outcomes[crossing.outcome] += 1
        if (ends := crossing.at_interval) is not None:
            placed += 1
            held += ends.low <= CROSSES_AT <= ends.high
        is_false = any(gain(width) <= 1 for width in crossing.helps_at) or any(gain(w) >= 1 for w in crossing.loses_at)
        false += is_false
        for level in sweep.levels:
            if level.is_baseline or level.throughput_speedup is None or level.throughput_interval is None:
                continue
            interval, truth = level.throughput_interval, gain(level.concurrency)
            covered[level.concurrency] += interval.low <= truth <= interval.high
            bias[level.concurrency].append(level.throughput_speedup / truth - 1)
    return {
        "engine": engine,
        "prompts": prompts,
        "blocks": blocks,
        "said_percent": {word: 100 * count / runs for word, count in sorted(outcomes.items())},
        "false_claim_percent": 100 * false / runs,
        "crossing_holds_percent": 100 * held / placed if placed else None,
        "holds_percent_by_width": {str(width): 100 * count / runs for width, count in covered.items()},
        "bias_percent_by_width": {str(width): 100 * float(np.mean(off)) for width, off in bias.items() if off},
    }


def _sweep(gain: Gain, prompts: int, blocks: int, rng: np.random.Generator) -> Sweep:
    arms: list[ArmIdentity] = []
    answers: list[Answer] = []
    tokens = np.rint(np.geomspace(24, 240, prompts)[rng.permutation(prompts)]).astype(int)
    for width in WIDTHS:
        names = {f"{BASELINE}-c{width}": (BASELINE, lambda width: 1.0), f"{_ARM}-c{width}": (_ARM, gain)}
        for name, (setting, concurrency) in names.items():
            make = baseline_arm if setting == BASELINE else speculating_arm
            arms.append(make(name, of=setting, concurrency=width))
            for block in range(blocks):
                answers += _closed_loop(name, block, width, tokens, concurrency, rng)
    sweep = analyse_run(synthetic_run(arms, answers, blocks=blocks, prompts=prompts)).sweep
    assert sweep is not None
    return sweep


def _closed_loop(
    name: str, block: int, width: int, tokens: np.ndarray[Any, Any], gain: Gain, rng: np.random.Generator
) -> Iterator[Answer]:
    """Answer every prompt, `width` at a time. All in flight advance at one rate, which how many they are decides."""
    remaining = tokens * np.exp(rng.normal(0.0, WITHIN, len(tokens)) + rng.normal(0.0, BETWEEN))
    begun: dict[int, float] = {}
    waiting = list(range(len(tokens)))
    now = 0.0
    while begun or waiting:
        while waiting and len(begun) < width:
            begun[waiting.pop(0)] = now
        flying = list(begun)
        rate = gain(len(flying)) / (STEP_S * (1 + SHARE * (len(flying) - 1)))
        first = min(flying, key=lambda number: remaining[number])
        takes = float(remaining[first]) / rate
        now += takes
        remaining[flying] -= takes * rate
        sent = begun.pop(first)
        prefill_s = (now - sent) / int(tokens[first])  # the first token takes as long as any other
        yield Answer(name, block, first, int(tokens[first]), now - sent - prefill_s, sent_s=sent, ttft_s=prefill_s)


if __name__ == "__main__":
    main()
