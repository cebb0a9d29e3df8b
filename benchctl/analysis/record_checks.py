"""Checks of what was recorded: cells, records, counters, and the machine beside them. Each yields an `Observation`.

What a system does not report gives no warning; other work is then estimated by the load average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

from benchctl.analysis.answers import repeated_share
from benchctl.analysis.cells import attestations, failed_cells, identity_of, latest_cells, speculates, speculation_of
from benchctl.analysis.results import ALL_TASKS, SelfConsistency, SpeedUp
from benchctl.analysis.statistics import MIN_BLOCKS
from benchctl.data.cell import MemoryRecord, WatchRecord
from benchctl.data.integrity import Integrity
from benchctl.text import percent, plural

if TYPE_CHECKING:
    from benchctl.analysis.acceptance import CounterColumns
    from benchctl.analysis.answers import Answers
    from benchctl.analysis.frame import Booleans, Frame, Integers
    from benchctl.data.record import Record

_REMEMBERED = frozenset({"ngram-cache", "ngram-mod", "suffix"})
"""Types that draft from earlier requests of the same process, where the manifest does not say so."""

ENOUGH_ANSWERS = 4
"""With fewer, equal counts at two depths are chance."""
REPEATED = 0.5
"""Share of an answer from which on a repeated phrase is named."""
NAMED = 3
"""Cases that a warning lists; the others are counted."""

Observation = tuple[str, str, str]
"""(id of the warning, where, the evidence in sentences)."""


def check_integrity(integrity: Integrity | None) -> Iterator[Observation]:
    """Files that are not as they were written, or contradict themselves."""
    for kind, where, found in (
        ("changed-evidence", "files", integrity.damage if integrity else ()),
        ("changed-scores", "scores", integrity.scores if integrity else ()),
    ):
        if found:
            yield kind, where, _first_sentences(found)


def _first_sentences(found: Sequence[str]) -> str:
    return " ".join(found[:NAMED]) + (f" And {len(found) - NAMED} more." if len(found) > NAMED else "")


def check_cells(frame: Frame) -> Iterator[Observation]:
    """Findings of the preflight, and cells that failed, or did not run what the recipe requests."""
    found = frame.manifest.preflight if frame.manifest else None
    yield from ((finding.id, finding.where, finding.seen) for finding in (found.findings if found else ()))
    for name, reason, log in failed_cells(frame):
        yield "failed-cell", name, f"{reason} (log: {log})"


def check_records(frame: Frame, answers: Answers, damaged: Sequence[str]) -> Iterator[Observation]:
    """Records that are missing, damaged, too short, or without token ids."""
    tuning = frame.manifest.tuning if frame.manifest else None
    if tuning is not None:
        chose = f"{tuning.chosen} was chosen" if tuning.chosen else "none is chosen" + ("" if tuning.ended else " yet")
        yield "searched", "run", f"It searched {len(frame.arms) - 1} settings over {len(frame.blocks)} blocks; {chose}."
    for number, arm in enumerate(frame.arms):
        rows, planned = frame.rows(number), len(frame.prompts) * frame.blocks_of(number)
        missing = planned - int(frame.answered[rows].sum())
        if missing and tuning is None:  # else not every block has every prompt of every arm
            yield "missing-records", arm, f"{missing} of {planned} answers are missing or failed."
        listed = rows.tolist()
        records = [frame.records[row] for row in listed]
        broken = np.array([(answers.flaw[row] or "").startswith("is damaged") for row in listed], dtype=bool)
        if broken.any():
            yield "damaged-records", arm, f"Text and hash do not match: {_named(frame, rows[broken])}."
        for reason in dict.fromkeys(frame.refused[row] for row in listed):
            of_reason = [row for row in listed if reason is not None and frame.refused[row] == reason]
            if of_reason:
                record = frame.records[of_reason[0]]
                named = f"{_named(frame, np.array(of_reason))}; the first counts {record.n_predicted} tokens"
                yield "contradicted-count", arm, f"{reason[0].upper()}{reason[1:]}: {named}."
        no_ids = frame.answered[rows] & np.array(
            [record.token_ids is None and record.schema_version > 0 for record in records], dtype=bool
        )
        if no_ids.any():
            gap = frame.records[rows[no_ids][0]].token_gap
            because = f" ({gap})" if gap else ""
            yield "token-ids-withheld", arm, f"{_named(frame, rows[no_ids])}{because}."
        least = [records[place].client_tok_per_sec_least for place in np.flatnonzero(~np.isfinite(frame.rate[rows]))]
        if limits := [rate for rate in least if rate is not None]:
            seen = f"{len(limits)} of {len(records)} answers have no decode rate; it is at least "
            yield "first-event", arm, f"{seen}{float(np.median(limits)):.1f} tok/s (median)."
        short = frame.answered[rows] & (frame.predicted[rows] < 2)
        if short.any():
            yield "empty-answer", arm, f"{_named(frame, rows[short])}."
    if damaged:
        yield "damaged-records", "records", _first_sentences(damaged)


def check_replication(frame: Frame, consistency: Sequence[SelfConsistency]) -> Iterator[Observation]:
    """Too few blocks, or a baseline that speculates or does not repeat itself."""
    blocks = len(frame.blocks)
    if blocks < MIN_BLOCKS:
        yield "few-blocks", "run", f"{'One block' if blocks == 1 else f'{blocks} blocks'}: no interval between runs."
    if speculates(frame, frame.baseline):
        what = "The arm that the others are compared with drafts itself."
        yield "baseline-speculates", frame.arms[frame.baseline], what
    yield from _baseline_endings(frame)
    own = next((row for row in consistency if row.arm == frame.arms[frame.baseline]), None)
    if own and own.differing:
        prompts = ", ".join(own.differing[:NAMED]) + (", …" if len(own.differing) > NAMED else "")
        changed = f"{len(own.differing)} of {own.prompts} prompts are answered differently from block to block"
        yield "baseline-not-reproducible", own.arm, f"{changed}: {prompts}."


def _baseline_endings(frame: Frame) -> Iterator[Observation]:
    """Rules of greedy decoding that answers of the baseline break, so that they are held against no arm."""
    manifest = frame.manifest
    sampling = (manifest.recipe.get("sampling") if manifest else None) or {}
    limit = sampling.get("max_tokens")
    listed = manifest.target.facts.get("end_tokens") if manifest and not sampling.get("ignore_eos") else None
    ends = frozenset(listed) if isinstance(listed, list) else frozenset[int]()
    rows = frame.rows(frame.baseline)
    rows = rows[frame.answered[rows]]
    records = [frame.records[row] for row in rows.tolist()]
    lengths = [record.tokens_listed for record in records]  # a server's count alone condemns nobody
    read = [record.prompt_tokens or 0 for record in records]
    longest = max((before + (count or 0) for before, count in zip(read, lengths, strict=True)), default=0)
    most = limit if isinstance(limit, int) else None
    broken = {
        "more tokens than asked": [most is not None and count is not None and count > most for count in lengths],
        "cut as too long below the limit": [
            most is not None
            and count is not None
            and record.finish_reason == "length"
            and count < most
            and before + count < longest  # else the context may have been full
            for record, before, count in zip(records, read, lengths, strict=True)
        ],
        "going on after an end token": [not ends.isdisjoint((record.token_ids or [])[:-1]) for record in records],
    }
    for rule, where in broken.items():
        if any(where):
            yield "baseline-endings", frame.arms[frame.baseline], f"{rule.capitalize()}: {_named(frame, rows[where])}."


def check_work(frame: Frame, speedups: Sequence[SpeedUp]) -> Iterator[Observation]:
    """Answers of the arm and of the baseline that are not the same amount of work."""
    for speedup in speedups:
        if speedup.task == ALL_TASKS and speedup.pairs_unequal and speedup.pooled is not None:
            matched = f"{speedup.length_matched:.2f}×" if speedup.length_matched is not None else "not known"
            sentence = (
                f"{speedup.pairs_unequal} of {speedup.pairs} pairs have another length or finish reason; "
                f"the speed-up is {speedup.pooled:.2f}×, with each pair cut to the length that both reached {matched}."
            )
            yield "unequal-work", speedup.arm, sentence


def check_speculation(frame: Frame, counters: CounterColumns) -> Iterator[Observation]:
    """Counters that contradict themselves, speculation that never fired, depths beyond the recipe."""
    for number, arm in enumerate(frame.arms):
        here = frame.arm == number
        for sentence, mask in counters.contradictions.items():
            if (mask & here).any():
                named = _named(frame, np.flatnonzero(mask & here))
                yield "contradictory-counters", arm, f"{sentence[0].upper()}{sentence[1:]}: {named}."
        own = attestations(frame, arm)
        if own and own[0].state == "idle":
            yield "never-fired", arm, "Nothing was drafted in the whole run."
        if own and own[0].state == "unverified":
            yield "unverified", arm, own[0].reason or "The endpoint does not show whether it speculated."
        limit = speculation_of(frame, arm).get("max")
        if isinstance(limit, int):
            deep = _deeper(frame, counters, frame.rows(number), limit)
            if len(deep):
                yield "depth-ignored", arm, f"More than {limit} tokens per round: {_named(frame, deep)}."


def check_depths(frame: Frame, counters: CounterColumns) -> Iterator[Observation]:
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
            same = all(np.array_equal(column[ours], column[theirs], equal_nan=True) for column in columns)
            if len(ours) >= ENOUGH_ANSWERS and same and counters.drafted[ours].any():
                names = f"{frame.arms[first]} (depth {depth}) and {frame.arms[second]} (depth {other})"
                sentence = f"{names} drafted and accepted the same numbers in all {len(ours)} answers."
                yield "depth-without-effect", frame.arms[second], sentence


def _depth(frame: Frame, arm: int) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the depth that the recipe gives an arm, and all other settings of its speculation, if any."""
    settings = speculation_of(frame, frame.arms[arm])
    if isinstance(depth := settings.get("max"), int):
        yield depth, {key: value for key, value in settings.items() if key != "max"}


