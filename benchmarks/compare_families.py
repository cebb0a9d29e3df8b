"""`benchctl compare`: how often it calls an unchanged arm faster or slower, and how often it finds a changed one.

    python -m benchmarks.compare_families

A run is simulated as the logarithms of its blocks' decode rates: of the baseline and of each arm, with the noise of a
process, and with the state of the run (`state`: of one arm's rate in one run, as a share), which blocks do not show.
`A B` are two runs, `A B A` and `A B A B A` repeat them. False: the share of comparisons in which an unchanged arm, or
the baseline, is called faster or slower. Found: how often the one arm that changed is. `each arm alone`: Welch's
interval of each decode rate at 95 %, the rule until November 2026.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.comparison.changes import InAllRuns, find_ratios, speed_change, without_prompts
from benchctl.analysis.speed_table import Measured
from benchctl.analysis.statistics import LEVEL, block_variance, change_interval
from benchmarks.keep import keep

Floats = NDArray[np.float64]
DESIGNS = {"A B": (1, 1), "A B A": (2, 1), "A B A B A": (3, 2)}
PROCESS = 0.02
"""Standard deviation of the logarithm of one block's decode rate."""


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=2000, help="simulated comparisons of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261124)
    keep(
        "compare_families",
        {
            "comparisons_a_case": options.comparisons,
            "process_sd": PROCESS,
            "cases": [
                {"design": design, "state_sd": state, "blocks": blocks, "arms": arms, "noise": noise}
                | _case(design, state, blocks, arms, noise, options.comparisons, rng)
                for design in DESIGNS
                for state in (0.0, 0.01)
                for blocks in (3, 5)
                for arms in (1, 6, 10)
                for noise in ("equal", "one 6x")
            ],
        },
    )


def _case(
    design: str, state: float, blocks: int, arms: int, noise: str, comparisons: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return in how many comparisons an unchanged arm was called changed, and a change of 10 % was found."""
    of_a, of_b = DESIGNS[design]
    spread = np.full((arms + 1, 1), PROCESS)
    spread[1] *= 6 if noise == "one 6x" else 1
    false, claimed_alone, gains_found = 0, 0, 0
    for changed in (False, True):
        for _ in range(comparisons):
            shape = (of_a + of_b, arms + 1, blocks)
            logs = spread * rng.standard_normal(shape) + state * rng.standard_normal((*shape[:2], 1))
            if changed:
                logs[of_a:, -1] += np.log(0.9)
            words = _words(logs, of_a)
            if changed:
                gains_found += words[-1] == "slower"
            else:
                false += any(word != "no clear difference" for word in words)
                claimed_alone += design == "A B" and any(map(_alone, logs[0], logs[1]))
    rule = {"each_arm_alone_false": claimed_alone / comparisons} if design == "A B" else {}
    return {"false": false / comparisons, "found_10_percent": gains_found / comparisons} | rule


def _words(logs: Floats, of_a: int) -> list[str]:
    """Return what the baseline and every arm are called; `logs`: (runs, baseline and arms, blocks)."""
    names = [str(number) for number in range(logs.shape[1])]
    groups = dict.fromkeys(names, names[0])
    level = 1 - (1 - LEVEL) / len(names)
    rates = {name: _in_all_runs(logs[:, number], of_a) for number, name in enumerate(names)}
    speedups = {name: _in_all_runs(logs[:, number] - logs[:, 0], of_a) for number, name in enumerate(names) if number}
    changes = find_ratios(rates, groups, level, arms_repeat=False)
    changes |= find_ratios(speedups, groups, level, arms_repeat=True)
    return [speed_change(changes[name].interval) for name in names]


def _in_all_runs(logs: Floats, of_a: int) -> InAllRuns:
    return without_prompts([Measured(float(np.exp(run.mean())), np.exp(run).tolist()) for run in logs], of_a)


def _alone(before: Floats, after: Floats) -> bool:
    of_blocks = [(block_variance(np.exp(run).tolist()), len(run)) for run in (before, after)]
    means = [variance.of_mean(count) for variance, count in of_blocks if variance is not None]
    return change_interval(float(np.exp(after.mean() - before.mean())), means[:1], means[1:], LEVEL).excludes_one


if __name__ == "__main__":
    main()
