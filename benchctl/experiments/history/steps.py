"""At which run of a series a speed-up changed, beyond what repeated runs of a build differ by.

Binary segmentation (Scott & Knott, Biometrics 30, 1974; Vostrikova 1981): the best split of the series is a step if its
t test holds at the level over all split points and series (Bonferroni); then both parts are split again, and every step
is tested once more between its neighbours.

The noise of a run is what its own blocks show, plus what differs from run to run. The latter is estimated from runs of
equal builds alone (DerSimonian & Laird, Control. Clin. Trials 7, 1986), so that a step between builds does not count as
noise; means are weighted by both, and their variance has the degrees of freedom of the repeated runs (Hartung & Knapp,
Stat. Med. 20, 2001), never below what the blocks themselves show. `benchmarks/history_steps.py` has the error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.statistics import MOST_SHARED, Variance

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Integers

LEVEL = 0.05
"""Share of workloads without any step that are told to have some, over all arms and split points."""
PLACES = 7.35
"""Places whose likelihood ratio, times two, is at most so far from the best hold the true place in 95 of 100 series
(Hansen, Econometrica 68, 2000, table I; with the degrees of freedom that the noise is known with, as F to chi²)."""
LEAST_VARIANCE = 1e-10
"""Of a run's logarithm: no two runs are nearer than 0.001 %."""


@dataclass(frozen=True)
class Noise:
    """How far runs of the same build lie apart."""

    between: float
    """Standard deviation of a run's logarithm from run to run, beyond what its blocks explain."""
    scale: float
    """What variances are multiplied by: more than 1 where repeated runs lie further apart than both explain."""
    freedom: int
    """Runs less builds."""

    def weights(self, variances: Floats) -> Floats:
        """Return the weight of each run."""
        return np.asarray(1 / (np.maximum(variances, LEAST_VARIANCE) + self.between**2))

    def least_t(self, claims: int) -> float:
        """Return the t that a step must have, of so many split points that are tested together."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 1 - LEVEL / (2 * claims)))


@dataclass(frozen=True)
class Split:
    """A step between two neighbouring runs of a series."""

    place: int
    """Number of the first run after it."""
    first: int
    last: int
    """A 95 % confidence set of `place`: the step may as well begin with any run from `first` to `last`."""
    size: float
    """Mean of the logarithms after it, less that before."""
    half: float
    """Half of its interval, wide enough for all split points and series."""
    p: float
    """Over all split points and series."""
    after: int
    """Runs until the next step, or the end."""


def run_variances(of_block: Sequence[Variance | None]) -> Floats:
    """Return the variance of each run's logarithm as its blocks show it; those without are left out.

    Each is shrunken towards the mean of all runs, as `shared_variances` does for arms: with two degrees of freedom it
    would be a poor weight.
    """
    known = [variance for variance in of_block if variance is not None]
    value, freedom = (np.array([getattr(variance, name) for variance in known]) for name in ("value", "freedom"))
    mean = (value * freedom).sum() / max(1, freedom.sum())
    return np.asarray((freedom * value + MOST_SHARED * mean) / (freedom + MOST_SHARED) / (freedom + 1))


def find_noise(logs: Floats, variances: Floats, builds: Integers) -> Noise | None:
    """Return the noise between runs of equal builds; `None` where no build was measured twice.

    `logs`: of each run's speed-up; `variances`: of that logarithm, as the run's blocks show it; `builds`: numbers of
    which none is left out.
    """
    freedom = len(logs) - int(builds.max(initial=-1)) - 1
    if freedom < 1:
        return None

    def squares(weights: Floats) -> float:
        means = np.bincount(builds, weights * logs) / np.bincount(builds, weights)
        return float((weights * (logs - means[builds]) ** 2).sum())

    own = np.maximum(variances, LEAST_VARIANCE)
    weights = 1 / own
    amount = weights.sum() - (np.bincount(builds, weights**2) / np.bincount(builds, weights)).sum()
    between = max(0.0, (squares(weights) - freedom) / amount)
    return Noise(between**0.5, max(1.0, squares(1 / (own + between)) / freedom), freedom)


def find_steps(logs: Floats, variances: Floats, noise: Noise, series: int = 1) -> list[Split]:
    """Return the steps of a series in the order of its runs. Arguments as `find_noise`; `series`: tested together."""
    from scipy.special import ndtri, stdtr, stdtrit

    weights = noise.weights(variances)
    total, moment = (np.concatenate([[0.0], np.cumsum(part)]) for part in (weights, weights * logs))
    claims = series * max(1, len(logs) - 1)
    least = noise.least_t(claims)

    def tested(low: int, high: int) -> tuple[Floats, Floats, Floats]:
        """Return size, its standard error and t of every split of the runs from `low` to below `high`."""
        places = np.arange(low + 1, high)
        left, right = total[places] - total[low], total[high] - total[places]
        size = (moment[high] - moment[places]) / right - (moment[places] - moment[low]) / left
        error = np.sqrt(noise.scale * (1 / left + 1 / right))
        return size, error, np.abs(size) / error

    def best(low: int, high: int) -> set[int]:
        """Return the place of the best split, if it is a step."""
        t = tested(low, high)[2]
        return {low + 1 + int(t.argmax())} if t.max(initial=0.0) > least else set()

    def split(low: int, place: int, high: int) -> Split:
        size, error, t = tested(low, high)
        own = place - low - 1
        near = np.flatnonzero(t**2 >= t[own] ** 2 - PLACES * (stdtrit(noise.freedom, 0.975) / ndtri(0.975)) ** 2)
        return Split(
            place=place,
            first=low + 1 + int(near[0]),
            last=low + 1 + int(near[-1]),
            size=float(size[own]),
            half=float(least * error[own]),
            p=min(1.0, float(2 * stdtr(noise.freedom, -t[own])) * claims),
            after=high - place,
        )

    def ends(places: set[int]) -> list[int]:
        return [0, *sorted(places), len(logs)]

    found: set[int] = set()
    while new := set[int]().union(*(best(low, high) for low, high in pairwise(ends(found)))):
        found |= new
    for _ in range(len(found)):  # until every step holds between its neighbours
        again = set[int]().union(*(best(low, high) for low, high in zip(ends(found), ends(found)[2:], strict=False)))
        if again == found:
            break
        found = again
    bounds = ends(found)
    return [split(*of_it) for of_it in zip(bounds, bounds[1:], bounds[2:], strict=False)]


def seen_at_end(variances: Floats, noise: Noise, latest: int, series: int = 1, power: float = 0.8) -> float:
    """Return the size, as a logarithm, of a step before the `latest` runs that is found with this probability."""
    from scipy.special import nctdtrinc

    weights = noise.weights(variances)
    least = noise.least_t(series * max(1, len(variances) - 1))
    error = (noise.scale * (1 / weights[:-latest].sum() + 1 / weights[-latest:].sum())) ** 0.5
    return float(nctdtrinc(noise.freedom, 1 - power, least) * error)
