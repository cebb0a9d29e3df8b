"""When the requests of an open loop are sent: as those of many users who know nothing of each other."""

from __future__ import annotations

import random
from itertools import accumulate


def arrival_times(count: int, rate: float, seed: int, block: int) -> list[float]:
    """Return when each of `count` requests is due, in seconds: a Poisson process of `rate` requests a second.

    Seed and block alone decide the pattern: every arm of a block meets the same one, another block another, and at
    another rate it is the same one stretched.
    """
    gaps = random.Random(f"arrivals {seed} {block}")  # noqa: S311 - nothing here is secret
    return list(accumulate(gaps.expovariate(1.0) / rate for _ in range(count)))
