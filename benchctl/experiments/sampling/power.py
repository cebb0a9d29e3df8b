"""What a check of a distribution would have detected: without it, "no difference found" means little.

Computed from the baseline's own answers, the numbers of answers and the level that each test is held to, which is the
strictest that Holm's method can require. Both figures are for a difference that is detected nine times in ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.experiments.sampling.permutation import prefix_lengths, score

if TYPE_CHECKING:
    from benchctl.experiments.sampling.permutation import Scores, Tokens

POWER = 0.9
_DRAWS = 400
_STEPS = 9
"""Halvings of the interval from 0 to `LARGEST`: to within 0.001."""
LARGEST = 0.5
"""A larger shift than this is not simulated: a check that does not detect it is blind."""


def visible_shifts(baseline: Sequence[Tokens], answers: int, level: float, *, seed: int = 0) -> dict[int, float | None]:
    """Return the smallest total variation that is detected, by prefix length; `None` for none up to `LARGEST`.

    `baseline`: the target's answers, a prompt an array (answers x tokens); `answers`: how many of an arm's are compared
    with each. The shift is of the same size in every prompt and spread at random over its prefixes: half of the
    mass grows at the cost of the other (Paninski, *A coincidence-based test for uniformity*, 2008), which is hard to
    detect; a shift that falls on few prefixes is detected earlier. Prefixes that came once stand for the many that did
    not come: their mass shifts, too, and cannot be detected. Where all answers begin alike, the shift goes to another
    prefix. Simulated, with the test's permutations replaced by the gamma distribution of their mean and variance.
    """
    found: dict[int, float | None] = {}
    for length in prefix_lengths(baseline[0].shape[1]):
        prompts = [(_shares(rows, length), len(rows), answers) for rows in baseline]
        low, high = 0.0, LARGEST
        if _detected(prompts, LARGEST, level, np.random.default_rng([seed, length])) < POWER:
            found[length] = None
            continue
        for _ in range(_STEPS):
            middle = (low + high) / 2
            detected = _detected(prompts, middle, level, np.random.default_rng([seed, length])) >= POWER
            low, high = (low, middle) if detected else (middle, high)
        found[length] = high
    return found


def visible_sharpening(baseline: Sequence[Tokens], answers: int, level: float) -> float | None:
    """Return the smallest relative change of the temperature that is detected; `None` for none up to 1.

    0.1 stands for a temperature ten per cent lower or higher. Where p becomes p^(1 + x), the mean score of an arm moves
    by x times the score's variance; the test sees it from x = (z(level / 2) + z(1 - power)) / sqrt(information) on.
    """
    from scipy.stats import norm

    information = 0.0
    for rows in baseline:
        information += len(rows) * answers / (len(rows) + answers) * float(np.var(score(rows)))
    if information == 0.0:
        return None
    change = float((norm.isf(level / 2) + norm.isf(1 - POWER)) / np.sqrt(information))
    return change if change <= 1.0 else None


def _shares(rows: Tokens, length: int) -> Scores:
    """Return the shares of the prefixes that came more than once; what lacks to 1 is of those that did not."""
    counts = np.unique(rows[:, :length], axis=0, return_counts=True)[1]
    return np.asarray(counts[counts > 1] / len(rows), dtype=np.float64)


def _detected(
    prompts: Sequence[tuple[Scores, int, int]], shift: float, level: float, rng: np.random.Generator
) -> float:
    """Return the share of simulated checks that find the shift; a prompt is (shares, answers of both sides)."""
    from scipy.stats import gamma

    statistic, mean, variance = np.zeros(_DRAWS), np.zeros(_DRAWS), np.zeros(_DRAWS)
    for share, theirs, ours in prompts:
        rest = max(0.0, 1.0 - float(share.sum()))
        before = np.append(share, [0.0, rest])
        target_counts = rng.multinomial(theirs, before / before.sum(), size=_DRAWS)
        arm_counts = rng.multinomial(ours, _shifted(share, rest, shift, rng))
        r = ours / (theirs + ours)
        pooled = (target_counts + arm_counts)[:, :-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            terms = (arm_counts[:, :-1] - pooled * r) ** 2 / (pooled * r * (1 - r))
        once = arm_counts[:, -1] * (1 - r) / r + target_counts[:, -1] * r / (1 - r)
        statistic += np.where(pooled > 0, terms, 0.0).sum(axis=1) + once
        moments = _permuted(pooled, (target_counts + arm_counts)[:, -1], theirs, ours)
        mean, variance = mean + moments[0], variance + moments[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        p = gamma.sf(statistic, mean**2 / variance, scale=variance / mean)
    return float((np.where(variance > 0, p, 1.0) <= level).mean())


def _permuted(pooled: Tokens, once: Tokens, theirs: int, ours: int) -> tuple[Scores, Scores]:
    """Return mean and variance of chi-square under permutation: Haldane (1940), as in Dawson (1954), two rows.

    `pooled`: draws x prefixes; `once`: further prefixes with a single answer.
    """
    n = theirs + ours
    columns = (pooled > 0).sum(axis=1) + once
    with np.errstate(divide="ignore"):
        inverse = np.where(pooled > 0, 1 / pooled, 0.0).sum(axis=1) + once
    v_rows, v_columns = (n - 2) / (n - 1), (columns - 1) * (n - columns) / (n - 1)
    w_rows = (n * (1 / theirs + 1 / ours) - 4) / (n - 2)
    w_columns = (n * inverse - columns**2) / (n - 2)
    mean = (columns - 1) * n / (n - 1)
    variance = 2 * n / (n - 3) * (v_rows - w_rows) * (v_columns - w_columns) + n**2 / (n - 1) * w_rows * w_columns
    return np.asarray(mean, dtype=np.float64), np.clip(variance, 0.0, None)


def _shifted(share: Scores, rest: float, shift: float, rng: np.random.Generator) -> Scores:
    """Return `_DRAWS` distributions over the prefixes, another and the rest, each `shift` away in total variation."""
    up = rng.random((_DRAWS, len(share))) < 0.5
    rising = (up * share).sum(axis=1) + rest / 2
    too_little = 1 - rising < shift  # what falls must have that much to lose: exchange the sides
    up[too_little] = ~up[too_little]
    rising = ((up * share).sum(axis=1) + rest / 2)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        known = share * np.where(up, 1 + shift / rising, 1 - shift / (1 - rising))
        tail = np.where(rest > 0, rest / 2 * (1 + shift / rising) + rest / 2 * (1 - shift / (1 - rising)), 0.0)
    known = np.clip(known, 0.0, None)
    other = np.clip(1 - known.sum(axis=1, keepdims=True) - tail, 0.0, None)
    after = np.hstack([known, other, tail])
    shifted: Scores = after / after.sum(axis=1, keepdims=True)
    return shifted
