"""Claims about speed among arms of known truth: simulated runs of equal arms, judged by benchctl's own analysis.

    python -m benchmarks.claims

| part | question |
| --- | --- |
| equal | 1, 4, 10 and 16 arms as fast as the baseline: in how many runs is one said to be faster, or slower? |
| better | one arm of ten is 20 % faster: in how many runs is that said of it, and in how many something false? |
| carried | the cell after a certain arm is 5 % slower, in the order of benchctl's own plan: how many false claims? |

A run has six prompts in three tasks. A time is the prompt's own, times what the fresh process drew (`BETWEEN`), times
what the request drew (`WITHIN`): spreads of the logarithms, normal, as in `coverage.py`. A claim is the `speed` of a
verdict; a claim about a task is a simultaneous interval of an arm in one task that leaves out the truth.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np

from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.results import Analysis
from benchctl.data.store import RunData
from benchctl.lossless.judge.run import analyse_run
from benchctl.measurement.plan import mirrored, rotated
from benchmarks.keep import keep
from benchmarks.synthetic_run import BASELINE, Answer, baseline_arm, speculating_arm, synthetic_run

PROMPTS = 6
TOKENS = 101
BETWEEN, WITHIN = 0.01, 0.03
CARRIED = 1.05
_BUSY = "hot"
"""The arm after which the machine is slower."""


def main() -> None:
    """Simulate and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=400, help="simulated runs of each case")
    options = parser.parse_args()
    rng = np.random.default_rng(20261122)
    keep(
        "claims",
        {
            "runs_a_case": options.runs,
            "equal": [
                {"arms": arms, "blocks": blocks, **_claimed(options.runs, _arms(arms), blocks, rng)}
                for blocks in (3, 5)
                for arms in (1, 4, 10, 16)
            ],
            "better": [
                {"arms": 10, "blocks": blocks, **_claimed(options.runs, _arms(10), blocks, rng, {"arm0": 1.2})}
                for blocks in (3, 5)
            ],
            "carried": list(_carried(options.runs, rng)),
        },
    )


def _arms(count: int) -> list[str]:
    return [f"arm{number}" for number in range(count)]


def _claimed(
    runs: int,
    arms: Sequence[str],
    blocks: int,
    rng: np.random.Generator,
    speedups: Mapping[str, float] | None = None,
    slowed: Callable[[int], dict[str, float]] = lambda block: {},
) -> dict[str, Any]:
    """Return the share of runs, in percent, with a claim of each kind that is not so, and with each that is.

    `speedups`: of the arms that are not 1; `slowed`: by how much the times of an arm are longer in a block.
    """
    truth = speedups or {}
    claims: Counter[str] = Counter()
    for _ in range(runs):
        analysis = analyse_run(_run(arms, blocks, rng, truth, slowed))
        claims.update(set(_kinds(analysis, truth)))
    return {f"{kind}_percent": 100 * claims[kind] / runs for kind in ("faster", "claim", "task", *truth)}


def _kinds(analysis: Analysis, truth: Mapping[str, float]) -> Iterator[str]:
    """Yield `faster`, `claim` (faster or slower) and `task` for what is not so, and the name of an arm found right."""
    for verdict in analysis.verdicts:
        sign = {"faster": 1, "slower": -1}.get(verdict.speed, 0)
        if sign and sign == int(np.sign(np.log(truth.get(verdict.arm, 1.0)))):
            yield verdict.arm
        elif sign:
            yield "claim"
            if sign == 1:
                yield "faster"
    for row in analysis.speedups:
        real = truth.get(row.arm, 1.0)
        interval = row.interval
        if row.task != ALL_TASKS and interval and not interval.low <= real <= interval.high:
            yield "task"


def _run(
    arms: Sequence[str],
    blocks: int,
    rng: np.random.Generator,
    speedups: Mapping[str, float],
    slowed: Callable[[int], dict[str, float]],
) -> RunData:
    names = [BASELINE, *arms]
    answers = []
    for block in range(blocks):
        longer = slowed(block)
        for name in names:
            process = rng.normal(0.0, BETWEEN)
            prompt_s = np.geomspace(2.0, 8.0, PROMPTS) / speedups.get(name, 1.0) * longer.get(name, 1.0)
            times = prompt_s * np.exp(process + rng.normal(0.0, WITHIN, PROMPTS))
            answers += [Answer(name, block, prompt, TOKENS, float(time)) for prompt, time in enumerate(times)]
    identities = [baseline_arm(), *map(speculating_arm, arms)]
    return synthetic_run(identities, answers, blocks=blocks, prompts=PROMPTS)


def _carried(runs: int, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    """The cell that follows one of `_BUSY` takes 5 % longer, in benchctl's order of today and in its first."""
    for order, count in product((rotated, mirrored), (2, 3, 5)):
        arms = [_BUSY, *_arms(count)]
        for blocks in (5, 8):
            cells = [(block, name) for block in range(blocks) for name in order([BASELINE, *arms], block)]
            after = {cell for (_, before), cell in pairwise(cells) if before == _BUSY}

            def slowed(block: int, after: frozenset[tuple[int, str]] = frozenset(after)) -> dict[str, float]:
                return {name: CARRIED for number, name in after if number == block}

            followers = Counter(name for _, name in after)
            yield {
                "ordering": order.__name__,
                "arms": len(arms),
                "blocks": blocks,
                "followers": dict(followers),
                **_claimed(runs, arms, blocks, rng, slowed=slowed),
            }


if __name__ == "__main__":
    main()
