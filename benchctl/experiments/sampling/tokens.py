"""Sampled tokens against the target's own distribution there: sums that are 0 on average for a correct sampler.

At every place of an answer the target's own distribution, after the sampler's settings, gives each token a weight w.
For a function g of the token, g(x) - sum(w g) has mean 0 and a known variance, whatever came before; so the sum over
all places is a martingale whose variance and third moment are known, too. Its p-value is that of the Pearson type III
distribution with these moments, or of Freedman's inequality (1975) where the variance is that of few tokens:

    p = 2 exp(-s^2 / (2 (V + b s / 3)))      s: the sum's size, V: its variance, b: the largest step

- `temperature`: g = log w, cut off at `CUT`. The score test for a sampler that is too bold or too timid.
- `nucleus`: g = 1 beyond the likeliest 90 % of the mass. Falls short where a nucleus is applied that was not requested.
- `draft`: g = min(1, q / w) with the draft's distribution q. The best direction for a rejected token that is drawn from
  the target's distribution in place of norm(max(0, p - q)), or a draft token that is accepted too often.
- `draft's likeliest`: g = 1 for the token that the draft expects first, for drafts that are not sampled.

Only the likeliest tokens are reported. Given that a token is among those that the sampler surely keeps, its
distribution is theirs, whatever the rest is; the others are counted (`far tokens`) and compared with the baseline's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.result import Result
from benchctl.experiments.sampling.stored import TermSum

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchctl.experiments.sampling.stored import TokenScores

    Floats = NDArray[np.float64]

TEMPERATURE, NUCLEUS, DRAFT, DRAFT_FIRST, FAR = "temperature", "nucleus", "draft", "draft's likeliest", "far tokens"
TERMS = (TEMPERATURE, NUCLEUS, DRAFT, DRAFT_FIRST)
CUT = 6.0
"""Nats below the mean at which log w is cut off: the sum's largest step."""
STEP = {TEMPERATURE: CUT, NUCLEUS: 1.0, DRAFT: 1.0, DRAFT_FIRST: 1.0}
FEW = 5.0
"""A variance below so many times the largest step is that of too few tokens for a distribution of the sum."""
LIKELIEST = 0.9
SLACK = 0.02
"""Of the mass at the edge of a nucleus: which tokens there are in it depends on rounding."""
OFTEN = 1.2816
"""The normal quantile of nine times in ten."""
IN_ROUNDS = 0.5
"""Share of the tokens that a round's rejection rule decided, at least: with a draft token per round every second."""


class TokenPower(Result):
    """What the tests of single tokens would have detected."""

    tokens: int
    """That were scored on the target alone."""
    temperature: float | None
    """The smallest relative change of the temperature that is found nine times in ten; `None`: none up to 1."""
    nucleus: float | None
    """The smallest share, of the mass beyond the likeliest 90 %, whose loss is found nine times in ten."""
    residual: float | None
    """The power against rejected tokens drawn from the target's distribution; `None` without a draft."""


@dataclass(frozen=True)
class Sampler:
    """The settings that turn the target's probabilities into the sampler's."""

    temperature: float
    top_k: int
    top_p: float
    truncates_first: bool
    """Whether top-k and top-p are taken of the distribution before the temperature, not after it."""


def weights(logprobs: Mapping[int, float], sampler: Sampler) -> tuple[dict[int, float], set[int]]:
    """Return the weights of the tokens that the sampler surely keeps, and the reported ones that it surely drops.

    `logprobs`: the likeliest tokens, likeliest first, in nats.
    """
    ids, logs = np.array(list(logprobs)), np.array(list(logprobs.values()))
    heated = np.exp((logs - logs.max()) / sampler.temperature)
    shares = np.exp(logs) if sampler.truncates_first else heated / heated.sum()
    mass = shares[: sampler.top_k].sum() if sampler.top_k else 1.0
    before = (np.cumsum(shares) - shares) / mass
    nucleus = sampler.top_p if sampler.top_p < 1 else math.inf
    dropped = (before > nucleus + SLACK) | (np.arange(len(ids)) >= (sampler.top_k or len(ids)))
    sure = ~dropped & (before < nucleus - SLACK)
    renormalized = heated[sure] / heated[sure].sum()
    return dict(zip(ids[sure].tolist(), renormalized.tolist(), strict=True)), set(ids[dropped].tolist())


