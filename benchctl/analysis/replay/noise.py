"""The numeric noise of a target: how far its margins move when it reads several tokens at once instead of one.

Measured on prefixes where nothing forked, on the engine, model and machine of the run; without any speculation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.results import Comparison, ForkRate, NoiseFloor
from benchctl.data.replays import Position, Replays

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

SHARE = 0.99
"""Of all changes, the floor is meant to cover so many."""
FEWEST = 20
FEWEST_CHANGES = 5
"""Below so many prefixes, of which fewer than so many changed, nothing is said of the noise."""


def find_noise(replays: Replays | None, width: int) -> NoiseFloor:
    """Return how margins change between one token at a time and `width` at once.

    The floor is the 99 % quantile of the changes that are not 0: where nothing changes, nothing can fork. Of n >= 99
    changes it is the order statistic at rank ceil(0.99 (n + 1)), below which a further change falls with a chance of
    99 %, whatever the distribution. Fewer are stretched, see `stretch`.

    Where the engine could not be asked to read `width` tokens at once, the change is that of reading prompt and answer
    at once: the other extreme of widths, and another order of the same sums.
    """
    by_prefill = replays is not None and _no_width_was_read(replays)
    sample = [] if replays is None else [one for one in replays.positions if not one.fork]
    forks = {(one.task, one.prompt_idx, one.index) for one in replays.positions if one.fork} if replays else set()
    changes, flips, places = [], 0, 0
    for position in sample:
        told = margins(position, width, by_prefill=by_prefill)
        if told is None:
            continue
        alone, together, flipped = told
        places += 1
        flips += flipped
        if (position.task, position.prompt_idx, position.index) not in forks:
            changes.append(abs(together - alone))
    changed = sorted(change for change in changes if change > 0)
    floor, method = _floor(changed, len(changes))
    if by_prefill:
        method += "; of reading everything at once, for this engine cannot be asked for a width"
    return NoiseFloor(
        width=width,
        floor=floor,
        method=method,
        prefixes=len(changes),
        changed=len(changed),
        median=_median(changes),
        largest=max(changes, default=None),
        null_places=places,
        null_forks=flips,
        by_prefill=by_prefill,
    )


def _no_width_was_read(replays: Replays) -> bool:
    """Whether the engine told for every fork that it cannot read on in batches, and did so nowhere."""
    if any(reading.shape == "verify" for one in replays.positions for reading in one.readings):
        return False
    forks = [one for one in replays.positions if one.fork]
    return bool(forks) and all("verify" in one.absent for one in forks)


def margins(position: Position, width: int, *, by_prefill: bool = False) -> tuple[float, float, bool] | None:
    """Return the margin token by token, that at `width`, and whether the likeliest token changed; `None` if unknown.

    `by_prefill`: that of reading everything at once in place of that at `width`.
    """
    alone = next((one for one in position.readings if one.shape == "decode"), None)
    shape, widths = ("prefill", None) if by_prefill else ("verify", width)
    together = next((one for one in position.readings if one.shape == shape and widths in (None, one.width)), None)
    if alone is None or together is None or alone.rival is None or together.rival is None:
        return None
    if alone.margin is None or together.margin is None:
        return None
    return alone.margin, together.margin, alone.likeliest != together.likeliest


def _floor(changed: list[float], count: int) -> tuple[float | None, str]:
    """Return the floor of sorted changes that are not 0, and how it was made; `count`: with those that are."""
    if count < FEWEST and len(changed) < FEWEST_CHANGES:
        return None, f"only {count} prefixes were measured; {FEWEST} are needed"
    if not changed:
        return 0.0, f"none of {count} prefixes changed at all"
    size = len(changed)
    rank = math.ceil((size + 1) * SHARE)
    of_all = "" if size == count else f", of {count} prefixes"
    if rank <= size:
        return changed[rank - 1], f"99 % quantile of {size} changes{of_all}"
    factor = stretch(size)
    return changed[-1] * factor, f"{factor:.2f} times the largest of {size} changes{of_all}, for 99 %"


def stretch(size: int) -> float:
    """Return c such that a further change exceeds c times the largest of `size` with a chance of 1 %.

    For exponentially distributed changes that chance is the product of i / (i + c) for i = 1 … size (the spacings of
    exponential order statistics are independent: Rényi, *On the theory of order statistics*, 1953); lighter tails
    exceed it more rarely. About 1 at 99, 1.4 at 30, 6.4 at 3.
    """
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        exceeded = math.exp(sum(math.log(i / (i + middle)) for i in range(1, size + 1)))
        low, high = (middle, high) if exceeded > 1 - SHARE else (low, middle)
    return high


def _median(values: Iterable[float]) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def find_fork_rate(
    frame: Frame, arm: int, comparisons: Sequence[Comparison], noise: Sequence[NoiseFloor]
) -> ForkRate | None:
    """Compare how often an arm forks with how often the target alone does; `None` without a null control.

    An arm's answer counts up to and with its first fork, of one block, as does each prefix of the null control: the
    blocks of a greedy run repeat each other.
    """
    from scipy.stats import fisher_exact

    null_tokens, null_forks = sum(one.null_places for one in noise), sum(one.null_forks for one in noise)
    if not null_tokens:
        return None
    tokens = forks = 0
    for prompt, one in enumerate(comparisons):
        rows = [row for row in frame.row_at[arm, :, prompt].tolist() if row >= 0]
        if one.fork is not None and one.fork.unit == "token":
            tokens, forks = tokens + one.fork.index + 1, forks + 1
        elif one.outcome == "identical" and rows:
            tokens += frame.records[rows[0]].n_predicted
    table = [[forks, tokens - forks], [null_forks, null_tokens - null_forks]]
    p = float(fisher_exact(table, alternative="greater").pvalue)
    return ForkRate(tokens=tokens, forks=forks, null_tokens=null_tokens, null_forks=null_forks, p=p)
