"""Acceptance: how many draft tokens the target accepted, from counters that do not contradict each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.results import ALL_TASKS, Acceptance

if TYPE_CHECKING:
    from benchctl.analysis.counters import Counters
    from benchctl.analysis.frame import Booleans, Floats, Frame


def find_acceptance(frame: Frame, counters: Counters, arm: int) -> list[Acceptance]:
    """Return the acceptance of an arm over all tasks, then of each task."""
    usable = (frame.arm == arm) & frame.answered & counters.trusted
    by_task = [
        _acceptance(frame, counters, frame.arms[arm], name, usable & (frame.task == number))
        for number, name in enumerate(frame.tasks)
    ]
    overall = _acceptance(frame, counters, frame.arms[arm], ALL_TASKS, usable)
    rates = [row.rate for row in by_task if row.rate is not None]
    return [overall.model_copy(update={"rate_by_task": float(np.mean(rates)) if rates else None}), *by_task]


def _acceptance(frame: Frame, counters: Counters, arm: str, task: str, rows: Booleans) -> Acceptance:
    drafted, accepted = _known_sums(rows, counters.drafted, counters.accepted)
    in_rounds, rounds = _known_sums(rows, counters.accepted, counters.rounds)
    in_drafting, steps = _known_sums(rows & (counters.rounds > 0), frame.decoded, counters.rounds)
    plain, _ = _known_sums(rows, counters.plain, counters.rounds)
    decoded, kept = _known_sums(rows, frame.decoded, counters.accepted)
    positions = _positions(counters.by_position, counters, rows)
    drafts = _positions(counters.drafted_by_position, counters, rows)
    each = rows & (counters.drafted > 0) & ~np.isnan(counters.accepted)
    return Acceptance(
        arm=arm,
        task=task,
        drafted=None if drafted is None else int(drafted),
        accepted=None if accepted is None else int(accepted),
        prompts=len(np.unique(frame.prompt[rows & ~np.isnan(counters.drafted)])),
        prompts_drafted=len(np.unique(frame.prompt[rows & (counters.drafted > 0)])),
        rate=accepted / drafted if accepted is not None and drafted else None,
        rounds=None if rounds is None else int(rounds),
        acceptance_length=1 + in_rounds / rounds if in_rounds is not None and rounds else None,
        tokens_per_round=in_drafting / steps if in_drafting is not None and steps else None,
        plain_steps=None if plain is None else int(plain),
        tokens_per_step=decoded / (decoded - kept) if decoded and kept is not None and decoded > kept else None,
        rate_by_request=float((counters.accepted[each] / counters.drafted[each]).mean()) if each.any() else None,
        position_unconditional=[count / positions[0] for count in positions[1:]] if positions else None,
        position_conditional=_conditional(positions, drafts) if positions else None,
        position_drafted=[int(count) for count in drafts[1:]] if drafts else None,
        position_rate=_rates(positions, drafts) if positions and drafts else None,
        draft_lengths=_exactly(drafts[1:]) if drafts else None,
        accepted_in_round=_exactly(positions) if positions else None,
    )


def _positions(by_position: Floats, counters: Counters, rows: Booleans) -> list[float] | None:
    """Return the rounds, then the counts at position 0, 1, …, summed over the answers that report both; no round: None.

    Positions that nothing reached at the end are left out, but for one.
    """
    known = rows & ~np.isnan(counters.rounds) & ~np.isnan(by_position[:, 0])
    if not known.any() or not counters.rounds[known].sum():
        return None
    widths = np.maximum(counters.positions, counters.drafted_positions)
    return [float(counters.rounds[known].sum()), *map(float, by_position[known, : widths[known].max()].sum(axis=0))]


def _conditional(accepted: list[float], drafted: list[float] | None) -> list[float]:
    """Return each count over the one before it, or over the drafts that reached it where these are fewer.

    The list ends where no round got that far.
    """
    reached = accepted if drafted is None else [min(pair) for pair in zip(accepted, [*drafted[1:], 0.0], strict=False)]
    return [count / before for before, count in zip(reached, accepted[1:], strict=False) if before]


def _rates(accepted: list[float], drafted: list[float]) -> list[float]:
    """Return accepted / drafted by position, as far as drafts reach."""
    return [count / made for count, made in zip(accepted[1:], drafted[1:], strict=False) if made]


def _exactly(at_least: list[float]) -> list[int]:
    """Turn counts of rounds that reached at least 0, 1, … into counts that reached exactly so many."""
    return [int(here - beyond) for here, beyond in zip(at_least, [*at_least[1:], 0.0], strict=True)]


def _known_sums(rows: Booleans, left: Floats, right: Floats) -> tuple[float | None, float | None]:
    """Sum two columns over the rows in which both are reported; `None` where there is none."""
    both = rows & ~np.isnan(left) & ~np.isnan(right)
    return (float(left[both].sum()), float(right[both].sum())) if both.any() else (None, None)