def check_repetitions(frame: Frame) -> Iterator[Observation]:
    """Answers of the baseline that repeat a phrase over much of their text."""
    shares: dict[str, float] = {}
    known: dict[str | None, float] = {}  # blocks repeat answers
    for record in (frame.records[row] for row in frame.rows(frame.baseline).tolist()):
        if record.error is None:
            answer = record.token_sha or record.content_sha or record.content
            if answer not in known:
                known[answer] = repeated_share(record.token_ids or record.content or "")
            shares[f"{record.task}/{record.prompt_idx}"] = known[answer]
    found = sorted((place for place in shares if shares[place] >= REPEATED), key=lambda place: -shares[place])
    if found:
        named = first_cases([f"{place}: {percent(shares[place])}" for place in found])
        what = f"{len(found)} of {len(shares)} answers repeat a phrase over half of their text or more ({named})."
        yield "repeating-answers", frame.arms[frame.baseline], what


def check_repeats(frame: Frame, counters: CounterColumns, warm_ups: Sequence[Record]) -> Iterator[Observation]:
    """Prompts that were sent twice to a process, where the drafter remembers earlier requests."""
    for number, arm in enumerate(frame.arms):
        if not _remembers(frame, arm):
            continue
        earlier = {(_process(frame, record), record.prompt_sha) for record in warm_ups if record.label == arm}
        repeated = []
        for row in sorted(frame.rows(number).tolist(), key=lambda row: frame.records[row].started_at or ""):
            record = frame.records[row]
            sent = (_process(frame, record), record.prompt_sha)
            if record.prompt_sha is not None and sent in earlier:
                repeated.append(row)
            earlier.add(sent)
        if repeated:
            yield (
                "repeated-prompts",
                arm,
                f"Sent before to the same process: {_named(frame, np.array(sorted(repeated)))}."
                + _acceptance_when_repeated(frame, counters, number, repeated),
            )


