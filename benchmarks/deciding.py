"""`blocks: auto`: how often it claims something false, how often it finds a real gain, and the cells that it takes.

    python -m benchmarks.deciding

A run is simulated as the logarithms of its blocks' ratios: an arm's process noise less that of the baseline, which all
arms share. It is looked at after every block from the third; arms are dropped as `decided_arms` says, and it ends after
20 blocks at the latest.

False: the share of runs in which an arm is called faster or slower that is not, or within ±5 % that is as far as that
from 1. Found: how often the one gain is claimed. Cells: engine runs of the baseline's length, the baseline's included.
"""

from __future__ import annotations

import argparse
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.precision import NEAR, decided_arms
from benchctl.analysis.speed_results import SpeedUp
from benchctl.analysis.statistics import LOOK_LEVEL, Variance, ratio_interval, shared_variances
from benchctl.measurement.plan import mirrored
from benchmarks.keep import keep

Floats = NDArray[np.float64]
Noise = Literal["equal", "a quarter 3x", "one 6x", "heavy-tailed", "drifting"]
NOISES: tuple[Noise, ...] = ("equal", "a quarter 3x", "one 6x", "heavy-tailed", "drifting")
MOST, FIRST = 20, 3
ARMS = (1, 2, 4, 10, 16)


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs of each case")
    parser.add_argument("--level", type=float, default=LOOK_LEVEL, help="level of one look")
    options = parser.parse_args()
    rng = np.random.default_rng(20261123)
    runs, level = options.runs, options.level
    keep(
        "deciding",
        {
            "runs_a_case": runs,
            "level_of_a_look": level,
            "false": [
                {"truth": truth, "arms": arms, "noise": noise, "process_sd": spread}
                | _simulate(runs, np.full(arms, np.log(truth)), spread, noise, rng, level)
                for truth, spread in ((1.0, 0.04), (1 + NEAR, 0.02))
                for noise in NOISES
                for arms in ARMS
            ],
            "found": [
                {"gain": gain, "process_sd": spread, "arms": arms}
                | _simulate(runs, np.log1p([gain, *[slow] * (arms - 1)]), spread, "equal", rng, level)
                | {"others": 1 + slow}
                for gain, spread in ((0.05, 0.02), (0.1, 0.02), (0.1, 0.04))
                for arms, slow in ((1, 0.0), (4, 0.0), (4, -0.3), (10, -0.3))
            ],
        },
    )


def _simulate(
    runs: int, gains: Floats, spread: float, noise: Noise, rng: np.random.Generator, level: float
) -> dict[str, Any]:
    """Return false claims, claims of the first arm's gain, and cells. `gains`: logarithms, (arms,)."""
    outcomes: list[tuple[bool, bool, float]] = []
    for _ in range(runs):
        logs = gains[:, None] + spread * _noise(len(gains), noise, rng)
        words, blocks = _decided(logs, level)
        outcomes.append((*_judged(words, gains), max(blocks) + float(blocks @ np.exp(-gains))))
    return dict(zip(("false", "found", "cells"), np.mean(outcomes, axis=0).round(4).tolist(), strict=True))


def _noise(arms: int, noise: Noise, rng: np.random.Generator) -> Floats:
    """Return (arms, MOST), in spreads of one process."""
    spread = np.ones((arms, 1))
    if noise == "a quarter 3x":
        spread[: max(1, arms // 4)] = 3
    if noise == "one 6x":
        spread[0] = 6
    shape = (arms + 1, MOST)
    drawn = rng.standard_t(4, shape) / 2**0.5 if noise == "heavy-tailed" else rng.standard_normal(shape)
    if noise == "drifting":  # the machine's speed wanders and falls from cell to cell, in the order of a real run
        times = np.array([mirrored(range(arms + 1), block) for block in range(MOST)]).argsort(axis=1)
        wander = np.cumsum(rng.standard_normal(MOST * (arms + 1)) / 3 - 0.05).reshape(MOST, arms + 1)
        drawn += np.take_along_axis(wander, times, axis=1).T
    logs: Floats = drawn[:-1] * spread - drawn[-1]
    return logs


def _decided(logs: Floats, level: float) -> tuple[list[str], NDArray[np.int64]]:
    """Return what each arm was called in the end, and how many blocks it was measured."""
    arms = len(logs)
    words, blocks = ["undecided"] * arms, np.full(arms, FIRST)
    open_arms = set(range(arms))
    for count in range(FIRST, MOST + 1):
        for arm in open_arms:
            blocks[arm] = count
        by_name = {str(arm): ratio for arm, ratio in enumerate(_ratios(logs, blocks, level))}
        for name, word in decided_arms(by_name, level).items():
            if int(name) in open_arms:
                words[int(name)] = word
                open_arms.discard(int(name))
        if not open_arms:
            break
    for arm in open_arms:  # what a report says of those that are left
        ratio = by_name[str(arm)]
        ends = ratio.interval
        assert ends is not None and ratio.within is not None
        words[arm] = ("faster" if ends.low > 1 else "slower") if ends.excludes_one else "undecided"
        if ratio.within <= NEAR:
            words[arm] = "within"
    return words, blocks


def _ratios(logs: Floats, blocks: NDArray[np.int64], level: float) -> list[SpeedUp]:
    values = [row[:count] for row, count in zip(logs, blocks, strict=True)]
    variances = shared_variances([Variance(float(row.var(ddof=1)), len(row) - 1) for row in values])
    ratios = []
    for row, variance in zip(values, variances, strict=True):
        assert variance is not None
        middle, mean = float(np.exp(row.mean())), Variance(variance.value / len(row), variance.freedom)
        tail = (1 - level) / len(logs)
        near = ratio_interval(middle, mean, 1 - 2 * tail)
        within = max(near.high - 1, 1 - near.low)
        fields = {"pooled": middle, "by_block": np.exp(row).tolist(), "blocks": list(range(len(row))), "within": within}
        ratios.append(SpeedUp.model_construct(**fields, interval=ratio_interval(middle, mean, 1 - tail)))
    return ratios


def _judged(words: list[str], gains: Floats) -> tuple[bool, bool]:
    """Return whether any claim is false, and whether the first arm is called faster."""
    false = any(
        (word == "faster" and gain <= 0)
        or (word == "slower" and gain >= 0)
        or (word == "within" and abs(gain) >= np.log1p(NEAR) - 1e-9)
        for word, gain in zip(words, gains, strict=True)
    )
    return false, words[0] == "faster"


if __name__ == "__main__":
    main()
