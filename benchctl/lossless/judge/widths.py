"""Which verify widths give the same answers, and where the first difference stands.

Numeric noise is a function of a batch's width, so the arms of an exact difference fall into groups of equal answers.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.losslessness import Reason, because
from benchctl.lossless.judge.selection import widest_step

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Frame
    from benchctl.analysis.output_results import Losslessness


def width_groups(frame: Frame, judged: Losslessness) -> Reason | None:
    """Return which arms have the answers of this one and which do not, and its first difference from the baseline.

    By the prompts that every arm was asked. `None` where none of their answers differs by a token.
    """
    everywhere = np.logical_and.reduce([frame.asked(number) for number in range(len(frame.arms))])
    prompts = {key for key, asked in zip(frame.prompts, everywhere.tolist(), strict=True) if asked}
    divergences = [
        (divergence.index, row)
        for row in judged.comparisons
        if (row.task, row.prompt_idx) in prompts
        for divergence in row.divergences
        if divergence.unit == "token"
    ]
    if not divergences:
        return None
    index, row = min(divergences, key=itemgetter(0))
    answers = {name: _answers(frame, number, everywhere) for number, name in enumerate(frame.arms)}
    groups: dict[bool, list[str]] = {True: [], False: []}
    for number, name in enumerate(frame.arms):
        width = 1 if number == frame.baseline else widest_step(frame, number)
        if name != judged.arm and number != frame.again and width is not None:
            groups[answers[name] == answers[judged.arm]].append(f"width {width} ({name})")
    return because(
        "widths",
        same=", ".join(groups[True]),
        other=", ".join(groups[False]),
        index=index,
        prompt=f"{row.task}/{row.prompt_idx}",
    )


def _answers(frame: Frame, arm: int, prompts: Booleans) -> list[frozenset[str | None]]:
    """Return the distinct answers of an arm to every one of `prompts`."""
    rows_by_prompt = frame.row_at[arm].T[prompts].tolist()
    return [frozenset(frame.records[row].token_sha for row in rows if row >= 0) for rows in rows_by_prompt]
