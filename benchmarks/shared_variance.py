"""Sharing the variance between blocks among arms: false claims and real gains claimed, with and without.

    python -m benchmarks.shared_variance

A run is simulated as the logarithms of its blocks' ratios: an arm's process noise less that of the baseline, which all
arms share. `own`: every arm is judged by its own variance. `shared`: by `shared_variances`. Both by the interval that
holds for all arms together (level 1 - 0.05 / arms). False claims: the share of runs without any difference in which an
arm is called faster or slower. Power: the share of runs in which one arm's real gain is claimed, the others being
equal.
"""

from __future__ import annotations

import argparse
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.statistics import LEVEL, Variance, half_width, shared_variances
from benchmarks.keep import keep

Noise = Literal["equal", "a quarter 3x", "one 6x", "heavy-tailed"]
ARMS = (1, 2, 3, 4, 10, 16)
BLOCKS = (3, 5)


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated runs of each case")
    runs = parser.parse_args().runs
    rng = np.random.default_rng(20261123)
    noises: tuple[Noise, ...] = ("equal", "a quarter 3x", "one 6x", "heavy-tailed")
    keep(
        "shared_variance",
        {
            "runs_a_case": runs,
            "false_claims": [
                {"arms": arms, "blocks": blocks, "noise": noise, **_claimed(_logs(runs, arms, blocks, noise, rng))}
                for noise in noises
                for blocks in BLOCKS
                for arms in ARMS
            ],
            "power": [
                {
                    "gain": gain,
                    "process_sd": spread,
                    "arms": arms,
                    "blocks": blocks,
                    **_claimed(_logs(runs, arms, blocks, "equal", rng, np.log1p(gain) / spread), arm=0),
                }
                for gain, spread in ((0.05, 0.02), (0.1, 0.02), (0.1, 0.04))
                for blocks in BLOCKS
                for arms in (5, 10)
            ],
        },
    )


def _logs(
    runs: int, arms: int, blocks: int, noise: Noise, rng: np.random.Generator, gain: float = 0.0
) -> NDArray[np.float64]:
    """Return the logarithms of the blocks' ratios, (runs, arms, blocks), in spreads of the baseline's process noise.

    `gain`: of the first arm.
    """
    spread = np.ones((arms, 1))
    if noise == "a quarter 3x":
        spread[: max(1, arms // 4)] = 3
    if noise == "one 6x":
        spread[0] = 6
    heavy = noise == "heavy-tailed"
    drawn = [
        rng.standard_t(4, (runs, count, blocks)) / 2**0.5 if heavy else rng.standard_normal((runs, count, blocks))
        for count in (arms, 1)
    ]
    logs: NDArray[np.float64] = drawn[0] * spread - drawn[1]
    logs[:, 0] += gain
    return logs


def _claimed(logs: NDArray[np.float64], arm: int | None = None) -> dict[str, float]:
    """Return the share of runs in which `arm`, or any arm, is called faster or slower, by either rule."""
    arms, blocks = logs.shape[1:]
    level = 1 - (1 - LEVEL) / arms
    claims = {"own": 0, "shared": 0}
    for ratios in logs:
        own = [Variance(float(value), blocks - 1) for value in ratios.var(axis=1, ddof=1)]
        middles = np.abs(ratios.mean(axis=1))
        for rule, variances in (("own", own), ("shared", shared_variances(own))):
            halves = [half_width(variance.of_mean(blocks), level) for variance in variances if variance is not None]
            excludes_one = middles > halves
            claims[rule] += bool(excludes_one.any() if arm is None else excludes_one[arm])
    return {rule: round(number / len(logs), 4) for rule, number in claims.items()}


if __name__ == "__main__":
    main()
