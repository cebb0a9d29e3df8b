"""Checks of what was recorded: cells, records, counters. Each yields what it saw as (id, where, seen)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.cells import attestations, failed_cells, speculates
from benchctl.analysis.intervals import MIN_BLOCKS
from benchctl.analysis.results import ALL_TASKS, SelfConsistency, SpeedUp
from benchctl.data.manifest import UNCHECKED_ACCEPTANCE

if TYPE_CHECKING:
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.counters import Counters
    from benchctl.analysis.frame import Frame, Integers
    from benchctl.data.record import Record

_REMEMBERED = frozenset({"ngram-cache", "ngram-mod", "suffix"})
"""Types of speculation that draft from what earlier requests of the same process said, for runs whose manifest does not
say which arms do."""

ENOUGH_ANSWERS = 4
"""With fewer, equal counts at two depths are chance."""
NAMED = 3
"""Cases that a warning names; the others are counted."""

Seen = tuple[str, str, str]
"""(id of the warning, where, what was seen)."""


def check_preflight(frame: Frame) -> Iterator[Seen]:
    """What was found amiss before anything was measured."""
    found = frame.manifest.preflight if frame.manifest else None
    for finding in found.findings if found else ():
        yield finding.id, finding.where, finding.seen


def check_cells(frame: Frame) -> Iterator[Seen]:
    """Cells that failed, or did not run as asked."""
    for name, reason, log in failed_cells(frame):
        yield "failed-cell", name, f"{reason} (log: {log})"


def check_records(frame: Frame, answers: Answers, damaged: Sequence[str]) -> Iterator[Seen]:
    """Records that are missing, damaged, too short, or without token ids."""
    planned = len(frame.prompts) * len(frame.blocks)
    tuning = frame.manifest.tuning if frame.manifest else None
    if tuning is not None:
        chose = f"{tuning.chosen} was chosen" if tuning.chosen else "none is chosen" + ("" if tuning.ended else " yet")
        yield "searched", "run", f"It searched {len(frame.arms) - 1} settings over {len(frame.blocks)} blocks; {chose}."
    for number, arm in enumerate(frame.arms):
        rows = frame.rows(number)
        missing = planned - int(frame.answered[rows].sum())
        if missing and tuning is None:  # else not every block asks every arm every prompt
            yield "missing-records", arm, f"{missing} of {planned} answers are missing or failed."
        listed = rows.tolist()
        records = [frame.records[row] for row in listed]
        broken = np.array([(answers.flaw[row] or "").startswith("is damaged") for row in listed], dtype=bool)
        if broken.any():
            yield "damaged-records", arm, f"Text and hash do not match: {_named(frame, rows[broken])}."
        withheld = frame.answered[rows] & np.array(
            [record.token_ids is None and record.schema_version > 0 for record in records], dtype=bool
        )
        if withheld.any():
            gap = frame.records[rows[withheld][0]].token_gap
            because = f" ({gap})" if gap else ""
            yield "token-ids-withheld", arm, f"{_named(frame, rows[withheld])}{because}."
        short = frame.answered[rows] & (frame.predicted[rows] < 2)
        if short.any():
            yield "empty-answer", arm, f"{_named(frame, rows[short])}."
    if damaged:
        more = f" And {len(damaged) - NAMED} more." if len(damaged) > NAMED else ""
        yield "damaged-records", "records", " ".join(damaged[:NAMED]) + more


def check_replication(frame: Frame, consistency: Sequence[SelfConsistency]) -> Iterator[Seen]:
    """Too few blocks, or a baseline that speculates or does not repeat itself."""
    blocks = len(frame.blocks)
    if blocks < MIN_BLOCKS:
        yield "few-blocks", "run", f"{'One block' if blocks == 1 else f'{blocks} blocks'}: no interval between runs."
    if speculates(frame, frame.baseline):
        yield (
            "baseline-speculates",
            frame.arms[frame.baseline],
            "The arm that the others are compared with drafts, too.",
        )
    own = next((one for one in consistency if one.arm == frame.arms[frame.baseline]), None)
    if own and own.differing:
        shown = ", ".join(own.differing[:NAMED]) + (", …" if len(own.differing) > NAMED else "")
        seen = f"{len(own.differing)} of {own.prompts} prompts are answered differently from block to block: {shown}."
        yield "baseline-not-reproducible", own.arm, seen


def check_work(frame: Frame, speedups: Sequence[SpeedUp]) -> Iterator[Seen]:
    """Answers of the arm and of the baseline that are not the same amount of work."""
    for one in speedups:
        if one.task == ALL_TASKS and one.pairs_unequal and one.pooled is not None:
            matched = f"{one.length_matched:.2f}×" if one.length_matched is not None else "not known"
            seen = (
                f"{one.pairs_unequal} of {one.pairs} pairs have another length or finish reason; "
                f"the speed-up is {one.pooled:.2f}×, with each pair cut to the length that both reached {matched}."
            )
            yield "unequal-work", one.arm, seen


def check_speculation(frame: Frame, counters: Counters) -> Iterator[Seen]:
    """Counters that contradict themselves, speculation that never fired, depths beyond the recipe."""
    for number, arm in enumerate(frame.arms):
        here = frame.arm == number
        for sentence, mask in counters.contradictions:
            if (mask & here).any():
                seen = f"{sentence[0].upper()}{sentence[1:]}: {_named(frame, np.flatnonzero(mask & here))}."
                yield "contradictory-counters", arm, seen
        own = attestations(frame, arm)
        if own and own[0].state == "idle":
            yield "never-fired", arm, "Nothing was drafted in the whole run."
        if own and own[0].state == "unverified":
            yield "unverified", arm, own[0].reason or "The endpoint does not show whether it speculated."
        replayed = next((line for one in own for line in one.evidence if UNCHECKED_ACCEPTANCE in line), None)
        if replayed is not None:
            yield "unchecked-acceptance", arm, f"{replayed}."
        said = (
            next((one.speculation for one in frame.manifest.arms if one.name == arm), None) if frame.manifest else None
        )
        limit = (said or {}).get("max")
        if isinstance(limit, int):
            deep = _deeper(frame, counters, frame.rows(number), limit)
            if len(deep):
                yield "depth-ignored", arm, f"More than {limit} tokens a round: {_named(frame, deep)}."


def check_depths(frame: Frame, counters: Counters) -> Iterator[Seen]:
    """Arms that differ in their depth alone, with the same counts in every answer."""
    deep = [(arm, depth, rest) for arm in range(len(frame.arms)) for depth, rest in _depth(frame, arm)]
    for place, (first, depth, rest) in enumerate(deep):
        for second, other, others_rest in deep[place + 1 :]:
            if rest != others_rest or depth == other:
                continue
            ours, theirs = frame.pairs(first, second)
            known = ~np.isnan(counters.drafted[ours]) & ~np.isnan(counters.drafted[theirs])
            ours, theirs = ours[known], theirs[known]
            columns = (counters.drafted, counters.accepted, counters.rounds)
            same = all(np.array_equal(one[ours], one[theirs], equal_nan=True) for one in columns)
            if len(ours) >= ENOUGH_ANSWERS and same and counters.drafted[ours].any():
                names = f"{frame.arms[first]} (depth {depth}) and {frame.arms[second]} (depth {other})"
                seen = f"{names} drafted and accepted the same numbers in all {len(ours)} answers."
                yield "depth-without-effect", frame.arms[second], seen


def _depth(frame: Frame, arm: int) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the depth that the recipe gives an arm, and everything else that it says of its speculation, if any."""
    identities = frame.manifest.arms if frame.manifest else []
    said = next((one.speculation for one in identities if one.name == frame.arms[arm]), None) or {}
    if isinstance(depth := said.get("max"), int):
        yield depth, {key: value for key, value in said.items() if key != "max"}


