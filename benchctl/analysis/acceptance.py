"""Acceptance: how many of the draft's guesses the target took, from counters that do not contradict themselves."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.results import ALL_TASKS, Acceptance

if TYPE_CHECKING:
    from benchctl.analysis.counters import Counters
    from benchctl.analysis.frame import Booleans, Floats, Frame


def find_acceptance(frame: Frame, counters: Counters, arm: int) -> list[Acceptance]:
    """Return the acceptance of an arm over all tasks, then of each task."""
    usable = (frame.arm == arm) & frame.answered & counters.trusted
    selections = [(ALL_TASKS, usable)]
    selections += [(name, usable & (frame.task == number)) for number, name in enumerate(frame.tasks)]
    return [_acceptance(frame, counters, frame.arms[arm], name, rows) for name, rows in selections]


def _acceptance(frame: Frame, counters: Counters, arm: str, task: str, rows: Booleans) -> Acceptance:
    drafted, accepted = _known_sums(rows, counters.drafted, counters.accepted)
    in_rounds, rounds = _known_sums(rows, counters.accepted, counters.rounds)
    decoded, steps = _known_sums(rows & (counters.rounds > 0), frame.decoded, counters.rounds)
    plain, _ = _known_sums(rows, counters.plain, counters.rounds)
    in_steps, every_step = _known_sums(rows, frame.decoded, counters.rounds + counters.plain)
    positions = None
    placed = rows & ~np.isnan(counters.rounds) & ~np.isnan(counters.by_position[:, 0])
    if placed.any():
        told = counters.by_position[placed, : counters.positions[placed].max()].sum(axis=0)
        positions = [float(counters.rounds[placed].sum()), *map(float, told)]
    return Acceptance(
        arm=arm,
        task=task,
        drafted=None if drafted is None else int(drafted),
        accepted=None if accepted is None else int(accepted),
        rate=accepted / drafted if accepted is not None and drafted else None,
        rounds=None if rounds is None else int(rounds),
        acceptance_length=1 + in_rounds / rounds if in_rounds is not None and rounds else None,
        tokens_per_round=decoded / steps if decoded is not None and steps else None,
        plain_steps=None if plain is None else int(plain),
        tokens_per_step=in_steps / every_step if in_steps is not None and every_step else None,
        position_unconditional=[count / positions[0] for count in positions[1:]]
        if positions and positions[0]
        else None,
        position_conditional=_conditional(positions) if positions and positions[0] else None,
    )


def _conditional(counts: list[float]) -> list[float]:
    """Each count over the one before it; the list ends where no round got that far."""
    return [count / before for before, count in pairwise(counts) if before]


def _known_sums(rows: Booleans, left: Floats, right: Floats) -> tuple[float | None, float | None]:
    """Sum two columns over the rows in which both are told; `None` where there is none."""
    both = rows & ~np.isnan(left) & ~np.isnan(right)
    return (float(left[both].sum()), float(right[both].sum())) if both.any() else (None, None)
