"""The table of speed: tokens and seconds of an arm, and of its baseline, by block and prompt.

Every speed is made of it: the speed-ups of a run, the changes between runs, kept baselines and summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from benchctl.analysis.frame import Booleans, Floats, Frame, Integers, PromptKey


@dataclass(frozen=True)
class Measured:
    """A quantity of an arm in a run; `None` and empty where no prompt was timed in every block."""

    value: float | None
    """Over all blocks and prompts."""
    blocks: list[float]
    """The value in each block."""
    by_prompt: list[float | None] = field(default_factory=list)
    """The value of each prompt over all blocks; `None` where some block did not time it."""


@dataclass(frozen=True)
class SpeedTable:
    """An arm beside its baseline. Arrays are (blocks, prompts); NaN where nothing was timed."""

    prompts: tuple[PromptKey, ...]
    tokens: Floats
    seconds: Floats
    base_tokens: Floats
    base_seconds: Floats
    """1, like `base_tokens`, where the table is of the arm alone: its value is then the rate, in tokens per second."""
    work: tuple[Floats, ...] = ()
    """Length and ending of the answers of the arm, and of its baseline (`Frame.work`)."""

    @property
    def timed(self) -> Booleans:
        """Which answers were timed on both sides, (blocks, prompts)."""
        timed: Booleans = np.isfinite(self.seconds + self.base_seconds)
        return timed

    @property
    def timed_prompts(self) -> Booleans:
        """Which prompts every block timed, (prompts,); none where there is no block."""
        return self.timed.all(axis=0) & np.full(len(self.prompts), len(self.seconds) > 0)

    @property
    def full_blocks(self) -> Booleans:
        """Which blocks timed half as many prompts as the fullest, (blocks,): the others broke off."""
        return full_blocks(self.seconds) & full_blocks(self.base_seconds)

    def at(self, prompts: Sequence[PromptKey]) -> SpeedTable:
        """Return the table of some prompts."""
        index = {key: number for number, key in enumerate(self.prompts)}
        columns = [index[key] for key in prompts]
        return replace(self._of(lambda part: part[:, columns]), prompts=tuple(prompts))

    def in_blocks(self, blocks: Booleans) -> SpeedTable:
        """Return the table of some blocks."""
        return self._of(lambda part: part[blocks])

    def sums(self, answers: Booleans) -> Floats:
        """Return tokens and seconds of the arm, tokens and seconds of the baseline, of some answers: (answers, 4)."""
        return np.stack([part[answers] for part in self._parts], axis=1)

    def measured(self, chosen: Booleans) -> Measured:
        """Return the value over the chosen prompts, all of which every block timed."""
        if not chosen.any():
            return Measured(None, [])
        blocks = [part[:, chosen].sum(axis=1) for part in self._parts]
        pooled = _ratio([part.sum() for part in blocks])
        by_prompt = np.where(chosen, _ratio([part.sum(axis=0) for part in self._parts]), np.nan)
        return Measured(float(pooled), _ratio(blocks).tolist(), or_none(by_prompt))

    @property
    def lengths(self) -> Floats:
        """Length and ending of all answers, (arm and baseline, prompts); NaN: not equal in all blocks."""
        return np.stack([np.where((work == work[:1]).all(axis=0), work[0], np.nan) for work in self.work])

    @property
    def _parts(self) -> tuple[Floats, Floats, Floats, Floats]:
        return self.tokens, self.seconds, self.base_tokens, self.base_seconds

    def _of(self, select: Callable[[Floats], Floats]) -> SpeedTable:
        tokens, seconds, base_tokens, base_seconds = map(select, self._parts)
        work = tuple(map(select, self.work))
        return SpeedTable(self.prompts, tokens, seconds, base_tokens, base_seconds, work)


def _ratio(parts: Sequence[Floats]) -> Floats:
    tokens, seconds, base_tokens, base_seconds = parts
    return tokens / seconds / (base_tokens / base_seconds)


def or_none(values: Floats) -> list[float | None]:
    """Return values as stored: `None` for NaN."""
    return [float(value) if np.isfinite(value) else None for value in values]


def full_blocks(seconds: Floats) -> Booleans:
    """Which blocks of (blocks, prompts) timed half as many prompts as the fullest: the others broke off."""
    counts = np.isfinite(seconds).sum(axis=1)
    full: Booleans = counts * 2 >= max(1, int(counts.max(initial=0)))
    return full


def rates(prompts: Sequence[PromptKey], tokens: Floats, seconds: Floats, *work: Floats) -> SpeedTable:
    """Return the table of an arm alone."""
    ones = np.ones(tokens.shape)
    return SpeedTable(tuple(prompts), tokens, seconds, ones, ones, work)


def rate_table(frame: Frame, arm: int) -> SpeedTable:
    """Return the table of the decode rate of an arm, over every block and prompt of its run."""
    tokens, seconds, work = (at_rows(part, frame.row_at[arm]) for part in (frame.decoded, frame.decode_s, frame.work))
    return rates(frame.prompts, tokens, seconds, work)


def speed_table(frame: Frame, arm: int, *, whole_answers: bool = False) -> SpeedTable:
    """Return the table of an arm beside the frame's baseline, over every block and prompt of its run.

    `whole_answers`: all tokens, and the time from request to last byte; else those after the first, and their time.
    """
    rows, base_rows = frame.row_at[arm], frame.row_at[frame.baseline]
    tokens, seconds = (frame.predicted, frame.column("e2e_s")) if whole_answers else (frame.decoded, frame.decode_s)
    base_seconds = np.full(base_rows.shape, np.nan)
    recorded = base_rows >= 0
    base_seconds[recorded] = (frame.baseline_e2e_s if whole_answers else frame.baseline_s)(base_rows[recorded])
    return SpeedTable(
        frame.prompts,
        at_rows(tokens, rows),
        at_rows(seconds, rows),
        at_rows(tokens, base_rows),
        base_seconds,
        (at_rows(frame.work, rows), at_rows(frame.work, base_rows)),
    )


def at_rows(column: Floats, rows: Integers) -> Floats:
    """Return a column's values at some rows; NaN for -1, which stands for no row."""
    return np.append(column, np.nan)[rows]
