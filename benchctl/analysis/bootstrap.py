"""The between-run interval of a pooled speed-up: a bootstrap over blocks, then over the prompts within each.

A resample draws as many blocks as there are, with replacement, and for every drawn block its prompts with
replacement, within each task, since the mix of tasks is fixed by the recipe (Davison & Hinkley 1997, section 3.8:
two-stage resampling of nested data). The interval is the 2.5th to the 97.5th percentile of the resampled ratios.

Three blocks can only be drawn in ten ways, and no draw goes beyond the best and the worst of them: where processes
differ by more than prompts do, the percentiles of so few hold the truth in four runs of five, not in nineteen of
twenty. The interval is therefore never narrower than Student's t on the logarithms of the blocks' own ratios.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.results import Interval

if TYPE_CHECKING:
    import numpy as np

    from benchctl.analysis.frame import Floats, Integers

RESAMPLES = 10_000
SEED = 20240607
MIN_BLOCKS = 3
"""Below three blocks nothing is said about the spread between runs."""
METHOD = f"bootstrap over blocks, then prompts ({RESAMPLES:,} resamples), at least as wide as Student's t over blocks"
EXACT_PAIRS = 512
"""Above so many pairs the prompts of a block are no longer drawn one by one: the sum of many draws is normal."""


def pooled_intervals(sums: Floats, block: Integers, task: Integers) -> tuple[Interval | None, dict[int, Interval]]:
    """Return the interval of the pooled ratio over all tasks, and that of each task.

    `sums` is (pairs, 4): tokens and seconds of the arm, tokens and seconds of the baseline; the ratio of a set of
    pairs is (Σ0 / Σ1) / (Σ2 / Σ3). `block` and `task` are (pairs,). Fewer than three blocks give no interval.
    """
    import numpy as np

    blocks = np.unique(block)
    if len(blocks) < MIN_BLOCKS:
        return None, {}
    rng = np.random.default_rng(SEED)
    drawn = rng.multinomial(len(blocks), np.full(len(blocks), 1 / len(blocks)), size=RESAMPLES)
    resample = _draw if len(sums) <= EXACT_PAIRS else _normal
    overall, every = np.zeros((RESAMPLES, 4)), np.zeros((len(blocks), 4))
    by_task = {}
    for number in np.unique(task):
        inside = task == number
        groups = [sums[inside & (block == one)] for one in blocks]
        totals = resample(groups, drawn, rng)
        measured = np.stack([group.sum(axis=0) for group in groups])
        overall += totals
        every += measured
        filled = measured[[len(group) > 0 for group in groups]]
        if len(filled) >= MIN_BLOCKS:
            by_task[int(number)] = _interval(totals, filled)
    return _interval(overall, every), by_task


def _draw(groups: list[Floats], drawn: Integers, rng: np.random.Generator) -> Floats:
    """Draw the pairs of every drawn block, with replacement; return the sums of each resample, (RESAMPLES, 4)."""
    import numpy as np

    totals = np.zeros((len(drawn), 4))
    for group, times in zip(groups, drawn.T, strict=True):
        if len(group):
            owner = np.repeat(np.arange(len(drawn)), times)
            drawn_sums = group[rng.integers(len(group), size=(len(owner), len(group)))].sum(axis=1)
            for column in range(4):
                totals[:, column] += np.bincount(owner, weights=drawn_sums[:, column], minlength=len(drawn))
    return totals


def _normal(groups: list[Floats], drawn: Integers, rng: np.random.Generator) -> Floats:
    """As `_draw`, with the sum over the pairs of a block replaced by its normal limit: linear in the pairs."""
    import numpy as np

    filled = [(group, times) for group, times in zip(groups, drawn.T, strict=True) if len(group)]
    weights = np.stack([times for _, times in filled], axis=1).astype(np.float64)
    means = weights @ np.stack([group.sum(axis=0) for group, _ in filled])
    scatter = np.stack([len(group) * np.cov(group, rowvar=False, bias=True) for group, _ in filled])
    roots = np.linalg.eigh(scatter)
    factors = roots.eigenvectors * np.sqrt(np.clip(roots.eigenvalues, 0, None))[:, np.newaxis, :]
    noise = np.zeros_like(means)
    for column, factor in enumerate(factors):
        noise += np.sqrt(weights[:, [column]]) * (rng.standard_normal((len(drawn), 4)) @ factor.T)
    return np.asarray(means + noise)


def _interval(totals: Floats, blocks: Floats) -> Interval:
    """Return the wider of both on either side; `totals` are the sums of the resamples, `blocks` those of the blocks."""
    import numpy as np
    from scipy.special import stdtrit  # Student's t without the whole of scipy.stats, which takes long to import

    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = np.nanpercentile(_ratio(totals), [2.5, 97.5])
    half = float(stdtrit(len(blocks) - 1, 0.975)) * np.log(_ratio(blocks)).std(ddof=1) / len(blocks) ** 0.5
    middle = _ratio(blocks.sum(axis=0))
    low, high = min(low, middle * np.exp(-half)), max(high, middle * np.exp(half))
    return Interval(low=float(low), high=float(high), method=METHOD)


def _ratio(sums: Floats) -> Floats:
    ratio: Floats = sums[..., 0] / sums[..., 1] / (sums[..., 2] / sums[..., 3])
    return ratio
