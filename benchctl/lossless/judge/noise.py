"""How far the target's own noise changes its margins, and the test of an arm against it.

A *loss* is by how much a margin (the likeliest token over its best rival, in nats) shrinks when the target reads
several tokens at once instead of each alone. A token flips where the loss exceeds the margin.

The hazard test: does an arm diverge from its target's likeliest token more often, or elsewhere, than by noise?
At place t of an arm's own answer the target alone has the margin m_t, and X_t is 1 where the arm's token is not the
target's likeliest. Without a fault X_t is 1 with the chance h_t = P(loss > m_t). The statistic is

    max over tau of  sum over m_t <= tau of (X_t - h_t) / h_t  /  sqrt(sum (1 - h_t) / h_t)

which weighs a flip by how unlikely it was. Its distribution is simulated: losses are drawn by answer, since those of
an answer are alike, and h_t is estimated again each time from answers drawn with replacement, since it is an estimate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.random import Generator
    from numpy.typing import NDArray

    from benchctl.data.scores import AnswerKey, TargetScores

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

SMALL_MARGIN = 1.0
"""Nats: noise is estimated at margins up to this, where tokens flip; at surer places it is another, often larger."""
FEWEST_SMALL = 40
"""Where fewer prefixes have so small a margin, so many of the smallest margins are taken."""
TAIL_SHARE = 0.05
FEWEST_IN_TAIL = 10
"""The largest losses, by which the tail beyond them is fitted: a share of all, and no fewer than this."""
GRID = 4_000
"""Margins at which the tail is added up."""
TAUS = (0.05, 0.1, 0.2, 0.4)
"""Nats: the widest margins of the places that each sum is over."""
LEAST_CHANCE = 0.01
"""Smaller chances are set to this: else the rarest places, which hardly any fault reaches, would dominate."""
FIRST_ROUND, SECOND_ROUND = 1_000, 19_999
"""Simulations; the second number only where the first could be significant."""
SAMPLES = 1_000
"""Samples of answers, drawn once for a noise, that chances are estimated from; simulations choose among them."""
CHUNK = 2_000_000
"""Numbers that are simulated at a time."""


@dataclass(frozen=True)
class Tail:
    """The distribution of losses: as measured up to `start`, exponential beyond it.

    The tail is the predictive distribution of an exponential whose mean is estimated from k exceedances,
    P(excess > x) = (1 + x / (k · mean))^-k, so that a small sample promises less than a large sample.
    """

    ordered: Floats
    """Every loss, ascending; negative where the margin grew."""
    start: float
    exceedances: int
    mean_excess: float

    def chance_above(self, margins: Floats) -> Floats:
        """Return P(loss > margin) for margins of any shape: the chance that a token with this margin flips."""
        count = len(self.ordered)
        above = count - np.searchsorted(self.ordered, margins, side="right")
        chance: Floats = above / max(1, count)
        if self.exceedances:
            excess = np.maximum(margins - self.start, 0.0)
            share = self.exceedances / count
            beyond = share * (1 + excess / (self.exceedances * self.mean_excess)) ** -self.exceedances
            chance = np.where(margins >= self.start, beyond, chance)
        return np.asarray(chance, dtype=np.float64)

    def smoothed(self, losses: Floats, uniforms: Floats) -> Floats:
        """Return drawn losses with those of the tail drawn from the fitted tail; `uniforms`: in (0, 1], as many."""
        if not self.exceedances:
            return losses
        size = self.exceedances
        drawn = self.start + size * self.mean_excess * (uniforms ** (-1 / size) - 1)
        return np.where(losses > self.start, drawn, losses)


def fit_tail(losses: Floats) -> Tail:
    """Fit the distribution of losses. Where next to none is above 0, gains count as losses: noise has no side."""
    ordered = np.sort(losses)
    if (ordered > 0).sum() < FEWEST_IN_TAIL:
        size = np.abs(ordered)
        ordered = np.sort(np.concatenate([size, -size]))
    positive = int((ordered > 0).sum())
    size_of_tail = min(positive, max(FEWEST_IN_TAIL, round(TAIL_SHARE * len(ordered))))
    if not size_of_tail:
        return Tail(ordered, 0.0, 0, 0.0)
    smaller = ordered[:-size_of_tail][ordered[:-size_of_tail] < ordered[-size_of_tail]]  # several may be alike
    start = max(0.0, float(smaller[-1])) if len(smaller) else 0.0
    excess = ordered[ordered > start] - start
    return Tail(ordered, start, len(excess), float(excess.mean()))


@dataclass(frozen=True)
class Noise:
    """Losses measured where the target alone read the same prefix in two shapes. Arrays of an entry a prefix."""

    margins: Floats
    losses: Floats
    answers: Integers
    """Number of the answer that each prefix is of, from 0."""

    @classmethod
    def of(cls, rows: Sequence[tuple[float, float, int]]) -> Noise:
        """Make it of a (margin, loss, answer) for every prefix."""
        table: Floats = np.array(rows, dtype=np.float64).reshape(-1, 3)
        return cls(table[:, 0], table[:, 1], table[:, 2].astype(np.int64))

    @cached_property
    def small(self) -> Noise:
        """Those at small margins."""
        fewest = np.sort(self.margins)[:FEWEST_SMALL]
        limit = max(SMALL_MARGIN, float(fewest.max(initial=0.0)))
        mask = self.margins <= limit
        _, answers = np.unique(self.answers[mask], return_inverse=True)
        return Noise(self.margins[mask], self.losses[mask], answers.astype(np.int64))

    @cached_property
    def tail(self) -> Tail:
        """The distribution of the losses at small margins."""
        return fit_tail(self.small.losses)

    @cached_property
    def by_answer(self) -> list[Floats]:
        """The losses at small margins of each answer that has any."""
        order = np.argsort(self.small.answers, kind="stable")
        return np.split(self.small.losses[order], np.cumsum(np.bincount(self.small.answers))[:-1])

    @cached_property
    def resampled_tails(self) -> list[Tail]:
        """The distributions of losses of `SAMPLES` samples of answers, drawn with replacement."""
        drawn = np.random.default_rng(1).integers(len(self.by_answer), size=(SAMPLES, len(self.by_answer)))
        return [fit_tail(np.concatenate([self.by_answer[answer] for answer in sample])) for sample in drawn]

    @property
    def silent(self) -> bool:
        """Whether nothing changed at any prefix: the engine reproduces itself bit for bit at this width."""
        return bool((self.losses == 0).all())

    def floor_of(self, tokens: int, level: float) -> float:
        """Return the margin beyond which noise flips any of so many tokens with a chance of `level`.

        For places whose margins are not known: near a tie they are taken to be as dense as these, and evenly spread.
        """
        if self.silent:
            return 0.0
        share = (int((self.margins <= SMALL_MARGIN).sum()) + 1) / (len(self.margins) + 1) / SMALL_MARGIN
        scale = self.tail.mean_excess
        grid = np.geomspace(scale / 1000, self.tail.start + 1000 * scale, GRID)
        chance = self.tail.chance_above(grid)
        slices = np.diff(grid) * (chance[1:] + chance[:-1]) / 2
        beyond = tokens * share * np.append(np.cumsum(slices[::-1])[::-1], 0.0)  # expected flips above each
        return float(grid[np.argmax(beyond <= level)])

    def floor(self, places: Floats, level: float) -> float:
        """Return the margin beyond which noise flips any token of an answer's places with a chance of `level`.

        `places`: the margins of all places at which it might. 0 where nothing ever changed.
        """
        if self.silent or not len(places):
            return 0.0
        ordered = np.sort(places)[::-1]
        expected = np.cumsum(self.tail.chance_above(ordered))  # flips at margins no smaller than each
        reached = int(np.searchsorted(expected, level))
        return float(ordered[reached]) if reached < len(ordered) else 0.0


def noise_of(scores: TargetScores | None, widths: Sequence[int], slots: int = 1) -> Noise:
    """Return how margins moved at these widths, in batches of so many requests; without any, there is no noise."""
    chosen = {0} if scores and scores.shape == "prefill" else set(widths)
    scored = {answer.answer: answer for answer in scores.answers} if scores else {}
    numbers: dict[AnswerKey, int] = {}
    rows: list[tuple[float, float, int]] = []
    for read in scores.passes if scores else ():
        if read.width in chosen and read.slots == slots and read.answer in scored:
            margins, number = scored[read.answer].margins, numbers.setdefault(read.answer, len(numbers))
            rows += [(margins[index], loss, number) for index, loss in zip(read.places, read.losses, strict=True)]
    return Noise.of(rows)


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
    """Whether a round did, however late it was."""

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
        return Places(*(getattr(self, column.name)[chosen] for column in fields(self)))

    @cached_property
    def count(self) -> int:
        """How many answers there are, at least."""
        return int(self.answers.max(initial=-1)) + 1


def joined(parts: Sequence[Places]) -> Places:
    """Return the places of several answers, in order."""
    nonempty = parts or [Places.everywhere(np.zeros(0), np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64))]
    return Places(*(np.concatenate([getattr(part, column.name) for part in nonempty]) for column in fields(Places)))


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
        mask = margins <= tau
        if mask.any():
            sums, scale = surprise[:, mask].sum(axis=1), np.sqrt(variance[:, mask].sum(axis=1))
            best = np.maximum(best, sums / scale)
    return best


class Simulation:
    """Answers that the target alone would have given: flips drawn from its noise at given places."""

    def __init__(self, noise: Noise, places: Places, rng: Generator) -> None:
        """`places`: all with margins that the statistic includes."""
        self._noise = noise
        self._losses = np.concatenate(noise.by_answer)
        self._sizes = np.array([len(losses) for losses in noise.by_answer])
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._places = places
        self._rng = rng

    def flips(self, rows: int) -> Booleans:
        """Return (rows, places): where noise alone makes the arm diverge from the likeliest token."""
        rng, answers = self._rng, self._places.answers
        source = rng.integers(len(self._sizes), size=(rows, self._places.count))[:, answers]
        index = self._starts[source] + (rng.random((rows, len(answers))) * self._sizes[source]).astype(np.int64)
        losses = self._noise.tail.smoothed(self._losses[index], 1 - rng.random(index.shape))
        return np.asarray(losses > self._places.margins)

    def chances(self, rows: int) -> Floats:
        """Return (rows, places): the chances of a flip, each row by any of many samples of answers."""
        return self._chances[self._rng.integers(len(self._chances), size=rows)]

    @cached_property
    def _chances(self) -> Floats:
        margins, index = np.unique(self._places.margins, return_inverse=True)
        return np.stack([tail.chance_above(margins) for tail in self._noise.resampled_tails])[:, index]


def null_statistics(simulation: Simulation, margins: Floats, rounds: int) -> Floats:
    """Return `rounds` draws of the statistic of an arm without a fault."""
    step = max(1, CHUNK // max(1, len(margins)))
    statistics = []
    for start in range(0, rounds, step):
        rows = min(step, rounds - start)
        statistics.append(statistic(simulation.flips(rows), simulation.chances(rows), margins))
    return np.concatenate(statistics)


def hazard_test(noise: Noise, places: Places, *, seed: int = 1, rounds: int = SECOND_ROUND) -> Hazard:
    """Test an arm's places against the target's noise at the arm's verify width; `rounds`: most simulations.

    A divergence that no round with a draft reached noise cannot have made.
    """
    reached = places.at(places.reached)
    chance = noise.tail.chance_above(reached.margins)
    flips, expected = int(places.diverged.sum()), float(chance.sum())
    if places.diverged[~places.reached].any():
        return Hazard(0.0, flips, expected, float("inf"))
    near = reached.up_to(max(TAUS))
    if not near.diverged.any():
        return Hazard(1.0, flips, expected, float("-inf"))
    chances = noise.tail.chance_above(near.margins)
    observed = float(statistic(near.diverged[np.newaxis], chances[np.newaxis], near.margins)[0])
    if noise.silent:
        return Hazard(0.0, flips, expected, observed)
    simulation = Simulation(noise, near, np.random.default_rng(seed))
    null = null_statistics(simulation, near.margins, FIRST_ROUND)
    if (null >= observed).sum() < 0.03 * FIRST_ROUND:
        null = np.concatenate([null, null_statistics(simulation, near.margins, rounds - FIRST_ROUND)])
    return Hazard((1 + int((null >= observed).sum())) / (1 + len(null)), flips, expected, observed)
