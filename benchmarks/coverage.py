"""Does a 95 % interval hold the truth in 95 of 100 runs? Simulated runs of known truth, judged by benchctl's own code.

    python -m benchmarks.coverage

A simulated run has `blocks` blocks of six prompts. The time of an answer is the prompt's own, times what the arm's
fresh process drew for this block (`between`), times what this request drew (`within`). The logarithms of both are
normal, or as heavy-tailed as Student's t with 3 degrees of freedom, or the requests of a block hang together
(autoregressive, 0.8). `unequal` prompts differ tenfold in length, and the arm's speed-up differs between them from 0.6
to 1.65. The truth is what a run without any noise would show.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from benchctl.analysis import statistics
from benchctl.analysis.precision import Look, why_stop
from benchctl.analysis.result import Interval
from benchctl.analysis.statistics import block_variance
from benchctl.recipes.schema import FIRST_LOOK, AutoBlocks
from benchmarks.keep import keep

Floats = NDArray[np.float64]
Noise = Literal["log-normal", "heavy-tailed", "autocorrelated"]
PROMPTS = 6
BLOCKS = (3, 5, 8, 16)
SPREADS = ((0.0, 0.03), (0.01, 0.03), (0.03, 0.03), (0.05, 0.02))
"""Between processes and between requests: from processes that are all alike to those that differ by far more."""


@dataclass(frozen=True)
class World:
    """A machine and a workload. Spreads are standard deviations of logarithms."""

    between: float
    within: float
    noise: Noise = "log-normal"
    unequal: bool = False
    speedup: float = 1.0

    def blocks(self, count: int, rng: np.random.Generator) -> Floats:
        """Return (count, PROMPTS, 4): tokens and seconds of the arm, tokens and seconds of the baseline."""
        tokens, base_s, arm_s = self.prompts()
        process = self.between * _draw(self.noise, (2, count, 1), rng, hang_together=False)
        request = self.within * _draw(self.noise, (2, count, PROMPTS), rng, hang_together=True)
        factor = np.exp(process + request)
        shape = (count, PROMPTS)
        return np.stack(
            [np.broadcast_to(tokens, shape), arm_s * factor[0], np.broadcast_to(tokens, shape), base_s * factor[1]],
            axis=-1,
        )

    def prompts(self) -> tuple[Floats, Floats, Floats]:
        """Return (PROMPTS,) each: tokens, and seconds of the baseline and the arm without noise."""
        tokens, ratios = np.full(PROMPTS, 100.0), np.ones(PROMPTS)
        if self.unequal:
            tokens, ratios = np.geomspace(20, 200, PROMPTS), np.exp(np.array([0.1, -0.5, 0.5, -0.3, 0.3, -0.1]))
        return tokens, tokens / 20, tokens / 20 / (ratios * self.speedup)

    @property
    def truth(self) -> float:
        """The pooled speed-up of a run without noise."""
        _, base_s, arm_s = self.prompts()
        return float(base_s.sum() / arm_s.sum())

    def named(self) -> dict[str, Any]:
        """Return what tells this world from others."""
        return {"between": self.between, "within": self.within, "noise": self.noise, "unequal": self.unequal}


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261121)
    cases = list(_coverage(options.runs, rng))
    shares = [case["holds_percent"] for case in cases]
    false = list(_claims(1.0, options.runs, rng))
    keep(
        "coverage",
        {
            "runs_a_case": options.runs,
            "coverage_percent": {"least": min(shares), "median": float(np.median(shares)), "most": max(shares)},
            "false_claims_percent": {"most": max(case["differs_percent"] for case in false)},
            "coverage": cases,
            "false_claims": false,
            "power": [case for slower in (1.03, 1.10) for case in _claims(1 / slower, options.runs, rng)],
            "auto": list(_auto(options.runs // 2, rng)),
            "auto_level": list(_auto_levels(200_000, rng)),
            "auto_compared": list(_auto_compared(2 * options.runs, rng)),
        },
    )


def interval(blocks: Floats, level: float = statistics.LEVEL) -> Interval:
    """Return benchctl's interval of a simulated run."""
    block = np.repeat(np.arange(len(blocks)), PROMPTS)
    ends = statistics.pooled_interval(blocks.reshape(-1, 4), block, level)
    assert ends is not None
    return ends


