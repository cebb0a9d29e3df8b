"""Warnings: everything that makes a number less trustworthy, as a closed set.

A check yields at most one `Observation` an arm, with the worst cases. `benchctl.words.warnings` has their sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.output_results import SelfConsistency
from benchctl.analysis.record_checks import (
    Observation,
    check_canaries,
    check_cells,
    check_depths,
    check_disturbances,
    check_integrity,
    check_records,
    check_repeats,
    check_repetitions,
    check_replication,
    check_speculation,
    check_work,
    observation,
)
from benchctl.analysis.results import Caution
from benchctl.analysis.speed_results import SpeedUp
from benchctl.analysis.steadiness import check_steadiness
from benchctl.data.integrity import Integrity

if TYPE_CHECKING:
    from benchctl.analysis.acceptance import CounterColumns
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.frame import Frame
    from benchctl.data.record import Record


KINDS = (
    "changed-evidence", "changed-scores", "engine-fault", "degenerate-target", "unsure-target", "quantization-damage",
    "quantization-differs", "vocabulary-differs", "context-too-short", "preflight-failed", "failed-cell",
    "missing-records", "searched", "damaged-records", "few-blocks", "unverified", "baseline-speculates",
    "baseline-not-reproducible", "repeat-differs", "baseline-endings", "unequal-work", "empty-answer", "never-fired",
    "dead-drafter",
    "depth-ignored", "depth-without-effect", "repeated-prompts", "repeating-answers", "contradicted-count",
    "contradictory-counters", "token-ids-withheld", "first-event", "clock-mismatch", "spilled", "swapping",
    "throttling", "high-load", "pause", "unsteady", "clock-jump", "disturbed-cell", "drift", "not-filled",
    "rate-not-kept", "late-client", "noted",
)  # fmt: skip
"""Every kind of warning, the most serious first."""


def find_warnings(
    frame: Frame,
    counters: CounterColumns,
    answers: Answers,
    speedups: Sequence[SpeedUp],
    consistency: Sequence[SelfConsistency],
    damaged: Sequence[str],
    warm_ups: Sequence[Record] = (),
    integrity: Integrity | None = None,
) -> list[Caution]:
    """Return every warning of a run, the most serious kinds first."""
    observations = [
        *check_integrity(integrity),
        *check_cells(frame),
        *check_records(frame, answers, damaged),
        *check_replication(frame, consistency),
        *check_canaries(frame),
        *check_work(frame, speedups),
        *check_speculation(frame, counters),
        *check_depths(frame, counters),
        *check_repetitions(frame),
        *check_repeats(frame, counters, warm_ups),
        *check_clocks(frame),
        *check_disturbances(frame),
        *check_steadiness(frame, warm_ups),
        *check_drift(frame),
        *check_disturbed(frame),
        *check_notes(frame),
    ]
    return in_order(cautions(observations))


def cautions(observations: Iterable[Observation]) -> list[Caution]:
    """Return observations as warnings."""
    return [Caution(id=kind, where=where, facts=list(facts)) for kind, where, facts in observations]


def in_order(warnings: Iterable[Caution]) -> list[Caution]:
    """Return warnings with the most serious kinds first."""
    rank = {kind: index for index, kind in enumerate(KINDS)}
    return sorted(warnings, key=lambda warning: rank.get(warning.id, len(rank)))


NOTED = "noted"
"""The kind of what a run's manifest warns of: each note is a warning by itself."""
CLOCKS_AGREE = 0.01
WAKING_S = 0.002
"""The time that a client may need to wake up when a token arrives; over 1 % of a short answer."""
DRIFT = 0.10


def check_clocks(frame: Frame) -> Iterator[Observation]:
    """Compare the client's clock with the engine's."""
    engine = frame.column("tok_per_sec")
    client = frame.column("client_tok_per_sec")
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = client / engine - 1
        gap = np.abs(frame.decoded / client - frame.decoded / engine)
    for number, arm in enumerate(frame.arms):
        compared = (frame.arm == number) & np.isfinite(ratio) & np.isfinite(gap) & frame.answered
        differences = ratio[compared]
        if len(differences) and abs(np.median(differences)) > CLOCKS_AGREE and np.median(gap[compared]) > WAKING_S:
            yield observation("clock-mismatch", arm, "off", percent=100 * float(np.median(differences)))


def check_disturbed(frame: Frame) -> Iterator[Observation]:
    """Name the cells whose times are left out."""
    for arm, block in np.argwhere(frame.disturbed).tolist():
        percent = 100 * -float(np.expm1(-frame.slowness[arm, block]))
        yield observation("disturbed-cell", frame.cell_name(block, arm), "slower", percent=percent)


def check_notes(frame: Frame) -> Iterator[Observation]:
    """Repeat what was noted while the run was prepared and measured."""
    for note in frame.manifest.warnings if frame.manifest else ():
        yield observation(NOTED, "the whole run", "text", text=note)


def check_drift(frame: Frame) -> Iterator[Observation]:
    """Compare the first and last third of the baseline's answers within every block; the worst block is reported."""
    worst, drift = DRIFT, None
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
            rates = {"before": float(before), "after": float(after), "percent": 100 * change}
            code = "rose" if change > 0 else "fell"
            worst, drift = abs(change), observation("drift", frame.cell_name(block, frame.baseline), code, **rates)
    if drift:
        yield drift
