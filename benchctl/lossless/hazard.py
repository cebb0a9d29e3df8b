"""The hazard test: does an arm diverge from its target's likeliest token more often, or elsewhere, than by noise?

At place t of an arm's own answer the target alone has the margin m_t, and X_t is 1 where the arm's token is not the
target's likeliest. Without a fault X_t is 1 with the chance h_t = P(loss > m_t). The statistic is

    max over tau of  sum over m_t <= tau of (X_t - h_t) / h_t  /  sqrt(sum (1 - h_t) / h_t)

which weighs a flip by how unlikely it was. Its distribution is simulated: losses are drawn by answer, since those of
an answer are alike, and h_t is estimated again each time from answers drawn with replacement, since it is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from benchctl.lossless.noise import Tail, fit_tail

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from benchctl.lossless.noise import Floats, Integers, Noise

    Booleans = NDArray[np.bool_]

TAUS = (0.05, 0.1, 0.2, 0.4)
"""Nats: the widest margins of the places that each sum is over."""
LEAST_CHANCE = 0.01
"""Smaller chances are set to this: else the rarest places, which hardly any fault reaches, would dominate."""
FIRST_ROUND, SECOND_ROUND = 1_000, 19_999
"""Simulations; the second number only where the first could be significant."""
SAMPLES = 1_000
"""Samples of answers that chances are estimated from again; simulations take them in turn."""
CHUNK = 2_000_000
"""Numbers that are simulated at a time."""


@dataclass(frozen=True)
class Places:
    """The places of an arm's own answers, as the target alone has them. Arrays of an entry per place."""

    margins: Floats
    """The likeliest token over the second likeliest."""
    diverged: Booleans
    """Whether the arm's token is another than the likeliest."""
    answers: Integers
    """Number of the answer, from 0."""
    reached: Booleans
    """Whether a round with a draft may have changed it by rounding: where none did, noise explains nothing."""
    surely_reached: Booleans
    """Whether one did, however late it was."""

    @classmethod
    def everywhere(cls, margins: Floats, diverged: Booleans, answers: Integers) -> Places:
        """Places that rounds with a draft have all reached."""
        reached = np.ones(len(margins), dtype=np.bool_)
        return cls(margins, diverged, answers, reached, reached)

    def up_to(self, margin: float) -> Places:
        """Those with at most this margin, with their answers' numbers as they are."""
        return self.at(self.margins <= margin)

    def at(self, chosen: Booleans | Integers) -> Places:
        """Those that are chosen, with their answers' numbers as they are."""
        return Places(
            self.margins[chosen],
            self.diverged[chosen],
            self.answers[chosen],
            self.reached[chosen],
            self.surely_reached[chosen],
        )

    @cached_property
    def count(self) -> int:
        """How many answers there are, at least."""
        return int(self.answers.max(initial=-1)) + 1


def joined(parts: Sequence[Places]) -> Places:
    """Return the places of several answers, in order."""
    every = parts or [Places.everywhere(np.zeros(0), np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64))]
    return Places(
        np.concatenate([part.margins for part in every]),
        np.concatenate([part.diverged for part in every]),
        np.concatenate([part.answers for part in every]),
        np.concatenate([part.reached for part in every]),
        np.concatenate([part.surely_reached for part in every]),
    )


@dataclass(frozen=True)
class Hazard:
    """The result of the test."""

    p: float
    flips: int
    expected: float
    """Flips that noise alone would have made."""
    statistic: float


def statistic(diverged: Booleans, chance: Floats, margins: Floats) -> Floats:
    """Return the statistic for every row; `diverged` (rows, places), `chance` the same or a row for all."""
    h = np.clip(chance, LEAST_CHANCE, 1 - LEAST_CHANCE)
    surprise = np.where(diverged, 1 / h - 1, -1.0)
    variance = np.broadcast_to((1 - h) / h, surprise.shape)
    best = np.full(len(surprise), -np.inf)
    for tau in TAUS:
        here = margins <= tau
        if here.any():
            sums, scale = surprise[:, here].sum(axis=1), np.sqrt(variance[:, here].sum(axis=1))
            best = np.maximum(best, sums / scale)
    return best


class Simulation:
    """Answers that the target alone would have given: flips drawn from its noise at given places."""

    def __init__(self, noise: Noise, places: Places, rng: Generator) -> None:
        """`places`: all with margins that the statistic includes."""
        small = noise.small
        order = np.argsort(small.answers, kind="stable")
        self._losses = small.losses[order]
        self._sizes = np.bincount(small.answers, minlength=1).astype(np.int64)
        self._starts = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        self._tail = noise.tail
        self._places = places
        self._rng = rng

    def flips(self, rows: int) -> Booleans:
        """Return (rows, places): where noise alone makes the arm diverge from the likeliest token."""
        rng, answers = self._rng, self._places.answers
        source = rng.integers(len(self._sizes), size=(rows, self._places.count))[:, answers]
        index = self._starts[source] + (rng.random((rows, len(answers))) * self._sizes[source]).astype(np.int64)
        losses = self._tail.smoothed(self._losses[index], 1 - rng.random(index.shape))
        return np.asarray(losses > self._places.margins)

    def another_tail(self) -> Tail:
        """Return the distribution of losses of another sample of answers."""
        drawn = self._rng.integers(len(self._sizes), size=len(self._sizes))
        parts = [self._losses[self._starts[answer] : self._starts[answer] + self._sizes[answer]] for answer in drawn]
        return fit_tail(np.concatenate(parts))

    def chances(self, rows: int) -> Floats:
        """Return (rows, places): the chances of a flip, each row by one of many samples of answers."""
        return self._chances[self._rng.integers(len(self._chances), size=rows)]

    @cached_property
    def _chances(self) -> Floats:
        return np.stack([self.another_tail().chance_above(self._places.margins) for _ in range(SAMPLES)])


def null_statistics(simulation: Simulation, margins: Floats, rounds: int) -> Floats:
    """Return `rounds` draws of the statistic of an arm without a fault."""
    step = max(1, CHUNK // max(1, len(margins)))
    found = []
    for start in range(0, rounds, step):
        rows = min(step, rounds - start)
        found.append(statistic(simulation.flips(rows), simulation.chances(rows), margins))
    return np.concatenate(found)


def hazard_test(noise: Noise, places: Places, *, seed: int = 1, rounds: int = SECOND_ROUND) -> Hazard:
    """Test an arm's places against the target's noise at the arm's verify width; `rounds`: most simulations.

    A divergence that no round with a draft reached is one that noise cannot have made.
    """
    reached = places.at(places.reached)
    chance = noise.tail.chance_above(reached.margins)
    flips, expected = int(places.diverged.sum()), float(chance.sum())
    if places.diverged[~places.reached].any():
        return Hazard(0.0, flips, expected, float("inf"))
    near = reached.up_to(max(TAUS))
    if not near.diverged.any():
        return Hazard(1.0, flips, expected, float("-inf"))
    own = noise.tail.chance_above(near.margins)
    observed = float(statistic(near.diverged[np.newaxis], own[np.newaxis], near.margins)[0])
    if noise.silent:
        return Hazard(0.0, flips, expected, observed)
    simulation = Simulation(noise, near, np.random.default_rng(seed))
    null = null_statistics(simulation, near.margins, FIRST_ROUND)
    if (null >= observed).sum() < 0.03 * FIRST_ROUND:
        null = np.concatenate([null, null_statistics(simulation, near.margins, rounds - FIRST_ROUND)])
    return Hazard((1 + int((null >= observed).sum())) / (1 + len(null)), flips, expected, observed)
