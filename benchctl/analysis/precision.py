"""How precise a run is, and `blocks: auto`: when it ends, and why it ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchctl.analysis.conditions.split import split
from benchctl.analysis.frame import make_frame
from benchctl.analysis.results import SpeedUp, Stopping
from benchctl.analysis.speedup import compared_arms, find_speeds
from benchctl.analysis.statistics import LOOK_LEVEL, Variance, block_variance, ratio_interval, shared_variances
from benchctl.data.manifest import DecidedArm, Stopped
from benchctl.recipes.schema import AutoBlocks
from benchctl.text import listed, plural, spoken

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
        arms = {name: speeds[name].decides for arm in compared_arms(frame) if (name := frame.arms[arm]) in speeds}
        arms = {name: row for name, row in arms.items() if row.pairs}
        widths |= _half_widths(arms.values())
        blocks = len(frame.blocks)
        for name, speed in decided_arms(arms, LOOK_LEVEL).items():
            decided.setdefault(name, DecidedArm(blocks=blocks, speed=speed))
        still_open += [name for name in arms if name not in decided]
    return Look(widths, decided, still_open)


def why_stop(rule: AutoBlocks, blocks: int, spent_s: float, known: Look) -> Stopped | None:
    """Return why a run of so many blocks ends here, `None` when it goes on."""
    widths = known.half_widths
    met = all(width is not None and width <= (rule.half_width or 0.0) for width in widths.values())
    decided = not known.open_arms if rule.half_width is None else met
    why: Literal["no pairs", "decided", "reached", "maximum", "budget"]
    if blocks >= rule.first_look and not widths:
        why = "no pairs"
    elif blocks >= rule.first_look and decided:
        why = "decided" if rule.half_width is None else "reached"
    elif blocks >= rule.max:
        why = "maximum"
    elif rule.minutes is not None and blocks and spent_s * (blocks + 1) / blocks > 60 * rule.minutes:
        why = "budget"
    else:
        return None
    return Stopped(reason=why, half_widths=widths)


def describe_stop(rule: AutoBlocks, stopped: Stopped) -> str:
    """Return why a run ended, as a part of a sentence."""
    return {
        "decided": "every arm is decided",
        "reached": f"every arm's interval is within ±{100 * (rule.half_width or 0):g} %",
        "maximum": f"the recipe allows at most {rule.max}",
        "budget": f"another one would not fit into the budget of {rule.minutes or 0:g} min",
        "no pairs": "no arm has an answer that can be compared with the baseline's",
    }[stopped.reason]


def decided_in_words(decided: Mapping[str, DecidedArm]) -> dict[str, str]:
    """Return what was decided of every arm, and when: `slower after 3 blocks`."""
    words = {"faster": "faster", "slower": "slower", "within": "within ±5 %"}
    return {name: f"{words[found.speed]} after {found.blocks} blocks" for name, found in decided.items()}


def find_stopping(manifest: Manifest | None, overall: Sequence[SpeedUp]) -> Stopping | None:
    """Return what `blocks: auto` came to, recomputed from what decides on each arm; `None` for any other run."""
    if manifest is None or manifest.auto_blocks is None:
        return None
    rule = manifest.auto_blocks
    known = _half_widths(overall)
    widest = max((width for width in known.values() if width is not None), default=None)
    found = Stopping(
        half_width=rule.half_width,
        max_blocks=rule.max,
        budget_min=rule.minutes,
        blocks=manifest.blocks,
        decided=decided_in_words(manifest.decided),
        reason=manifest.stopped.reason if manifest.stopped else None,
        half_widths=known,
        spent_s=manifest.spent_s,
        sentence="",
    )
    why = describe_stop(rule, manifest.stopped) if manifest.stopped else "the run is not finished"
    rivals = [row.arm for row in overall if row.arm not in found.decided and row.interval and row.interval.low > 1]
    return found.model_copy(update={"sentence": _sentence(found, why, widest, rivals)})


def _half_widths(speedups: Iterable[SpeedUp]) -> dict[str, float | None]:
    return {
        row.arm: (row.interval.high - row.interval.low) / 2 / row.pooled if row.interval and row.pooled else None
        for row in speedups
        if row.pairs
    }


def _sentence(found: Stopping, why: str, widest: float | None, rivals: Sequence[str]) -> str:
    """Return it in words. `rivals`: faster arms of which it is open whether they are the fastest."""
    blocks = plural(found.blocks, "block")
    sentence = f"Blocks: auto measured {found.blocks} {blocks} ({spoken(found.spent_s)}): {why}."
    if found.half_width is None:
        parts = [f"{arm} is {what}" for arm, what in found.decided.items()]
        left = [arm for arm in found.half_widths if arm not in found.decided and arm not in rivals]
        parts += [f"{listed(left)} {'is' if len(left) == 1 else 'are'} undecided"] if left else []
        parts += [f"which of {listed(rivals)} is the fastest is open"] if len(rivals) > 1 else []
        parts += [f"{rivals[0]} is faster; whether it is the fastest is open"] if len(rivals) == 1 else []
        return f"{sentence} {'; '.join(parts)}." if parts else sentence
    if widest is not None:
        sentence += f" The widest interval is ±{100 * widest:.1f} %, ±{100 * found.half_width:g} % was requested."
    return sentence
