"""How far the target's own noise changes its margins: the distribution of losses, with a fitted tail.

A *loss* is by how much a margin (the likeliest token over its best rival, in nats) shrinks when the target reads
several tokens at once instead of one. A token flips where the loss exceeds the margin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchctl.data.audits import AnswerKey, Audit, ScoredAnswer

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

SMALL_MARGIN = 1.0
"""Nats: noise is estimated at margins up to this, where tokens flip; at surer places it is another, often larger."""
FEWEST_SMALL = 40
"""Where fewer prefixes have so small a margin, so many of the smallest margins are taken."""
TAIL_SHARE = 0.05
FEWEST_IN_TAIL = 10
"""The largest losses, by which the tail beyond them is fitted: a share of all, and no fewer than this."""
GRID = 4_000
"""Margins at which the tail is added up."""


@dataclass(frozen=True)
class Tail:
    """The distribution of losses: as measured up to `start`, exponential beyond it.

    The tail is the predictive distribution of an exponential whose mean is estimated from k exceedances,
    P(excess > x) = (1 + x / (k · mean))^-k, so that a small sample promises less than a large one.
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
        """Return drawn losses with those of the tail drawn from the fitted one; `uniforms`: in (0, 1], as many."""
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

    @cached_property
    def small(self) -> Noise:
        """Those at small margins."""
        fewest = np.sort(self.margins)[:FEWEST_SMALL]
        limit = max(SMALL_MARGIN, float(fewest.max(initial=0.0)))
        here = self.margins <= limit
        _, answers = np.unique(self.answers[here], return_inverse=True)
        return Noise(self.margins[here], self.losses[here], answers.astype(np.int64))

    @cached_property
    def tail(self) -> Tail:
        """The distribution of the losses at small margins."""
        return fit_tail(self.small.losses)

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


def noise_of(audit: Audit, scored: Mapping[AnswerKey, ScoredAnswer], widths: Sequence[int], slots: int = 1) -> Noise:
    """Return how margins moved at these widths, in batches of so many requests; without any, there is no noise."""
    chosen = {0} if audit.shape == "prefill" else set(widths)
    numbers: dict[AnswerKey, int] = {}
    margins: list[float] = []
    losses: list[float] = []
    answers: list[int] = []
    for pass_ in audit.passes:
        answer = scored.get(pass_.answer)
        if pass_.width in chosen and pass_.slots == slots and answer is not None:
            margins += [answer.margins[place] for place in pass_.places]
            losses += pass_.losses
            answers += [numbers.setdefault(pass_.answer, len(numbers))] * len(pass_.places)
    return Noise(np.array(margins), np.array(losses), np.array(answers, dtype=np.int64))
