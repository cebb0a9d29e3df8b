"""Decode rates and speed-ups of an arm in several runs of the same prompts, over what all of them timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.speedup import counts_as_baseline

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, Integers, PromptKey
    from benchctl.recipes.groups import ComparedArm


@dataclass(frozen=True)
class Measured:
    """A quantity of an arm in a run; `None` and empty where no prompt was timed in all runs."""

    value: float | None
    """Pooled over blocks and prompts."""
    by_block: list[float]


@dataclass(frozen=True)
class InAllRuns:
    """A quantity of an arm in several runs, over the prompts that every block of all runs timed."""

    runs: list[Measured]
    matched: list[float | None]
    """The runs' values over those prompts alone whose answers are of equal length and ending in all runs."""
    unequal: bool
    """Whether any prompt's answers are not."""
    prompts: int
    """Timed in every block of all runs."""


@dataclass(frozen=True)
class Times:
    """Tokens and seconds of an arm and, for a speed-up, of its baseline: (blocks, prompts), NaN where not timed."""

    tokens: Floats
    seconds: Floats
    base_tokens: Floats
    base_seconds: Floats
    work: tuple[Floats, ...]
    """Length and ending of the answers of the arm, and of its baseline: (blocks, prompts) each."""

    @property
    def timed(self) -> Booleans:
        """Prompts that every block timed, (prompts,)."""
        known: Booleans = np.isfinite(self.seconds + self.base_seconds)
        return known.all(axis=0) & np.full(known.shape[1], len(known) > 0)

    def measured(self, chosen: Booleans) -> Measured:
        """Return the value over the chosen prompts."""
        if not chosen.any():
            return Measured(None, [])
        sums = [
            part[:, chosen].sum(axis=1) for part in (self.tokens, self.seconds, self.base_tokens, self.base_seconds)
        ]
        totals = [part.sum() for part in sums]
        by_block: list[float] = (sums[0] / sums[1] / (sums[2] / sums[3])).tolist()
        return Measured(float(totals[0] / totals[1] / (totals[2] / totals[3])), by_block)

    def by_prompt(self) -> Floats:
        """Return the value of every prompt, pooled over blocks, (prompts,); NaN where some block did not time it."""
        tokens, seconds, base_tokens, base_seconds = (
            part.sum(axis=0) for part in (self.tokens, self.seconds, self.base_tokens, self.base_seconds)
        )
        return np.where(self.timed, tokens / seconds / (base_tokens / base_seconds), np.nan)

    def lengths(self) -> Floats:
        """Return length and ending of every prompt's answers, (answers of arm and baseline, prompts); NaN: not equal
        in all blocks."""
        return np.stack([np.where((work == work[:1]).all(axis=0), work[0], np.nan) for work in self.work])


def rate_times(frame: Frame, arm: str, prompts: Sequence[PromptKey]) -> Times:
    """Return the times of an arm alone: its value is the decode rate, tokens per second."""
    rows = arm_rows(frame, frame.arms.index(arm), prompts)
    rows = rows[full_blocks(_taken(frame.decode_s, rows))]
    ones = np.ones(rows.shape)
    return Times(_taken(frame.decoded, rows), _taken(frame.decode_s, rows), ones, ones, (_taken(frame.work, rows),))


def speedup_times(frame: Frame, compared: ComparedArm, prompts: Sequence[PromptKey], *, whole: bool) -> Times:
    """Return the times of an arm and of its baseline; `whole`: from request to last byte, where requests overlap."""
    again = frame.arms.index(compared.again) if compared.again in frame.arms else None
    own = replace(frame, baseline=frame.arms.index(compared.baseline), again=again)
    ours, theirs = (arm_rows(own, number, prompts) for number in (own.arms.index(compared.name), own.baseline))
    both = full_blocks(_taken(own.decode_s, ours)) & full_blocks(_taken(own.decode_s, theirs))
    ours, theirs = ours[both], theirs[both]
    tokens, seconds = (own.predicted, own.column("e2e_s")) if whole else (own.decoded, own.decode_s)
    base = np.where(theirs >= 0, own.baseline_e2e_s(theirs) if whole else own.baseline_s(theirs), np.nan)
    decoded, base_decoded = _taken(tokens, ours), _taken(tokens, theirs)
    paced = counts_as_baseline(own, own.arms.index(compared.name))[[own.prompts.index(key) for key in prompts]]
    return Times(
        decoded,
        np.where(paced, decoded * base / base_decoded, _taken(seconds, ours)),
        base_decoded,
        base,
        (_taken(own.work, ours), _taken(own.work, theirs)),
    )


def in_all_runs(runs: Sequence[Times]) -> InAllRuns:
    """Return what was measured of an arm in runs of the same prompts."""
    timed = np.logical_and.reduce([run.timed for run in runs])
    works = [np.concatenate(of_arm) for of_arm in zip(*(run.work for run in runs), strict=True)]
    equal = np.logical_and.reduce([timed, *((work == work[:1]).all(axis=0) for work in works)])
    return InAllRuns(
        runs=[run.measured(timed) for run in runs],
        matched=[run.measured(equal).value for run in runs],
        unequal=bool((timed & ~equal).any()),
        prompts=int(timed.sum()),
    )


def arm_rows(frame: Frame, arm: int, prompts: Sequence[PromptKey]) -> Integers:
    """Return the rows of an arm, (blocks, prompts); -1 where there is none."""
    place = {key: number for number, key in enumerate(frame.prompts)}
    rows: Integers = frame.row_at[arm][:, [place[key] for key in prompts]]
    return rows


def full_blocks(seconds: Floats) -> Booleans:
    """Which blocks of (blocks, prompts) timed at least half as many prompts as the fullest.

    A cell that broke off early thus costs its block alone, and not the prompts of all others.
    """
    counts = np.isfinite(seconds).sum(axis=1)
    full: Booleans = counts * 2 >= max(1, int(counts.max(initial=0)))
    return full


def _taken(column: Floats, rows: Integers) -> Floats:
    return np.where(rows >= 0, column[rows], np.nan)
