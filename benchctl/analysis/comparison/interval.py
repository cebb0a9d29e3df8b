"""The interval of a ratio between two runs, whose blocks have nothing in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchctl.analysis.intervals import LEVEL, MIN_BLOCKS
from benchctl.analysis.results import Interval

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
