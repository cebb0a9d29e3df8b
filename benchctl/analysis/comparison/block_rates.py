"""What two runs are compared by: the decode rate of an arm in each block, over prompts that can be chosen, and the
interval of a ratio between two runs, whose blocks have nothing in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.intervals import LEVEL, MIN_BLOCKS
from benchctl.analysis.results import Interval

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, PromptKey


class BlockRates:
    """Tokens and seconds of an arm by block and prompt, `prompts` in their order.

    Blocks that timed less than half as many prompts as the fullest are left out, so that one cell that broke off early
    does not take the prompts of the others along.
    """

    def __init__(self, frame: Frame, arm: str, prompts: list[PromptKey]) -> None:
        place = {key: number for number, key in enumerate(frame.prompts)}
        rows = frame.row_at[frame.arms.index(arm)][:, [place[key] for key in prompts]]
        tokens = np.where(rows >= 0, frame.decoded[rows], np.nan)
        seconds = np.where(rows >= 0, frame.decode_s[rows], np.nan)
        counts = np.isfinite(seconds).sum(axis=1)
        kept = counts * 2 >= max(1, int(counts.max(initial=0)))
        self.tokens: Floats = tokens[kept]
        self.seconds: Floats = seconds[kept]
        work = np.where(rows >= 0, frame.work[rows], np.nan)[kept]
        same = (work == work[:1]).all(axis=0) if len(work) else np.zeros(len(prompts), dtype=bool)
        self.work: Floats = np.where(same, work[0], np.nan) if len(work) else np.full(len(prompts), np.nan)
        """Length and ending of each prompt's answers where they are the same in every block, else NaN."""
        self.complete: Booleans = np.isfinite(self.seconds).all(axis=0) & (len(self.seconds) > 0)

    def rates(self, chosen: Booleans) -> list[float]:
        """Tokens over time of the chosen prompts in each block; nothing where none is chosen."""
        if not chosen.any():
            return []
        found: list[float] = (self.tokens[:, chosen].sum(axis=1) / self.seconds[:, chosen].sum(axis=1)).tolist()
        return found

    def pooled(self, chosen: Booleans) -> float | None:
        """Tokens over time of the chosen prompts in all blocks."""
        return float(self.tokens[:, chosen].sum() / self.seconds[:, chosen].sum()) if chosen.any() else None


METHOD = "Welch's t over the logarithms of each run's blocks"


def ratio_interval(
    ratio: float, ours: Sequence[float], theirs: Sequence[float], level: float = LEVEL
) -> Interval | None:
    """Return the interval of `ratio`, of which each block of both runs gives one positive value.

    exp(log ratio ± t · √(s²/n + s'²/n')), s and s' the standard deviations of the logarithms of `ours` (n blocks) and
    `theirs` (n'), t Student's with the degrees of freedom of Welch (Biometrika 1947) and Satterthwaite (1946). The
    prompts are the same in both runs and count as fixed: the interval speaks of these prompts. `None` below three
    blocks in either run.
    """
    from scipy.special import stdtrit

    if min(len(ours), len(theirs)) < MIN_BLOCKS:
        return None
    logs = [np.log(values) for values in (ours, theirs)]
    parts = [float(one.var(ddof=1)) / len(one) for one in logs]
    if not sum(parts):
        return Interval(low=ratio, high=ratio, method=METHOD)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(one) - 1) for part, one in zip(parts, logs, strict=True))
    half = float(stdtrit(freedom, (1 + level) / 2)) * sum(parts) ** 0.5
    return Interval(low=float(ratio * np.exp(-half)), high=float(ratio * np.exp(half)), method=METHOD)