def check_repeats(frame: Frame, counters: Counters, warm_ups: Sequence[Record]) -> Iterator[Seen]:
    """Prompts that one process was asked twice, where the drafter remembers what it has seen."""
    for number, arm in enumerate(frame.arms):
        if not _remembers(frame, arm):
            continue
        asked = {(record.block, record.attempt, record.prompt_sha) for record in warm_ups if record.label == arm}
        repeated = []
        for row in sorted(frame.rows(number).tolist(), key=lambda row: frame.records[row].started_at or ""):
            record = frame.records[row]
            process = (record.block, record.attempt, record.prompt_sha)
            if record.prompt_sha is not None and process in asked:
                repeated.append(row)
            asked.add(process)
        if repeated:
            yield (
                "repeated-prompts",
                arm,
                f"Asked before in the same process: {_named(frame, np.array(sorted(repeated)))}."
                + _acceptance_when_repeated(frame, counters, number, repeated),
            )


def _remembers(frame: Frame, arm: str) -> bool:
    told = next((one.remembers for one in frame.manifest.arms if one.name == arm), None) if frame.manifest else None
    return not _REMEMBERED.isdisjoint(_speculation_types(frame, arm)) if told is None else told


def _acceptance_when_repeated(frame: Frame, counters: Counters, arm: int, repeated: list[int]) -> str:
    """Say how much was accepted where a prompt was new, and where it was not; nothing where either is not known."""
    again = np.isin(np.arange(len(frame.records)), repeated)
    own = (frame.arm == arm) & frame.answered & counters.trusted & (counters.drafted > 0)
    rates = [
        counters.accepted[rows].sum() / counters.drafted[rows].sum()
        for rows in (own & ~again, own & again)
        if rows.any() and np.isfinite(counters.accepted[rows]).all()
    ]
    if len(rates) < 2:
        return ""
    return f" Accepted: {100 * rates[0]:.0f} % where a prompt was new, {100 * rates[1]:.0f} % where it was repeated."


def _speculation_types(frame: Frame, arm: str) -> list[str]:
    said = next((one.speculation for one in frame.manifest.arms if one.name == arm), None) if frame.manifest else None
    kind = (said or {}).get("type")
    return [kind] if isinstance(kind, str) else list(kind or ())


def _deeper(frame: Frame, counters: Counters, rows: Integers, limit: int) -> Integers:
    """Return the rows with a round that drafted more than `limit` tokens."""
    records = [frame.records[row] for row in rows.tolist()]
    placed = [any((r.drafted_by_position or r.accepted_by_position or ())[limit:]) for r in records]
    return rows[np.array(placed, dtype=bool) | (counters.drafted[rows] > limit * counters.rounds[rows])]


def _named(frame: Frame, rows: Integers) -> str:
    """Count records and name the first few."""
    listed: list[int] = rows.tolist()
    shown = "; ".join(frame.name(row) for row in listed[:NAMED])
    more = f"; and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"{len(listed)} {'record' if len(listed) == 1 else 'records'} ({shown}{more})"
