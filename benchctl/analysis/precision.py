"""How precise a run is, and `blocks: auto`: when it ends, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchctl.analysis.conditions.split import split
from benchctl.analysis.frame import make_frame
from benchctl.analysis.results import Stopping
from benchctl.analysis.speed_results import SpeedUp
from benchctl.analysis.speedup import find_speeds
from benchctl.analysis.statistics import LOOK_LEVEL, Variance, block_variance, ratio_interval, shared_variances
from benchctl.data.manifest import DecidedArm, Stopped, StopReason
from benchctl.recipes.schema import FIRST_DECISION, AutoBlocks

if TYPE_CHECKING:
    from benchctl.data.manifest import Manifest
    from benchctl.data.store import RunData

NEAR = 0.05
"""Two rates that differ by less are as good as equal."""
Decided = Literal["faster", "slower", "within"]


def decided_arms(arms: Mapping[str, SpeedUp], level: float = LOOK_LEVEL) -> dict[str, Decided]:
    """Return what is decided, of those arms of a group that need no further block. `level`: of a look."""
    words = {name: word for name, ratio in arms.items() if (word := _word(ratio)) is not None}
    faster = [name for name, word in words.items() if word == "faster"]
    rivals = [name for name in arms if name in faster or name not in words]
    if not faster:
        return words
    best = max(faster, key=lambda name: arms[name].pooled or 0.0)
    near = _not_separated(arms, best, [name for name in rivals if name != best], 1 - (1 - level) / len(arms))
    return {name: word for name, word in words.items() if name not in near and not (near and name == best)}


def _word(ratio: SpeedUp) -> Decided | None:
    if ratio.within is not None and ratio.within <= NEAR:
        return "within"
    if ratio.interval is None or not ratio.interval.excludes_one:
        return None
    return "faster" if ratio.interval.low > 1 else "slower"


def _not_separated(arms: Mapping[str, SpeedUp], best: str, rivals: Sequence[str], level: float) -> set[str]:
    """Return the rivals that may be as fast as the best arm, and are not shown to be within 5 % of it.

    Both have the same baseline, which cancels out, in the blocks that both have.
    """
    by_block = {name: dict(zip(row.blocks, row.by_block, strict=True)) for name, row in arms.items()}
    ratios = [
        [by_block[rival][block] / ratio for block, ratio in by_block[best].items() if block in by_block[rival]]
        for rival in rivals
    ]
    variances = shared_variances([block_variance(row) for row in ratios])
    near = set()
    for rival, row, variance in zip(rivals, map(np.log, ratios), variances, strict=True):
        if variance is None:  # too few blocks in common
            near.add(rival)
            continue
        ends = ratio_interval(exp(float(row.mean())), Variance(variance.value / len(row), variance.freedom), level)
        if ends.high >= 1 and not (abs(log(ends.low)) < NEAR and abs(log(ends.high)) < NEAR):
            near.add(rival)
    return near


def half_widths(run: RunData) -> dict[str, float | None]:
    """Return half the width of every compared arm's interval as a share of its speed-up; `None` where there is none.

    The interval is the one that is shown: that of all claims together, of whole answers where requests overlap.
    """
    groups = split(run)
    frames = [make_frame(group.run.records, group.run.manifest, group.baseline) for group in groups]
    return _half_widths(speed.decides for speed in find_speeds(groups, frames).values())


@dataclass(frozen=True)
class Look:
    """What is known after a block."""

    half_widths: dict[str, float | None]
    """Of every arm that can be compared, decided ones among them."""
    decided: dict[str, DecidedArm]
    """Arms that need no further block; of a run without `half_width` alone."""
    open_arms: list[str]


def look(run: RunData, rule: AutoBlocks) -> Look:
    """Return what is decided after the blocks that a run has. What was decided at an earlier look stays so."""
    if rule.half_width is not None:
        return Look(half_widths(run), {}, [])
    assert run.manifest is not None
    groups = split(run)
    frames = [make_frame(group.run.records, group.run.manifest, group.baseline) for group in groups]
    speeds = find_speeds(groups, frames)
    decided, still_open = dict(run.manifest.decided), []
    widths: dict[str, float | None] = {}
    for frame in frames:
        arms = {name: speeds[name].decides for arm in frame.compared if (name := frame.arms[arm]) in speeds}
        arms = {name: row for name, row in arms.items() if row.pairs}
        widths |= _half_widths(arms.values())
        blocks = len(frame.blocks)
        for name, speed in decided_arms(arms, LOOK_LEVEL).items():
            decided.setdefault(name, DecidedArm(blocks=blocks, speed=speed))
        still_open += [name for name in arms if name not in decided]
    return Look(widths, decided, still_open)


def why_stop(rule: AutoBlocks, blocks: int, spent_s: float, estimates: Look) -> Stopped | None:
    """Return why a run of so many blocks ends here, `None` when it goes on.

    No budget ends it before it has an interval: fewer blocks say nothing of another run, so their time would be lost.
    """
    widths = estimates.half_widths
    met = all(width is not None and width <= (rule.half_width or 0.0) for width in widths.values())
    decided = not estimates.open_arms if rule.half_width is None else met
    reason: StopReason
    if blocks >= rule.first_look and not widths:
        reason = "no pairs"
    elif blocks >= rule.first_look and decided:
        reason = "decided" if rule.half_width is None else "reached"
    elif blocks >= rule.max:
        reason = "maximum"
    elif rule.minutes is not None and blocks >= FIRST_DECISION and spent_s * (blocks + 1) / blocks > 60 * rule.minutes:
        reason = "budget"
    else:
        return None
    return Stopped(reason=reason, half_widths=widths)


def find_stopping(manifest: Manifest | None, overall: Sequence[SpeedUp]) -> Stopping | None:
    """Return what `blocks: auto` came to, recomputed from what decides on each arm; `None` for any other run."""
    if manifest is None or manifest.auto_blocks is None:
        return None
    rule, open_arms = manifest.auto_blocks, [row for row in overall if row.arm not in manifest.decided]
    return Stopping(
        half_width=rule.half_width,
        max_blocks=rule.max,
        budget_min=rule.minutes,
        blocks=manifest.blocks,
        decided=manifest.decided,
        rivals=[row.arm for row in open_arms if row.interval and row.interval.low > 1],
        reason=manifest.stopped.reason if manifest.stopped else None,
        half_widths=_half_widths(overall),
        spent_s=manifest.spent_s,
    )


def _half_widths(speedups: Iterable[SpeedUp]) -> dict[str, float | None]:
    return {
        row.arm: (row.interval.high - row.interval.low) / 2 / row.pooled if row.interval and row.pooled else None
        for row in speedups
        if row.pairs
    }