def _process(frame: Frame, record: Record) -> tuple[int, int] | None:
    """Return the block and attempt of its process; `None` for an endpoint, which has the same in all blocks."""
    identity = identity_of(frame.manifest, record.label)
    return None if identity is not None and identity.url is not None else (record.block, record.attempt)


def _remembers(frame: Frame, arm: str) -> bool:
    if (identity := identity_of(frame.manifest, arm)) is None:
        return False
    return not _REMEMBERED.isdisjoint(identity.types) if identity.remembers is None else identity.remembers


def _acceptance_when_repeated(frame: Frame, counters: CounterColumns, arm: int, repeated: list[int]) -> str:
    """Return acceptance and speed where a prompt was new, and where it was not; empty where either is not known."""
    again = np.isin(np.arange(len(frame.records)), repeated)
    own = (frame.arm == arm) & frame.answered & counters.trusted & (counters.drafted > 0)
    told = [
        percent(counters.accepted[rows].sum() / counters.drafted[rows].sum()) + _pace(frame, rows)
        for rows in (own & ~again, own & again)
        if rows.any() and np.isfinite(counters.accepted[rows]).all()
    ]
    return f" Accepted: {told[0]} where a prompt was new, {told[1]} where it was repeated." if len(told) == 2 else ""


def _pace(frame: Frame, rows: Booleans) -> str:
    """Return the decode rate of some rows, tokens over time, as a part of a sentence; empty where none was timed."""
    timed = rows & np.isfinite(frame.decode_s)
    return f" at {frame.decoded[timed].sum() / frame.decode_s[timed].sum():.3g} tok/s" if timed.any() else ""


