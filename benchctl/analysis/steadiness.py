"""Checks of the machine and the clocks: was it the same machine all the time? Each yields (id, where, seen)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchctl.analysis.cells import latest_cells
from benchctl.analysis.record_checks import NAMED, Seen

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame

CLOCKS_AGREE = 0.01
LOAD_SHARE = 0.5
"""Of the cores: a one-minute load above it before the first cell is someone else's work. Before a later one the cell
before it may have added as much as all cores."""
DRIFT = 0.10
OUTLIER_SCORE = 3.5
"""Modified z-score (Iglewicz & Hoaglin 1993) of a rate's logarithm among the arm's."""
OUTLIER_SHARE = 0.20
"""… and at least so far from the same prompt's median."""


def check_clocks(frame: Frame) -> Iterator[Seen]:
    """Compare the client's clock with the engine's."""
    import numpy as np

    engine = frame.told("tok_per_sec")
    client = frame.told("client_tok_per_sec")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = client / engine - 1
    for number, arm in enumerate(frame.arms):
        known = ratio[(frame.arm == number) & np.isfinite(ratio) & frame.answered]
        if len(known) and abs(np.median(known)) > CLOCKS_AGREE:
            yield (
                "clock-mismatch",
                arm,
                f"The client's decode rate is {100 * np.median(known):+.1f} % off the engine's (median).",
            )


def check_load(frame: Frame) -> Iterator[Seen]:
    """Cells that started while something else was running."""
    cores = (frame.manifest.machine if frame.manifest else {}).get("cores")
    cells = [cell for cell in latest_cells(frame.manifest) if cell.load_before is not None]
    if isinstance(cores, int) and cells:
        cells.sort(key=lambda cell: cell.started_at)
        own = [0, *(cores for _ in cells[1:])]
        busy = [
            cell for cell, ours in zip(cells, own, strict=True) if (cell.load_before or 0) > LOAD_SHARE * cores + ours
        ]
        if busy:
            worst = max(busy, key=lambda cell: cell.load_before or 0)
            seen = (
                f"{len(busy)} of {len(cells)} cells started at a higher load than the run itself explains; "
                f"the highest was {worst.load_before:.1f} on {cores} cores, "
                f"before block {worst.block + 1}, {worst.arm}."
            )
            yield "high-load", "machine", seen


def check_drift(frame: Frame) -> Iterator[Seen]:
    """Compare the first and last third of the baseline's answers within every block; the worst block is told."""
    import numpy as np

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
            seen = f"From {before:.1f} to {after:.1f} tok/s ({how}) between its first and last prompts."
            found = (frame.cell_name(block, frame.baseline), seen)
    if found:
        yield ("drift", *found)


def check_outliers(frame: Frame) -> Iterator[Seen]:
    """Find rates far from the same arm's and prompt's in the other blocks."""
    import numpy as np

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
