"""The standings of a search: the speed-up of each arm so far, from all blocks that it was in.

These values choose what is measured again and are no result: the largest of several noisy values is biased upwards (the
winner's curse).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.cells import states
from benchctl.analysis.frame import make_frame
from benchctl.analysis.speedup import pooled
from benchctl.text import one_line

if TYPE_CHECKING:
    from benchctl.data.store import RunData


@dataclass(frozen=True)
class Standing:
    """One arm of a search."""

    arm: str
    speedup: float | None
    """Over the baseline, each block's pooled pairs, in the median of blocks (geometric for an even number), so that one
    disturbed block decides little; `None` where there are no pairs, as when its engine cannot start."""
    blocks: int
    """That it has pairs in."""
    drafted: int | None
    """Tokens; `None` where not reported."""

    @property
    def races(self) -> bool:
        """Whether it may be chosen: it answered."""
        return self.speedup is not None

    @property
    def value(self) -> float:
        """The speed-up by which it is ranked: without a draft token it did the baseline's work, which is exactly 1."""
        return 1.0 if self.drafted == 0 else self.speedup or 0.0

    def __str__(self) -> str:
        if self.speedup is None:
            return f"{one_line(self.arm)} no answer"
        return f"{one_line(self.arm)} {self.speedup:.2f}×{' (never drafted)' if self.drafted == 0 else ''}"


def find_standings(run: RunData, arms: Sequence[str]) -> list[Standing]:
    """Return where `arms` stand: those that may be chosen first, the fastest of them first."""
    frame = make_frame(run.records, run.manifest)
    place = {name: number for number, name in enumerate(frame.arms)}
    found = []
    for name in arms:
        ours, theirs = frame.pairs(place[name], frame.baseline)
        timed = np.isfinite(frame.decode_s[ours]) & np.isfinite(frame.decode_s[theirs])
        ours, theirs = ours[timed], theirs[timed]
        columns = [frame.decoded[ours], frame.decode_s[ours], frame.decoded[theirs], frame.baseline_s(theirs)]
        sums, blocks = np.stack(columns, axis=1), frame.block[ours]
        ratios = [pooled(sums[blocks == block]) or np.nan for block in np.unique(blocks)]
        drafted = [frame.records[row].draft_n for row in ours]
        reported = [count for count in drafted if count is not None]
        found.append(
            Standing(
                arm=name,
                speedup=float(np.exp(np.median(np.log(ratios)))) if ratios else None,
                blocks=len(ratios),
                drafted=sum(reported) if reported else 0 if set(states(frame, name)) == {"idle"} else None,
            )
        )
    return sorted(found, key=lambda standing: (not standing.races, -standing.value, standing.drafted == 0))


def any_drafted(standings: Sequence[Standing]) -> bool:
    """Whether some arm drafted: else there is nothing that a search could choose."""
    return any(standing.races and standing.drafted != 0 for standing in standings)


def best_yet(run: RunData) -> str:
    """Return what a search that was cut off has found so far, in sentences."""
    tuning = run.manifest.tuning if run.manifest else None
    if tuning is None or not tuning.rungs:
        return "Nothing was measured yet, so there is no result."
    searched = find_standings(run, tuning.rungs[0].arms)
    first = next((standing for standing in searched if standing.races and standing.arm in tuning.rungs[-1].arms), None)
    if first is None or not any_drafted(searched):
        return "No arm has drafted anything yet that could be compared with no speculation."
    blocks = "1 block" if first.blocks == 1 else f"{first.blocks} blocks"
    return (
        f"Best so far: {one_line(first.arm)}, {first.value:.2f}× no speculation over {blocks}. It was selected as "
        "the largest of several and not measured again, so expect less; this is no result."
    )


def rungs_of(arms: int) -> list[int]:
    """Return how many arms each rung has: half of those before, rounded down, until one is left to be chosen."""
    rungs = [arms]
    while rungs[-1] > 3:
        rungs.append(rungs[-1] // 2)
    return rungs
