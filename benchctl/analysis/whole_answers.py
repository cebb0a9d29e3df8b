"""Every prompt with the baseline's whole answer and those that diverge from it, for reading side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchctl.analysis.answers import common_length
from benchctl.analysis.replay.results import Fork
from benchctl.analysis.results import Analysis, Comparison

if TYPE_CHECKING:
    from benchctl.data.record import Record
    from benchctl.data.replays import Replays
    from benchctl.data.store import RunData


@dataclass(frozen=True)
class Probability:
    """The target's probabilities of both tokens where the answers diverge, reading the prefix in one shape."""

    shape: str
    width: int
    baseline: float | None
    arm: float | None
    """Probabilities; `None` where the token was not among the likeliest that were requested."""
    likeliest: int
    """The token that greedy decoding would choose."""


@dataclass(frozen=True)
class Divergence:
    """An answer that is not the baseline's, beside it."""

    comparison: Comparison
    agreed: str
    """The common text: from the beginning, or its end where the whole answers are not kept."""
    baseline: str
    arm: str
    """The two continuations."""
    whole: bool
    probabilities: tuple[Probability, ...] = ()


@dataclass(frozen=True)
class PromptAnswers:
    """One prompt, the baseline's answer, and those that differ."""

    task: str
    prompt_idx: int
    prompt: str | None
    """`None` where it is not kept with the run nor in a suite of the same hash."""
    baseline: str | None
    diverging: list[Divergence] = field(default_factory=list)
    identical: list[str] = field(default_factory=list)
    other: list[Comparison] = field(default_factory=list)
    """Not identical, but without a divergence: degenerate, or not comparable."""


def find_whole_answers(run: RunData, analysis: Analysis, prompts: dict[tuple[str, int], str]) -> list[PromptAnswers]:
    """Return every prompt that was compared, those with a divergence first. `prompts`: their texts, where known."""
    records = {
        (one.label, one.task, one.prompt_idx, one.block): one
        for one in run.records
        if one.phase == "measure" and one.error is None and one.content is not None
    }
    found: dict[tuple[str, int], PromptAnswers] = {}
    for arm in analysis.losslessness:
        baseline = _baseline_of(analysis, arm.arm)
        for one in arm.comparisons:
            place = (one.task, one.prompt_idx)
            own = next(
                (records[baseline, *place, b] for b in range(analysis.blocks) if (baseline, *place, b) in records), None
            )
            answers = found.setdefault(place, PromptAnswers(*place, prompts.get(place), own.content if own else None))
            if one.outcome == "identical":
                answers.identical.append(arm.arm)
            elif one.fork is None:
                answers.other.append(one)
            else:
                pairs = [
                    (records[baseline, *place, block], records[arm.arm, *place, block])
                    for block in range(analysis.blocks)
                    if (baseline, *place, block) in records and (arm.arm, *place, block) in records
                ]
                answers.diverging.append(_divergence(one, one.fork, pairs, run.replays))
    return sorted(found.values(), key=lambda answers: not answers.diverging)


def _divergence(
    one: Comparison, fork: Fork, pairs: Sequence[tuple[Record, Record]], replays: Replays | None
) -> Divergence:
    """The whole answers of the block that diverges at the fork."""
    probabilities = _probabilities(one, fork, replays)
    for baseline, arm in pairs:
        theirs, ours = baseline.content or "", arm.content or ""
        split = common_length(theirs, ours)
        if theirs[split:].startswith(fork.baseline_text) and ours[split:].startswith(fork.arm_text) and theirs != ours:
            return Divergence(
                one, theirs[:split], theirs[split:], ours[split:], whole=True, probabilities=probabilities
            )
    return Divergence(
        one, fork.agreed_text, fork.baseline_text, fork.arm_text, whole=False, probabilities=probabilities
    )


def _probabilities(one: Comparison, fork: Fork, replays: Replays | None) -> tuple[Probability, ...]:
    if replays is None or fork.unit != "token":
        return ()
    place = (one.task, one.prompt_idx, fork.index, fork.baseline_token, fork.arm_token)
    position = next(
        (at for at in replays.positions if (at.task, at.prompt_idx, at.index, at.token, at.rival) == place), None
    )
    scored = {(one.shape, one.width) for one in fork.shapes}
    return tuple(
        Probability(reading.shape, reading.width, _exp(reading.token), _exp(reading.rival), reading.likeliest)
        for reading in (position.readings if position else ())
        if (reading.shape, reading.width) in scored
    )


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def _baseline_of(analysis: Analysis, arm: str) -> str:
    """The arm that another is compared with: of a sweep that of its own condition."""
    if analysis.sweep is None:
        return analysis.baseline
    level = next((row for row in analysis.sweep.levels if row.arm == arm), None)
    if level is None:
        return analysis.baseline
    where = (level.concurrency, level.rate, level.temperature)
    return next(
        (
            row.arm
            for row in analysis.sweep.levels
            if row.is_baseline and (row.concurrency, row.rate, row.temperature) == where
        ),
        analysis.baseline,
    )
