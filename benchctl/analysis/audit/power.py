"""What the hazard test could have missed: the chance that a wrong acceptance rule would have been seen.

The wrong rule accepts the target's runner-up wherever its margin is within so many nats and the draft proposes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.audit.hazard import TAUS, Places, Simulation, null_statistics, statistic

if TYPE_CHECKING:
    from benchctl.analysis.audit.noise import Noise

PROPOSED = 0.05
"""How often a draft is taken to propose the runner-up at such a place. Measured with engines that are wrong inside
(`benchmarks/lossy_engines`): at 4 to 12 % of the places within reach. A power that is stated too high promises
what nobody keeps."""
ROUNDS = 500
OFTEN = 0.9
"""The chance of being seen that the number of prompts is told for."""
TIMES = (2, 4, 8, 16, 32, 64)
"""Times as many answers that are tried."""
MOST_PLACES = 6_000
"""More places near a tie are not simulated."""


@dataclass(frozen=True)
class Power:
    """Whether a rule that accepts the runner-up within `nats` would have been seen."""

    nats: float
    chance: float
    times: int | None
    """Times as many answers as there are would show it with a chance of `OFTEN`; `None` where even 64 would not."""


def find_power(noise: Noise, places: Places, nats: float, *, level: float, seed: int = 2) -> Power:
    """Return the chance that the test at `level` would have seen such a rule at these places."""
    near = places.up_to(max(TAUS))
    if noise.silent:
        return _of_a_silent_engine(places, nats)
    rng = np.random.default_rng(seed)
    first = _chance(noise, near, nats, level, rng)
    if first >= OFTEN or not len(near.margins):
        return Power(nats, first, 1 if first >= OFTEN else None)
    for times in TIMES:
        if times * len(near.margins) > MOST_PLACES:
            break
        if _chance(noise, _repeated(near, times, rng), nats, level, rng) >= OFTEN:
            return Power(nats, first, times)
    return Power(nats, first, None)


def _chance(noise: Noise, near: Places, nats: float, level: float, rng: np.random.Generator) -> float:
    simulation = Simulation(noise, near, rng)
    rounds = max(200, min(ROUNDS, 4_000_000 // max(1, len(near.margins))))
    null = null_statistics(simulation, near.margins, rounds)
    limit = np.quantile(null, 1 - level, method="higher")
    swapped = (near.margins <= nats) & (rng.random((rounds, len(near.margins))) < PROPOSED)
    own = noise.tail.chance_above(near.margins)[np.newaxis]
    return float((statistic(simulation.flips(rounds) | swapped, own, near.margins) > limit).mean())


def _repeated(places: Places, times: int, rng: np.random.Generator) -> Places:
    """Return so many times as many answers, drawn from these with replacement."""
    drawn = rng.integers(places.count, size=times * places.count)
    rows = [np.flatnonzero(places.answers == one) for one in drawn]
    index = np.concatenate(rows) if rows else np.zeros(0, np.int64)
    numbers = np.repeat(np.arange(len(drawn)), [len(one) for one in rows])
    return Places(places.margins[index], places.diverged[index], numbers)


def _of_a_silent_engine(places: Places, nats: float) -> Power:
    """Where the target has no noise, one swapped token is seen."""
    near = int((places.margins <= nats).sum())
    chance = 1 - (1 - PROPOSED) ** near
    times = next((one for one in (1, *TIMES) if 1 - (1 - PROPOSED) ** (near * one) >= OFTEN), None)
    return Power(nats, chance, times)