def _deeper(frame: Frame, counters: CounterColumns, rows: Integers, limit: int) -> Integers:
    """Return the rows with a round that drafted more than `limit` tokens."""
    records = [frame.records[row] for row in rows.tolist()]
    placed = [any((r.drafted_by_position or r.accepted_by_position or ())[limit:]) for r in records]
    return rows[np.array(placed, dtype=bool) | (counters.drafted[rows] > limit * counters.rounds[rows])]


def _named(frame: Frame, rows: Integers) -> str:
    """Count records and list the first few."""
    listed: list[int] = rows.tolist()
    names = first_cases([frame.name(row) for row in listed])
    return f"{len(listed)} {plural(len(listed), 'record')} ({names})"


def first_cases(cases: Sequence[str]) -> str:
    """List the first few cases of a warning, and count the others."""
    more = f"; and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
    return "; ".join(cases[:NAMED]) + more


OTHERS_SHARE = 0.10
"""Of the cores' time while a cell was measured: more than this used by others, or stolen by a host, is another load."""
LEAST_REPORTED = 0.05
"""Cores; less is not reported."""
SHORTEST_S = 0.5
"""A shorter watch gives no shares: the system counts processor time in hundredths of a second."""
LOAD_SHARE = 0.5
"""Of the cores: a higher one-minute load is someone else's work. Before a later cell all cores may have been busy."""
SLOWER_CLOCK = 0.15
"""A cell's clock so far below the run's fastest cell is not the processor's full speed."""


DISTURBANCES: tuple[tuple[str, float, Callable[[WatchRecord, MemoryRecord], float | None], str, str], ...] = (
    ("throttling", 0, lambda watch, _: watch.throttled, "Heat slowed a core", "{} times"),
    ("throttling", 0.01, lambda watch, _: _gpu_slowed(watch), "Heat slowed the GPU", "{:.0%} of the time"),
    ("swapping", 8, lambda watch, _: (watch.swapped_bytes or 0) / 2**20, "The system swapped", "{:.0f} MiB"),
    ("swapping", 100, lambda watch, _: watch.engine_major_faults, "The engine waited for the disk", "{:,} times"),
    ("swapping", 8, lambda _, memory: (memory.swapped or 0) / 2**20, "The engine was swapped out", "{:.0f} MiB"),
    ("clock-jump", 0.1, lambda watch, _: watch.clock_jump_s, "The wall clock jumped", "{:+.1f} s"),
)
"""(id of the warning, up to where it is not reported, value, what happened, value in words). Fewer major faults are
pages of a library used for the first time; a clock that is steered moves by half a thousandth."""
_UNWATCHED = WatchRecord(wall_s=0)


