"""What the number of prompts with an answer can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchctl.analysis.accuracy import Accuracy


def sentence(accuracy: Accuracy) -> str:
    """Return the loss of right answers that the test finds; empty where nothing is compared."""
    compared = [row for row in accuracy.arms if row.baseline is not None]
    if not compared:
        return ""
    fewest, test = min(row.prompts for row in compared), "McNemar's exact test"
    losses = [row.detectable for row in compared if row.detectable is not None]
    if len(losses) < len(compared):
        return f"{fewest} prompts are too few for {test} to find even the largest loss in 8 of 10 runs."
    loss = f"a loss of {100 * max(losses):.0f} percentage points in 8 of 10 runs"
    return f"With {fewest} prompts {test} finds {loss}; smaller losses may be missed."
