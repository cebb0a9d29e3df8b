"""Speed-up and acceptance by the length of the answer: what a run of long answers says of shorter ones.

A greedy answer that is cut at n tokens is the start of the longer one and takes the time until its n-th token came. So
the speed-up at n tokens is the baseline's time from the first to the n-th token over the arm's, of the same answers at
every n: those that reach the longest of `MARKS` that half of all pairs reach. A round may bring more tokens than the
n-th; the arm is timed to the end of that round.

When each token came is known where the gaps between bursts (`Record.burst_gaps_s`) are as many as the steps of the
target (`Record.target_steps`; without them a token a step). The target alone decodes at an even pace, which is taken
where its bursts are fewer. Times are the client's, of the baseline's first cell.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.speed_results import AnswerLength
from benchctl.analysis.speed_table import speed_table
from benchctl.analysis.speedup import pooled
from benchctl.analysis.statistics import level_for, pooled_interval
from benchctl.data.counts import accepted_in, drafted_in, reads_prompt, steps_contradiction

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchctl.analysis.frame import Floats, Frame, Integers
    from benchctl.data.record import Record

MARKS = tuple(16 * 2**power for power in range(12))
"""Lengths in tokens at which answers are cut: 16 to 32,768."""
COVERED = 0.9
"""Of an arm's pairs, so that those with a known time are no selection: bursts that cannot be told apart are fast ones.
"""


@dataclass(frozen=True)
class _Arrivals:
    tokens: Integers
    """How many had come with each burst."""
    seconds: Floats
    """From the first token to each burst."""
    steps: Sequence[Sequence[int]]
    """`Record.target_steps`."""

    def at(self, count: int) -> float:
        """Return the seconds from the first to the `count`-th token."""
        return 0.0 if count == 1 else float(self.seconds[np.searchsorted(self.tokens, count)])

    def drafts(self, after: int, until: int) -> tuple[int, int]:
        """Return what the rounds drafted and accepted that begin in this stretch."""
        begins = np.concatenate(([1], self.tokens))[: len(self.steps)]
        inside = [step for step, begin in zip(self.steps, begins.tolist(), strict=False) if after <= begin < until]
        return sum(map(drafted_in, inside)), sum(map(accepted_in, inside))


def find_answer_lengths(frame: Frame, arm: int, arms: int) -> list[AnswerLength]:
    """Return a row a length, the shortest first; empty where fewer than two lengths, or too few pairs, are known.

    `arms`: how many arms the run compares, whose intervals hold together.
    """
    timed = speed_table(frame, arm).timed
    pairs = []
    for row, base_row in zip(frame.row_at[arm][timed], frame.row_at[frame.baseline][timed], strict=True):
        ours, theirs = _arrivals(frame.records[row]), _plain_arrivals(frame.records[base_row])
        if ours is not None and theirs is not None:
            pairs.append((ours, theirs, int(frame.block[row])))
    if len(pairs) < COVERED * timed.sum():
        return []
    reach = np.array([min(ours.tokens[-1], theirs.tokens[-1]) for ours, theirs, _ in pairs])
    marks = [mark for mark in MARKS if len(reach) and 2 * int((reach >= mark).sum()) >= len(reach)]
    if len(marks) < 2:
        return []
    kept = [pair for pair, reached in zip(pairs, reach.tolist(), strict=True) if reached >= marks[-1]]
    block, level = np.array([number for *_, number in kept]), level_for(frame.manifest)
    seconds = {mark: np.array([[ours.at(mark), theirs.at(mark)] for ours, theirs, _ in kept]) for mark in (1, *marks)}
    rows = []
    for before, mark in pairwise((1, *marks)):
        sums, stretch = _sums(mark - 1, seconds[mark]), _sums(mark - before, seconds[mark] - seconds[before])
        drafted, accepted = np.sum([ours.drafts(before, mark) for ours, _, _ in kept], axis=0).tolist()
        rows.append(
            AnswerLength(
                arm=frame.arms[arm],
                tokens=mark,
                pairs=len(kept),
                speedup=pooled(sums) or 0.0,
                interval=pooled_interval(sums, block, level, arms * len(marks)),
                stretch=pooled(stretch) if stretch[:, 1].any() else None,
                acceptance=accepted / drafted if drafted else None,
            )
        )
    return rows


def _sums(tokens: int, seconds: Floats) -> Floats:
    """Return tokens and seconds of the arm, tokens and seconds of the baseline, (pairs, 4)."""
    count = np.full(len(seconds), float(tokens))
    return np.stack([count, seconds[:, 0], count, seconds[:, 1]], axis=1)


def _arrivals(record: Record) -> _Arrivals | None:
    """Return when the tokens of an answer came; `None` where that is not known token by token.

    Nor is it where the prompt was read in one pass with a draft: the first burst then has several tokens.
    """
    gaps, steps = record.burst_gaps_s or [], record.target_steps
    counters = {"drafted": record.draft_n, "accepted": record.draft_n_accepted, "rounds": record.rounds}
    if steps and (reads_prompt(steps[0]) or steps_contradiction(steps, tokens=record.n_predicted, **counters)):
        return None
    brought = [step[-1] + 1 for step in steps] if steps is not None else [1] * (record.n_predicted - 1)
    if not gaps or len(brought) - len(gaps) not in (0, 1):  # the token that ends an answer may have no text
        return None
    return _Arrivals(1 + np.cumsum(brought[: len(gaps)]), np.cumsum(gaps), steps or ())


def _plain_arrivals(record: Record) -> _Arrivals | None:
    """Return the same of the target alone: at an even pace where a character of several tokens came as one burst."""
    arrivals, steps = _arrivals(record), np.arange(1, record.n_predicted)
    if arrivals is not None or not record.decode_s or not len(steps):
        return arrivals
    return _Arrivals(1 + steps, steps * record.decode_s / len(steps), ())


def stops_paying(rows: Sequence[AnswerLength]) -> tuple[int, int] | None:
    """Return the last length at which an arm is shown to be faster, and the first from which on it is shown slower.

    `None` where it is not shown to be both, or is faster again at a greater length.
    """
    faster = [row.tokens for row in rows if row.interval and row.interval.low > 1]
    slower = [row.tokens for row in rows if row.interval and row.interval.high < 1]
    return (faster[-1], slower[0]) if faster and slower and faster[-1] < slower[0] else None
