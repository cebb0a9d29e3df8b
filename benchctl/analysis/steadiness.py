"""Checks of the rates: do the clocks agree, and was it the same machine all the time? Each yields an `Observation`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.record_checks import NAMED, Observation

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

CLOCKS_AGREE = 0.01
WAKING_S = 0.002
"""The time that a client may need to wake up when a token arrives; over 1 % of a short answer."""
DRIFT = 0.10
OUTLIER_SCORE = 3.5
"""Modified z-score (Iglewicz & Hoaglin 1993) of a rate's logarithm among the arm's."""
OUTLIER_SHARE = 0.20
"""… and at least so far from the same prompt's median."""


def check_clocks(frame: Frame) -> Iterator[Observation]:
    """Compare the client's clock with the engine's."""
    engine = frame.column("tok_per_sec")
    client = frame.column("client_tok_per_sec")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = client / engine - 1
        gap = np.abs(frame.decoded / client - frame.decoded / engine)
    for number, arm in enumerate(frame.arms):
        here = (frame.arm == number) & np.isfinite(ratio) & np.isfinite(gap) & frame.answered
        known = ratio[here]
        if len(known) and abs(np.median(known)) > CLOCKS_AGREE and np.median(gap[here]) > WAKING_S:
            yield (
                "clock-mismatch",
                arm,
                f"The client's decode rate is {100 * np.median(known):+.1f} % off the engine's (median).",
            )


def check_drift(frame: Frame) -> Iterator[Observation]:
    """Compare the first and last third of the baseline's answers within every block; the worst block is reported."""
    worst, found = DRIFT, None
    timed = [row for row in frame.rows(frame.baseline).tolist() if np.isfinite(frame.rate[row])]
    for block in range(len(frame.blocks)):
        rows = [row for row in timed if frame.block[row] == block]
        rows.sort(key=lambda row: frame.records[row].started_at or "")
        third = len(rows) // 3
        if third < 2:
            continue
        before, after = np.median(frame.rate[rows[:third]]), np.median(frame.rate[rows[-third:]])
        change = float(after / before) - 1
        if abs(change) > worst:
            worst, how = abs(change), f"{100 * change:+.0f} %"
            sentence = f"From {before:.1f} to {after:.1f} tok/s ({how}) between its first and last prompts."
            found = (frame.cell_name(block, frame.baseline), sentence)
    if found:
        yield ("drift", *found)


def check_outliers(frame: Frame) -> Iterator[Observation]:
    """Find rates far from the same arm's and prompt's in the other blocks."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(frame.rate)
    for number, arm in enumerate(frame.arms):
        rows = frame.rows(number)
        rows = rows[np.isfinite(logs[rows])]
        table = np.full((len(frame.blocks), len(frame.prompts)), np.nan)
        table[frame.block[rows], frame.prompt[rows]] = logs[rows]
        prompts = np.flatnonzero((~np.isnan(table)).sum(axis=0) >= 3)
        if not len(prompts):
            continue
        usual = np.nanmedian(table[:, prompts], axis=0)
        off = np.abs(table[:, prompts] - usual)
        limit = max(OUTLIER_SCORE * float(np.nanmedian(off)) / 0.6745, float(np.log1p(OUTLIER_SHARE)))
        cases = sorted(np.argwhere(off > limit).tolist(), key=lambda case: -off[case[0], case[1]])
        named = []
        for block, place in cases[:NAMED]:
            task, index = frame.prompts[prompts[place]]
            rate, typical = np.exp(table[block, prompts[place]]), np.exp(usual[place])
            named.append(f"block {block + 1}, {task}/{index}: {rate:.1f} against {typical:.1f} tok/s")
        if cases:
            more = f"; and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
            yield "outlier", arm, "; ".join(named) + more + "."