def terms(
    token: int, target: Mapping[int, float], draft: Mapping[int, float] | None, sampler: Sampler
) -> dict[str, TermSum]:
    """Return what a token, of those that the sampler surely keeps, adds to every sum."""
    weight_of, _ = weights(target, sampler)
    ids, w = list(weight_of), np.array(list(weight_of.values()))
    logs = np.log(np.maximum(w, np.finfo(float).tiny))
    functions = {TEMPERATURE: np.maximum(logs, w @ logs - CUT), NUCLEUS: np.cumsum(w) - w >= LIKELIEST}
    if draft:
        expected, first = weights(draft, sampler)[0], next(iter(draft))
        q = np.array([expected.get(candidate, 0.0) for candidate in ids])
        functions[DRAFT] = np.minimum(1.0, np.divide(q, w, out=np.zeros_like(w), where=w > 0))
        functions[DRAFT_FIRST] = np.array([candidate == first for candidate in ids])
    return {name: _term(g.astype(float), w, ids.index(token)) for name, g in functions.items()}


def _term(g: Floats, w: Floats, index: int) -> TermSum:
    expected = float(w @ g)
    centred = g - expected
    return TermSum(
        excess=float(centred[index]), variance=float(w @ centred**2), third=float(w @ centred**3), expected=expected
    )


def summed(parts: Iterable[TermSum]) -> TermSum | None:
    """Return several terms together; `None` for none."""
    terms_summed = list(parts)
    fields = {field: sum(getattr(part, field) for part in terms_summed) for field in TermSum.model_fields}
    return TermSum(**fields) if terms_summed else None


def added(answers: Sequence[TokenScores], name: str) -> TermSum | None:
    """Return a sum over several answers; `None` where none has it."""
    return summed(answer.sums[name] for answer in answers if name in answer.sums)


def p_of(total: TermSum, name: str) -> float:
    """Return the two-sided p-value of a sum."""
    from scipy.stats import pearson3

    size = abs(total.excess)
    if size == 0:
        return 1.0
    if total.variance < FEW * STEP[name]:
        return min(1.0, 2 * math.exp(-(size**2) / (2 * (total.variance + STEP[name] * size / 3))))
    skew, z = total.third / total.variance**1.5, total.excess / math.sqrt(total.variance)
    one_side = pearson3.sf(z, skew) if z > 0 else pearson3.cdf(z, skew)
    return min(1.0, 2 * float(one_side))


def token_tests(arm: Sequence[TokenScores], baseline: Sequence[TokenScores]) -> dict[str, float]:
    """Return the p-value of every token-level test of an arm."""
    from scipy.stats import fisher_exact

    p_by_test = {name: p_of(total, name) for name in TERMS if (total := added(arm, name)) is not None}
    table = []
    for answers in (arm, baseline):
        far = sum(answer.far for answer in answers)
        table.append([far, sum(answer.tokens for answer in answers) - far])
    return p_by_test | {FAR: float(fisher_exact(table, alternative="greater").pvalue)}


def token_power(arm: Sequence[TokenScores], level: float) -> TokenPower:
    """Return the power of the tests of an arm's tokens, each at `level`."""
    heat, tail, draft = (added(arm, name) for name in (TEMPERATURE, NUCLEUS, DRAFT))
    return TokenPower(
        tokens=sum(answer.tokens for answer in arm),
        temperature=_visible(heat, TEMPERATURE, level, heat.variance if heat else 0.0),
        nucleus=_visible(tail, NUCLEUS, level, tail.expected if tail else 0.0),
        residual=_chance(draft, level),
    )


def critical(total: TermSum, name: str, level: float) -> float:
    """Return the size from which a sum is significant, on its harder side."""
    from scipy.stats import pearson3

    if total.variance < FEW * STEP[name]:
        log, step = math.log(2 / level), STEP[name]
        return log * step / 3 + math.sqrt((log * step / 3) ** 2 + 2 * log * total.variance)
    skew = abs(total.third / total.variance**1.5)
    return float(pearson3.isf(level / 2, skew)) * math.sqrt(total.variance)


def _visible(total: TermSum | None, name: str, level: float, moved: float) -> float | None:
    """Return the smallest relative change that is detected nine times in ten; 1 moves the sum by `moved`."""
    if total is None or moved <= 0:
        return None
    change = (critical(total, name, level) + OFTEN * math.sqrt(total.variance)) / moved
    return change if change <= 1 else None


def _chance(total: TermSum | None, level: float) -> float | None:
    """Return the power against a residual drawn from the target: it moves a token, on average, by its variance."""
    if total is None or total.variance <= 0:
        return None
    excess = IN_ROUNDS * total.variance - critical(total, DRAFT, level)
    return 0.5 * math.erfc(-excess / math.sqrt(2 * total.variance))