def check_disturbances(frame: Frame) -> Iterator[Observation]:
    """Check the watches of every process of the run, earlier attempts included: their records may count."""
    cells = [cell for cell in frame.manifest.cells if cell.discarded is None] if frame.manifest else []
    watched = [(cell.name, cell.watch) for cell in cells if cell.watch is not None]
    yield from _other_work(watched)
    yield from _load(frame)
    found: dict[str, list[str]] = {}
    for kind, beyond, of, what, in_words in DISTURBANCES:
        values = [(of(cell.watch or _UNWATCHED, cell.memory or MemoryRecord()), cell.name) for cell in cells]
        far = [(value, name) for value, name in values if value and abs(value) > beyond]
        if far:
            value, worst = max(far, key=lambda pair: (abs(pair[0]), pair[1]))
            told = in_words.format(value).replace("%", " %")
            where = "1 cell" if len(far) == 1 else f"{len(far)} cells"
            found.setdefault(kind, []).append(f"{what} in {where}, most in {worst}: {told}.")
    if clocks := [(watch.cpu_mhz, name) for name, watch in watched if watch.cpu_mhz]:
        (lowest, name), (highest, _) = min(clocks), max(clocks)
        if lowest < (1 - SLOWER_CLOCK) * highest:
            told = f"The cores ran at {lowest:.0f} MHz in {name}, and at up to {highest:.0f} MHz in other cells."
            found.setdefault("throttling", []).append(told)
    if spilled := [f"{cell.arm}: {cell.memory.spilled}" for cell in cells if cell.memory and cell.memory.spilled]:
        found["spilled"] = [f"{'; '.join(dict.fromkeys(spilled))}."]
    yield from ((kind, "machine", " ".join(sentences)) for kind, sentences in found.items())


WatchedCells = Sequence[tuple[str, WatchRecord]]
"""(name of the cell, its watch)."""


def _other_work(watched: WatchedCells) -> Iterator[Observation]:
    shares = [
        (((watch.other_cpu_s or 0.0) + (watch.stolen_cpu_s or 0.0)) / (watch.wall_s * watch.cores), name, watch)
        for name, watch in watched
        if {watch.other_cpu_s, watch.stolen_cpu_s} != {None} and watch.cores and watch.wall_s >= SHORTEST_S
    ]
    busy = [share for share in shares if share[0] > OTHERS_SHARE]
    if busy:
        _, name, watch = max(busy, key=itemgetter(0))
        used, stolen = (watch.other_cpu_s or 0.0) / watch.wall_s, (watch.stolen_cpu_s or 0.0) / watch.wall_s
        parts = [f"other programs used {used:.1f} of {watch.cores} cores"] if used >= LEAST_REPORTED else []
        if stolen >= LEAST_REPORTED:
            rest = "" if parts else f" of {watch.cores} cores"
            parts.append(f"the host of this virtual machine took {stolen:.1f}{rest}")
        where = f"{len(busy)} of {len(shares)} cells had to share the cores; in the worst, {name},"
        yield "high-load", "machine", f"{where} {' and '.join(parts)}."


def _load(frame: Frame) -> Iterator[Observation]:
    """Cells that started while something else was running, where nothing better is known than the load average."""
    cores = (frame.manifest.machine if frame.manifest else {}).get("cores")
    cells = sorted(latest_cells(frame.manifest), key=lambda cell: cell.started_at)
    if not isinstance(cores, int) or any(cell.watch and cell.watch.other_cpu_s is not None for cell in cells):
        return
    known = [(cell.load_before, cell) for cell in cells if cell.load_before is not None]
    own = [0, *(cores for _ in known[1:])]
    busy = [(load, cell) for (load, cell), ours in zip(known, own, strict=False) if load > LOAD_SHARE * cores + ours]
    if busy:
        load, worst = max(busy, key=itemgetter(0))
        sentence = (
            f"{len(busy)} of {len(known)} cells started at a higher load than the run itself explains; "
            f"the highest was {load:.1f} on {cores} cores, before {worst.name}."
        )
        yield "high-load", "machine", sentence


def _gpu_slowed(watch: WatchRecord) -> float:
    return (watch.gpu_slowed_s or 0.0) / watch.wall_s if watch.wall_s else 0.0