def _coverage(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """How often the interval holds the truth, and how wide it is."""
    noises: tuple[Noise, ...] = ("log-normal", "heavy-tailed", "autocorrelated")
    for noise, unequal, count, (between, within) in product(noises, (False, True), BLOCKS, SPREADS):
        world = World(between, within, noise, unequal)
        intervals = [interval(world.blocks(count, rng)) for _ in range(runs)]
        covered = sum(ends.low <= world.truth <= ends.high for ends in intervals)
        half = np.median([(ends.high - ends.low) / 2 / world.truth for ends in intervals])
        yield {
            "blocks": count,
            **world.named(),
            "holds_percent": 100 * covered / runs,
            "half_percent": 100 * float(half),
        }


def _claims(speedup: float, runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """How often a difference is claimed: falsely where the speed-up is 1, else found."""
    for count, (between, within) in product(BLOCKS, SPREADS[1:3] if speedup != 1 else SPREADS):
        world = World(between, within, speedup=speedup)
        intervals = [interval(world.blocks(count, rng)) for _ in range(runs)]
        differs = sum(ends.high < 1 or ends.low > 1 for ends in intervals)
        yield {
            "speedup": round(speedup, 4),
            "blocks": count,
            "between": between,
            "within": within,
            "differs_percent": 100 * differs / runs,
        }


def _auto(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """`blocks: auto` as it is: look after every block from the fifth, stop by the rule, take the interval there."""
    noises: tuple[Noise, ...] = ("log-normal", "heavy-tailed")
    for noise, between in product(noises, (0.003, 0.01, 0.02, 0.04)):
        rule = AutoBlocks(half_width=0.02, max=20)
        world = World(between, 0.02, noise, unequal=True)
        covered, measured, reached = 0, 0, 0
        for _ in range(runs):
            blocks = world.blocks(rule.max, rng)
            for count in range(FIRST_LOOK, rule.max + 1):
                ends = interval(blocks[:count], statistics.SEQUENTIAL_LEVEL)
                pooled = float(_ratio(blocks[:count].sum(axis=(0, 1))))
                stopped = why_stop(rule, count, 0.0, Look({"arm": (ends.high - ends.low) / 2 / pooled}, {}, []))
                if stopped:
                    covered += ends.low <= world.truth <= ends.high
                    measured += count
                    reached += stopped.reason == "reached"
                    break
        yield {
            **world.named(),
            "holds_percent": 100 * covered / runs,
            "blocks_mean": measured / runs,
            "reached_percent": 100 * reached / runs,
        }


def _auto_levels(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The same for Student's t alone in many runs: what each level at the looks comes to in the worst case."""
    max_blocks, target = 60, 0.02
    count = np.arange(1, max_blocks + 1)
    for level in (statistics.LEVEL, 0.96, statistics.SEQUENTIAL_LEVEL, 0.98):
        quantile = np.concatenate([[np.inf], stdtrit(count[1:] - 1, (1 + level) / 2)])
        covered = {}
        for spread in (0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.05):
            logs = spread * rng.standard_normal((runs, max_blocks))
            mean = np.cumsum(logs, axis=1) / count
            variance = (np.cumsum(logs**2, axis=1) - count * mean**2) / np.maximum(count - 1, 1)
            with np.errstate(invalid="ignore"):
                half = quantile * np.sqrt(np.clip(variance, 0, None) / count)
            narrow = half <= target
            narrow[:, : FIRST_LOOK - 1] = False
            end = np.where(narrow.any(axis=1), narrow.argmax(axis=1), max_blocks - 1)
            run = np.arange(runs)
            covered[f"{spread / target:g}"] = 100 * float((np.abs(mean[run, end]) <= half[run, end]).mean())
        yield {"level": level, "holds_percent_least": min(covered.values()), "by_spread_over_half_width": covered}


def _auto_compared(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """Two equal runs with `blocks: auto`: how often the interval of their ratio (`benchctl compare`) holds 1."""
    for spread in (0.01, 0.02, 0.03, 0.04, 0.06):
        covered = dict.fromkeys((statistics.LEVEL, statistics.SEQUENTIAL_LEVEL), 0)
        for _ in range(runs):
            ours, theirs = _ended(spread, rng), _ended(spread, rng)
            ratio = float(np.exp(np.log(ours).mean() - np.log(theirs).mean()))
            for level in covered:
                means = [variance.of_mean(len(run)) for run in (theirs, ours) if (variance := block_variance(run))]
                ends = statistics.change_interval(ratio, means[:1], means[1:], level)
                covered[level] += ends.low <= 1 <= ends.high
        yield {
            "spread": spread,
            "holds_percent_by_level": {f"{level:g}": 100 * count / runs for level, count in covered.items()},
        }


def _ended(spread: float, rng: np.random.Generator) -> list[float]:
    """Return the blocks' ratios of a run with `blocks: auto` that looked at Student's t alone."""
    rule = AutoBlocks(half_width=0.02)
    logs = spread * rng.standard_normal(rule.max)
    for count in range(FIRST_LOOK, rule.max + 1):
        half = float(stdtrit(count - 1, (1 + statistics.SEQUENTIAL_LEVEL) / 2)) * logs[:count].std(ddof=1) / count**0.5
        if why_stop(rule, count, 0.0, Look({"arm": half}, {}, [])):
            break
    ratios: list[float] = np.exp(logs[:count]).tolist()
    return ratios


def _draw(noise: Noise, shape: tuple[int, ...], rng: np.random.Generator, *, hang_together: bool) -> Floats:
    """Return noise of unit variance; `hang_together`: the last axis is a sequence in time."""
    if noise == "heavy-tailed":
        tailed: Floats = rng.standard_t(3, size=shape) / np.sqrt(3)
        return tailed
    fresh = rng.standard_normal(shape)
    if noise == "autocorrelated" and hang_together:
        for step in range(1, shape[-1]):
            fresh[..., step] = 0.8 * fresh[..., step - 1] + 0.6 * fresh[..., step]
    return fresh


def _ratio(sums: Floats) -> Floats:
    ratio: Floats = sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3])
    return ratio


if __name__ == "__main__":
    main()
