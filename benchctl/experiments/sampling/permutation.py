"""Two samples of answers, statistic by statistic: could both have come from the same distribution?

A permutation test: under the hypothesis that an arm samples exactly as the baseline does, which of a prompt's answers
are the arm's is arbitrary, so every relabelling within the prompt is as likely as what was observed. That is exact for
any statistic, needs no model of the text, and takes the dependence between the tokens of an answer as it is.

Statistics, each summed over the prompts:

- `first m tokens`: chi-square over the answers' prefixes of m tokens. With equal numbers of answers and the pooled
  counts held fixed, as a permutation does, it ranks as the statistic of Chan, Diakonikolas, Valiant & Valiant,
  *Optimal algorithms for testing closeness of discrete distributions* (2014): prefixes that came only once, most of
  them in long prefixes, neither help nor hurt.
- `tokens by position`: chi-square over (position, token), the first position left out. It sees shifts deep in answers
  whose prefixes no longer coincide.
- `sharpness`: how likely an arm's tokens are among all answers that began alike, compared with the mean; the score
  test for a wrong temperature, and the most sensitive for any sampler that is too bold or too timid.

The first token after a prompt comes from prefill and is never speculated: `first 1 token` is a control, which only a
wrong sampler setting or a wrong prompt fails.

`visible_shifts` and `visible_sharpening`: what a check would have detected nine times in ten, from the baseline's own
answers, the numbers of answers and the strictest level that Holm's method can require.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Tokens = NDArray[np.int64]
    Scores = NDArray[np.float64]

END = -1
"""Fills an answer that ended before the token limit; a token like any other, so that lengths are compared, too."""

POSITIONS, SHARPNESS = "tokens by position", "sharpness"
FEW = 20
"""Answers that must have begun alike before the tokens that follow show how sharp a sampler is."""
FIRST_BATCH = 1_000
"""Permutations after which a test without any sign of a difference ends."""


@dataclass(frozen=True)
class PromptSamples:
    """The answers to a prompt, an answer per row, all of equal length: filled up with `END`."""

    baseline: Tokens
    arm: Tokens


def prefix_lengths(tokens: int) -> list[int]:
    """Return the prefixes that are compared in answers of at most `tokens` tokens: 1, 2, 4, … and the whole."""
    return [m for m in (1, 2, 4, 8, 16, 32, 64) if m < tokens] + [tokens]


def names_of_tests(tokens: int) -> list[str]:
    """Return the names of the tests in the order of their p-values."""
    return [prefix_name(m) for m in prefix_lengths(tokens)] + [POSITIONS, SHARPNESS]


def prefix_name(length: int) -> str:
    """Such as `first 4 tokens`."""
    return f"first {length} token{'' if length == 1 else 's'}"


def p_values(samples: Sequence[PromptSamples], resamples: int, *, seed: int = 0) -> list[float]:
    """Return the permutation p-value of every test of `names_of_tests`, at least 1 / (1 + resamples).

    Ends after `FIRST_BATCH` permutations when no test can become significant any more.
    """
    rng = np.random.default_rng(seed)
    prompts = [_Features(prompt) for prompt in samples]
    observed = sum((prompt.statistics(prompt.labels[:, None]) for prompt in prompts), np.zeros(1))
    as_extreme = np.zeros(len(observed))
    done = 0
    while done < resamples:
        size = min(FIRST_BATCH, resamples - done)
        drawn = sum((prompt.statistics(prompt.shuffled(rng, size)) for prompt in prompts), np.zeros(1))
        as_extreme += (drawn >= observed * (1 - 1e-9) - 1e-9).sum(axis=1)
        done += size
        if (as_extreme >= done * 0.05 + 5).all():
            break  # p is above 5 % for every test, and there is no level above that
    p: list[float] = ((1 + as_extreme) / (1 + done)).tolist()
    return p


def score(rows: Tokens) -> Scores:
    """Return for each answer how likely its tokens are among those that began alike, centred on 0.

    The sum over positions of log p(token | the tokens before it) plus that distribution's entropy, with p the shares
    among all `rows`; positions that fewer than `FEW` answers reached alike count 0. In units of nats.
    """
    follow: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    answers = [tuple(row) for row in rows.tolist()]
    for answer in answers:
        for index, token in enumerate(answer):
            follow[answer[:index]][token] += 1
    surprise: dict[tuple[int, ...], dict[int, float]] = {}
    for before, counts in follow.items():
        total = sum(counts.values())
        if total >= FEW and len(counts) > 1:
            logs = {token: float(np.log(count / total)) for token, count in counts.items()}
            mean = sum(counts[token] * log for token, log in logs.items()) / total
            surprise[before] = {token: log - mean for token, log in logs.items()}
    return np.array(
        [
            sum(surprise[answer[:index]][token] for index, token in enumerate(answer) if answer[:index] in surprise)
            for answer in answers
        ],
        dtype=np.float64,
    )


class _Features:
    """What the statistics of a prompt are computed from; only the labels change between permutations."""

    def __init__(self, samples: PromptSamples) -> None:
        from scipy.sparse import csr_array

        rows = np.concatenate([samples.baseline, samples.arm])
        tokens = rows.shape[1]
        positions = [rows[:, [index]] for index in range(min(1, tokens - 1), tokens)]
        codes: list[Tokens] = []
        starts: list[int] = []
        size = 0
        for test in [*([rows[:, :length]] for length in prefix_lengths(tokens)), positions]:
            starts.append(size)
            for columns in test:
                codes.append(size + np.unique(columns, axis=0, return_inverse=True)[1].reshape(-1))
                size = int(codes[-1].max()) + 1
        places = np.concatenate(codes), np.tile(np.arange(len(rows)), len(codes))
        self.labels = np.repeat([0.0, 1.0], [len(samples.baseline), len(samples.arm)])
        """1 for the arm's answers, 0 for the baseline's."""
        self._categories: Any = csr_array((np.ones(len(places[0])), places), shape=(size, len(rows)))
        """Categories x answers: 1 where the answer falls into the category. Those of a test are adjacent."""
        self._starts = starts
        self._scores = score(rows)

    def shuffled(self, rng: np.random.Generator, size: int) -> Scores:
        return rng.permuted(np.tile(self.labels[:, None], (1, size)), axis=0)

    def statistics(self, labels: Scores) -> Scores:
        """Return tests x permutations."""
        share = float(self.labels.mean())
        expected = (self._categories.sum(axis=1) * share)[:, None]
        terms = (self._categories @ labels - expected) ** 2 / (expected * (1 - share))
        return np.vstack([np.add.reduceat(terms, self._starts, axis=0), np.abs(self._scores @ labels)])


POWER = 0.9
_DRAWS = 400
_STEP = 2.0**-10
"""Shifts are found to within this."""
LARGEST = 0.5
"""A larger shift than this is not simulated: a check that does not detect it is blind."""


def visible_shifts(baseline: Sequence[Tokens], answers: int, level: float) -> dict[int, float | None]:
    """Return the smallest total variation that is detected, by prefix length; `None` for none up to `LARGEST`.

    `baseline`: the target's answers, a prompt an array (answers x tokens); `answers`: how many of an arm's are compared
    with each. The shift is of the same size in every prompt and spread at random over its prefixes: half of the
    mass grows at the cost of the other (Paninski, *A coincidence-based test for uniformity*, 2008), which is hard to
    detect; a shift that falls on few prefixes is detected earlier. Prefixes that came once stand for the many that did
    not come: their mass shifts, too, and cannot be detected. Where all answers begin alike, the shift goes to another
    prefix. Simulated, with the test's permutations replaced by the gamma distribution of their mean and variance.
    """

    def seen(length: int, step: int) -> bool:
        prompts = [(_shares(rows, length), len(rows), answers) for rows in baseline]
        return _detected(prompts, step * _STEP, level, np.random.default_rng([0, length])) >= POWER

    def smallest(length: int) -> float | None:
        last = round(LARGEST / _STEP)
        if not seen(length, last):
            return None
        return bisect_left(range(last), True, lo=1, key=partial(seen, length)) * _STEP

    return {length: smallest(length) for length in prefix_lengths(baseline[0].shape[1])}


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
        unseen = max(0.0, 1.0 - float(share.sum()))
        before = np.append(share, [0.0, unseen])
        target_counts = rng.multinomial(theirs, before / before.sum(), size=_DRAWS)
        arm_counts = rng.multinomial(ours, _shifted(share, unseen, shift, rng))
        r = ours / (theirs + ours)
        pooled = (target_counts + arm_counts)[:, :-1]
        with np.errstate(invalid="ignore", divide="ignore"):
            terms = (arm_counts[:, :-1] - pooled * r) ** 2 / (pooled * r * (1 - r))
        single = arm_counts[:, -1] * (1 - r) / r + target_counts[:, -1] * r / (1 - r)
        statistic += np.where(pooled > 0, terms, 0.0).sum(axis=1) + single
        moments = _permuted(pooled, (target_counts + arm_counts)[:, -1], theirs, ours)
        mean, variance = mean + moments[0], variance + moments[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        p = gamma.sf(statistic, mean**2 / variance, scale=variance / mean)
    return float((np.where(variance > 0, p, 1.0) <= level).mean())


def _permuted(pooled: Tokens, single: Tokens, theirs: int, ours: int) -> tuple[Scores, Scores]:
    """Return mean and variance of chi-square under permutation: Haldane (1940), as in Dawson (1954), two rows.

    `pooled`: draws x prefixes; `once`: further prefixes with a single answer.
    """
    n = theirs + ours
    columns = (pooled > 0).sum(axis=1) + single
    with np.errstate(divide="ignore"):
        inverse = np.where(pooled > 0, 1 / pooled, 0.0).sum(axis=1) + single
    v_rows, v_columns = (n - 2) / (n - 1), (columns - 1) * (n - columns) / (n - 1)
    w_rows = (n * (1 / theirs + 1 / ours) - 4) / (n - 2)
    w_columns = (n * inverse - columns**2) / (n - 2)
    mean = (columns - 1) * n / (n - 1)
    variance = 2 * n / (n - 3) * (v_rows - w_rows) * (v_columns - w_columns) + n**2 / (n - 1) * w_rows * w_columns
    return np.asarray(mean, dtype=np.float64), np.clip(variance, 0.0, None)


def _shifted(share: Scores, unseen: float, shift: float, rng: np.random.Generator) -> Scores:
    """Return `_DRAWS` distributions over the prefixes, another and the rest, each `shift` away in total variation."""
    up = rng.random((_DRAWS, len(share))) < 0.5
    rising = (up * share).sum(axis=1) + unseen / 2
    too_little = 1 - rising < shift  # what falls must have that much to lose: exchange the sides
    up[too_little] = ~up[too_little]
    rising = ((up * share).sum(axis=1) + unseen / 2)[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        weights = share * np.where(up, 1 + shift / rising, 1 - shift / (1 - rising))
        tail = np.where(unseen > 0, unseen / 2 * (1 + shift / rising) + unseen / 2 * (1 - shift / (1 - rising)), 0.0)
    weights = np.clip(weights, 0.0, None)
    rare = np.clip(1 - weights.sum(axis=1, keepdims=True) - tail, 0.0, None)
    after = np.hstack([weights, rare, tail])
    shifted: Scores = after / after.sum(axis=1, keepdims=True)
    return shifted
