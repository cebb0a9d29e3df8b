"""What a gate can watch of an arm beside its speed: acceptance length by task, TTFT, peak memory, energy a token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.acceptance import CounterColumns, find_counters
from benchctl.analysis.cells import by_block
from benchctl.analysis.comparison.changes import find_quantities
from benchctl.analysis.comparison.rates import InAllRuns, Measured, arm_rows, full_blocks
from benchctl.analysis.comparison.results import Ratio

if TYPE_CHECKING:
    from benchctl.analysis.frame import Floats, Frame, PromptKey

Watched = dict[str, Measured]
"""By quantity; one that is not known in every block is absent."""


def watch(frame: Frame, prompts: Mapping[str, Sequence[PromptKey]]) -> dict[str, Watched]:
    """Return the quantities of every arm, over its `prompts`: those that every block answered.

    `ttft`: median over the prompts, seconds. `acceptance TASK`: 1 + accepted / rounds. `memory`: bytes; `energy`:
    joules a token. The value of a run is the geometric mean of its blocks.
    """
    counters = find_counters(frame)
    return {arm: _of_arm(frame, counters, arm, of_arm) for arm, of_arm in prompts.items()}


def _of_arm(frame: Frame, counters: CounterColumns, arm: str, prompts: Sequence[PromptKey]) -> Watched:
    rows = arm_rows(frame, frame.arms.index(arm), prompts)
    rows = rows[full_blocks(np.where((rows >= 0) & frame.answered[rows], 1.0, np.nan))]
    energy, memory = by_block(frame, arm)
    found: dict[str, Sequence[float] | Floats] = {"energy": energy, "memory": memory}
    if rows.size:
        found["ttft"] = np.median(frame.column("ttft_s")[rows], axis=1)
        counted = np.stack([counters.accepted, counters.rounds]) + np.where(counters.trusted, 0, np.nan)
        for task in dict.fromkeys(task for task, _ in prompts):
            of_task = rows[:, [key[0] == task for key in prompts]]
            accepted, rounds = np.nansum(counted[:, of_task], axis=2)
            with np.errstate(divide="ignore", invalid="ignore"):  # an arm that never drafts has no acceptance length
                found[f"acceptance {task}"] = 1 + accepted / rounds
    return {
        name: Measured(float(np.exp(np.mean(np.log(values)))), list(map(float, values)))
        for name, values in found.items()
        if len(values) and np.all(np.isfinite(values)) and np.all(np.greater(values, 0))
    }


def watched_changes(
    runs: Mapping[str, Sequence[Watched]], of_a: int, groups: Mapping[str, str], level: float
) -> dict[str, dict[str, Ratio]]:
    """Return by arm how each quantity changed that A reports; arguments as `find_quantities`, `runs` by arm."""
    found: dict[str, dict[str, Ratio]] = {arm: {} for arm in runs}
    nothing = Measured(None, [])
    for name in dict.fromkeys(name for of_arm in runs.values() for run in of_arm[:of_a] for name in run):
        measured = {
            arm: InAllRuns([run.get(name, nothing) for run in of_arm], [None for _ in of_arm], False, 0)
            for arm, of_arm in runs.items()
            if all(name in run for run in of_arm[:of_a])
        }
        for arm, quantity in find_quantities(measured, of_a, groups, level, arms_repeat=False).items():
            found[arm][name] = quantity.change
    return found
