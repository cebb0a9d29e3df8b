"""From which length of the answer on an arm no longer pays, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchctl.analysis.answer_length import stops_paying
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.results import Analysis


def sentences(analysis: Analysis) -> list[str]:
    """Return a sentence for every arm that is shown to be faster in short answers and slower in long ones."""
    by_arm = {arm: [row for row in analysis.answer_lengths if row.arm == arm] for arm in analysis.arms}
    crossing = {arm: ends for arm, rows in by_arm.items() if (ends := stops_paying(rows))}
    said = []
    for arm, (last, first) in crossing.items():
        ratios = {row.tokens: row.speedup for row in by_arm[arm]}
        said.append(
            f"{arm} stops paying in longer answers: {numbers.ratio(ratios[last])} at {last:,} tokens, "
            f"{numbers.ratio(ratios[first])} at {first:,}."
        )
    return said
