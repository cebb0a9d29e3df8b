"""How often the audit calls a sound engine a violation, and how often a wrong one: simulated runs of known truth.

    python -m benchmarks.audit_simulation

Margins are drawn from those of the kept Qwen Q4 run (`scores.json`), answers have 128 tokens. What a wider batch takes
from a margin is normal, or follows Student's t with 8 or 5 degrees of freedom, of a standard deviation of 0.135 nats
(as measured there) or 0.05; `uneven`: the deviation differs between answers by a factor with a standard deviation of 15
or 30 %. Measured there, at four widths: an excess kurtosis of 0.6 to 1.7 (Student's t: 1.5 with 8 degrees of freedom, 6
with 5) and deviations that differ by 7 to 15 %. The noise is known from 1,000 prefixes of the same run's answers. A
wrong engine accepts the target's runner-up within so many nats, where the draft proposes it: at a third of the places;
or it has 1.5 times the target's own noise.

An arm that seldom drafts, by itself: one round at any place in one answer of 12, or in a share of 48, noise from there
on; a fault makes so many divergences per 1,000 tokens anywhere. The limit of the divergences beyond those of noise
holds where it is no lower; beside it the limit that takes every place to be noisy.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchctl.analysis.losslessness import AUDIT_LEVEL
from benchctl.data.scores import read_scores
from benchctl.lossless.judge.audit import excess_limit
from benchctl.lossless.judge.noise import Noise, Places, hazard_test
from benchmarks.keep import RESULTS, keep

Floats = NDArray[np.float64]
RUN = Path(__file__).resolve().parent.parent / "results/qwen2.5-coder/20261122-191218-f263"
TOKENS, PREFIXES, MOST_ANSWERS, ROUNDS = 128, 1_000, 50, 3_000
PROPOSED = 1 / 3
SPARSE = ((12, 1), (48, 5), (48, 24), (48, 48))
"""Answers, and how many of them drafted."""


@dataclass(frozen=True)
class World:
    """What a simulated engine is like."""

    freedom: int | None = None
    """Degrees of freedom of Student's t; `None` is normal."""
    deviation: float = 0.135
    uneven: float = 0.0
    accepts: float = 0.0
    """Nats within which the runner-up is accepted."""
    factor: float = 1.0
    """The arm's noise over the target's own."""


SOUND = (World(), World(8, uneven=0.15), World(5), World(uneven=0.3), World(deviation=0.05))
WRONG = (
    World(accepts=0.05),
    World(accepts=0.1),
    World(accepts=0.3),
    World(factor=1.5),
    World(deviation=0.05, accepts=0.1),
)


