"""Tests of an arm against a control (`lossless.judge.control`): false alarms of sound arms, and faulty arms found.

    python -m benchmarks.controls

Each prompt is a near-tie with the chance `NEAR_TIE`. There a sound arm's rounding decides, in one of three ways: never
(`none`), by the crowd anew in every process (`crowd`), or by the verify width (`width`: every arm differs from the
baseline with the chance 1/2, alike in all its blocks, and the baseline never varies). A faulty arm also changes the
answers to a share of all prompts. `repeats` is what is not done: the baseline repeated as the only control.
"""

from __future__ import annotations

import argparse
from itertools import product
from typing import Any

import numpy as np

from benchctl.analysis.losslessness import AUDIT_LEVEL
from benchctl.analysis.statistics import holm
from benchctl.lossless.judge.control import Stratum, by_class, exact_p, paired
from benchmarks.keep import keep

NEAR_TIE = 0.3
NOISES = ("none", "crowd", "width")
SHARES = (0.0, 0.25, 0.5, 0.75)


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261127)
    cases = [
        {"noise": noise, "prompts": prompts, "blocks": blocks, "changed_share": share}
        | _violations(noise, prompts, blocks, share, options.runs, rng)
        for noise, prompts, blocks, share in product(NOISES, (24, 48), (1, 3), SHARES)
    ]
    keep("controls", {"runs_a_case": options.runs, "level": AUDIT_LEVEL / 2, "cases": cases})


def _violations(
    noise: str, prompts: int, blocks: int, share: float, runs: int, rng: np.random.Generator
) -> dict[str, Any]:
    """Return in how many per cent of runs the first of two arms is called a violation."""
    counts = dict.fromkeys(("arm", "noise") if noise == "none" else ("arm", "repeats"), 0)
    for _ in range(runs):
        answers = _answers(noise, prompts, blocks, share, rng)
        for kind in counts:
            tests = [_p(answers, arm, 3 - arm, by_arm=kind == "arm") for arm in (1, 2)]
            counts[kind] += holm(tests)[0] <= AUDIT_LEVEL / 2
    return {f"violation_percent_{kind}": 100 * count / runs for kind, count in counts.items()}


def _answers(noise: str, prompts: int, blocks: int, share: float, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return answers by (baseline, faulty arm, sound arm), block and prompt: equal numbers are equal answers."""
    near = rng.random(prompts) < NEAR_TIE
    flips = rng.random((3, blocks, prompts)) < 0.5
    if noise == "width":
        flips[:] = flips[:, :1]
        flips[0] = False
    answers = (flips & near & (noise != "none")).astype(int)
    answers[1, :, rng.random(prompts) < share] = 2
    return answers


def _p(answers: np.ndarray[Any, Any], arm: int, other: int, *, by_arm: bool) -> float:
    strata = []
    for prompt in range(answers.shape[2]):
        baseline, ours, control = (answers[number, :, prompt].tolist() for number in (0, arm, other))
        if by_arm:
            strata.append(paired(*(any(answer not in baseline for answer in part) for part in (ours, control))))
        elif len(baseline) > 1:
            sizes = [[*baseline, *ours].count(answer) for answer in {*baseline, *ours}]
            differing = sum(answer not in baseline for answer in ours)
            strata.append(Stratum(len(ours), len(baseline), differing, by_class(sizes, len(ours))))
    return exact_p(strata)


if __name__ == "__main__":
    main()