def main() -> None:
    """Simulate every world at 12, 48 and 200 prompts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sound", type=int, default=400, help="runs of each sound engine")
    parser.add_argument("--wrong", type=int, default=100, help="runs of each wrong engine")
    parser.add_argument("--prompts", type=int, nargs="+", default=[12, 48, 200])
    parser.add_argument("--part", choices=["all", "sparse"], default="all", help="sparse: the rest is kept as it is")
    options = parser.parse_args()
    margins = _kept_margins()
    if options.part == "sparse":
        results = json.loads((RESULTS / "audit_simulation.json").read_text(encoding="utf-8"))["found"]
    else:
        results = {"level": AUDIT_LEVEL, "margins": len(margins), "rows": _rows(options, margins)}
    results["sparse"] = [
        _sparse(answers, drafting, fault, options.sound, margins, np.random.default_rng([answers, drafting, number]))
        for answers, drafting in SPARSE
        for number, fault in enumerate((0.0, 2.0, 6.0))
    ]
    keep("audit_simulation", results)


def _rows(options: argparse.Namespace, margins: Floats) -> list[dict[str, Any]]:
    rows = []
    for number, world in enumerate((*SOUND, *WRONG)):
        for prompts in options.prompts:
            runs = options.sound if world in SOUND else options.wrong
            runs = runs if prompts < 200 else max(20, runs // 4)
            rng = np.random.default_rng([number, prompts])
            rows.append(_row(world, prompts, runs, margins, rng))
            print(rows[-1], flush=True)
    return rows


def _row(world: World, prompts: int, runs: int, margins: Floats, rng: np.random.Generator) -> dict[str, Any]:
    outcomes = [_run(world, prompts, margins, rng) for _ in range(runs)]
    hazard = sum(p <= AUDIT_LEVEL / 2 for p, _ in outcomes)
    far = sum(beyond for _, beyond in outcomes)
    either = sum(beyond or p <= AUDIT_LEVEL / 2 for p, beyond in outcomes)
    return {**world.__dict__, "prompts": prompts, "runs": runs, "hazard": hazard, "far": far, "violations": either}


def _run(world: World, prompts: int, margins: Floats, rng: np.random.Generator) -> tuple[float, bool]:
    """Return the p of the hazard test of a simulated arm, and whether a place lies beyond the floor."""
    answers = min(prompts, MOST_ANSWERS)
    shape = (answers, PREFIXES // answers)
    null = rng.choice(margins, size=shape)
    noise = Noise(null.ravel(), _losses(world, shape, rng).ravel(), np.repeat(np.arange(answers), shape[1]))
    margins_drawn = rng.choice(margins, size=(prompts, TOKENS))
    diverged = world.factor * _losses(world, margins_drawn.shape, rng) > margins_drawn
    diverged |= (margins_drawn <= world.accepts) & (rng.random(margins_drawn.shape) < PROPOSED)
    places = Places.everywhere(margins_drawn.ravel(), diverged.ravel(), np.repeat(np.arange(prompts), TOKENS))
    hazard = hazard_test(noise, places, seed=int(rng.integers(1 << 31)), rounds=ROUNDS)
    floor = noise.floor(places.margins, AUDIT_LEVEL / 4)
    return hazard.p, bool((places.margins[places.diverged] > floor).any())


def _sparse(
    answers: int, drafting: int, fault: float, runs: int, margins: Floats, rng: np.random.Generator
) -> dict[str, Any]:
    """Return how often the limit of an arm that seldom drafts holds; `fault`: divergences per 1,000 tokens."""
    index = np.arange(TOKENS)
    limits, everywhere = [], []
    for _ in range(runs):
        shape = (answers, PREFIXES // answers)
        losses = _losses(World(), shape, rng).ravel()
        noise = Noise(rng.choice(margins, size=shape).ravel(), losses, np.repeat(np.arange(answers), shape[1]))
        margins_drawn = rng.choice(margins, size=(answers, TOKENS))
        drafted = rng.permutation(answers)[:, np.newaxis] < drafting
        from_here = drafted & (index >= rng.integers(1, TOKENS, (answers, 1)))
        diverged = (from_here & (_losses(World(), margins_drawn.shape, rng) > margins_drawn)) | (
            rng.random(margins_drawn.shape) < fault / 1000
        )
        surely = drafted & (index == TOKENS - 1)  # one round without an accepted token, at the end at the latest
        numbers = np.repeat(np.arange(answers), TOKENS)
        flat = [np.broadcast_to(places, margins_drawn.shape).ravel() for places in (drafted, surely)]
        limits.append(excess_limit(noise, Places(margins_drawn.ravel(), diverged.ravel(), numbers, *flat)) or 0.0)
        everywhere.append(
            excess_limit(noise, Places.everywhere(margins_drawn.ravel(), diverged.ravel(), numbers)) or 0.0
        )
    return {
        "answers": answers,
        "drafting": drafting,
        "fault_per_1000": fault,
        "runs": runs,
        "holds_percent": 100 * float(np.mean(np.array(limits) >= fault)),
        "median_per_1000": float(np.median(limits)),
        "everywhere_holds_percent": 100 * float(np.mean(np.array(everywhere) >= fault)),
        "everywhere_median_per_1000": float(np.median(everywhere)),
    }


def _losses(world: World, shape: tuple[int, int], rng: np.random.Generator) -> Floats:
    """Return what a wider batch takes from margins; a row an answer."""
    if world.freedom is None:
        drawn = rng.standard_normal(shape)
    else:
        drawn = rng.standard_t(world.freedom, size=shape) / (world.freedom / (world.freedom - 2)) ** 0.5
    uneven = np.exp(world.uneven * rng.standard_normal((shape[0], 1)) - world.uneven**2 / 2)
    return np.asarray(world.deviation * uneven * drawn)


def _kept_margins() -> Floats:
    """Return the top-two margins of the kept run's sampled prefixes, token by token."""
    scores = read_scores(RUN)
    assert scores is not None, "the run is kept with the repository"
    reported = [
        position.readings[0].margin
        for position in scores.positions
        if not position.fork and position.readings[0].shape == "decode"
    ]
    return np.array([margin for margin in reported if margin is not None])


if __name__ == "__main__":
    main()
