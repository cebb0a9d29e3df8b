"""Checks of what was recorded: cells, records, counters, and the machine beside them. Each yields an `Observation`.

What a system does not report gives no warning; other work is then estimated by the load average.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchctl.analysis.answers import repeated_share
from benchctl.analysis.cells import attestations, failed_cells, identity_of, latest_cells, speculates, speculation_of
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.output_results import SelfConsistency
from benchctl.analysis.result import MIN_BLOCKS, Fact
from benchctl.analysis.speed_results import SpeedUp
from benchctl.data.cell import MemoryRecord, WatchRecord
from benchctl.data.integrity import Integrity
from benchctl.recipes.adapters import registered
from benchctl.recipes.speculation import DRAFTS
from benchctl.text import percent

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
ENOUGH_DRAFTED = 100
"""Draft tokens from which on a share of accepted ones that is next to nothing is no chance."""
DEAD = 0.02
"""A draft model or head of which fewer are accepted does not draft for this target. The worst that works has 20 %."""
NAMED = 3
"""Cases that a warning lists; the others are counted."""


class Observation(NamedTuple):
    """What a check found."""

    id: str
    """Of the warning."""
    where: str
    facts: tuple[Fact, ...]


def observation(kind: str, where: str, code: str, **values: Any) -> Observation:  # noqa: ANN401 - of a sentence
    """Return an observation of a single fact."""
    return Observation(kind, where, (Fact(code=code, values=values),))


def cases(names: Sequence[str]) -> dict[str, Any]:
    """Return how many cases there are, and the first few of them."""
    return {"count": len(names), "first": list(names[:NAMED])}


def check_canaries(frame: Frame) -> Iterator[Observation]:
    """First prompts that got another answer, or none, when their process was asked again at its end."""
    for arm in frame.arms:
        cells = [cell for cell in latest_cells(frame.manifest) if cell.arm == arm]
        canaries = [(cell.name, cell.canary) for cell in cells if cell.canary is not None]
        changed = [(name, canary) for name, canary in canaries if canary.exact and canary.same is False]
        failed = [f"{name}: {canary.error}" for name, canary in canaries if canary.error is not None]
        facts = []
        if changed:
            prompts = cases([f"{name}: {canary.task}/{canary.prompt_idx}" for name, canary in changed])
            requests = max(canary.requests for _, canary in changed)
            facts.append(Fact(code="other", values={"prompts": prompts, "requests": requests}))
        if failed:
            facts.append(Fact(code="failed", values={"errors": cases(failed)}))
        if facts:
            yield Observation("repeat-differs", arm, tuple(facts))


def check_integrity(integrity: Integrity | None) -> Iterator[Observation]:
    """Files that are not as they were written, or contradict themselves."""
    for kind, where, findings in (
        ("changed-evidence", "files", integrity.damage if integrity else ()),
        ("changed-scores", "scores", integrity.scores if integrity else ()),
    ):
        if findings:
            yield observation(kind, where, "texts", texts=cases(findings))


def check_cells(frame: Frame) -> Iterator[Observation]:
    """Findings of the preflight, and cells that failed, or did not run what the recipe requests."""
    preflight = frame.manifest.preflight if frame.manifest else None
    for finding in preflight.findings if preflight else ():
        yield observation(finding.id, finding.where, "text", text=finding.seen)
    for name, reason, log in failed_cells(frame):
        yield observation("failed-cell", name, "failed", reason=reason, log=log)


def check_records(frame: Frame, answers: Answers, damaged: Sequence[str]) -> Iterator[Observation]:
    """Records that are missing, damaged, too short, or without token ids."""
    tuning = frame.manifest.tuning if frame.manifest else None
    if tuning is not None:
        code = "chosen" if tuning.chosen else "none" if tuning.ended else "none yet"
        extent = {"settings": len(frame.arms) - 1, "blocks": len(frame.blocks), "chosen": tuning.chosen}
        yield observation("searched", "run", code, **extent)
    for number, arm in enumerate(frame.arms):
        rows, planned = frame.rows(number), len(frame.prompts) * frame.blocks_of(number)
        missing = planned - int(frame.answered[rows].sum())
        if missing and tuning is None:  # else not every block has every prompt of every arm
            yield observation("missing-records", arm, "missing", missing=missing, planned=planned)
        listed = rows.tolist()
        records = [frame.records[row] for row in listed]
        broken = np.array([(answers.flaw[row] or "").startswith("is damaged") for row in listed], dtype=bool)
        if broken.any():
            yield observation("damaged-records", arm, "hashes", records=_named(frame, rows[broken]))
        for reason in dict.fromkeys(frame.refused[row] for row in listed):
            of_reason = [row for row in listed if reason is not None and frame.refused[row] == reason]
            if of_reason:
                tokens, named = frame.records[of_reason[0]].n_predicted, _named(frame, np.array(of_reason))
                yield observation("contradicted-count", arm, "count", reason=reason, records=named, tokens=tokens)
        no_ids = frame.answered[rows] & np.array(
            [record.token_ids is None and record.schema_version > 0 for record in records], dtype=bool
        )
        if no_ids.any():
            gap = frame.records[rows[no_ids][0]].token_gap
            code = "withheld for a reason" if gap else "withheld"
            yield observation("token-ids-withheld", arm, code, records=_named(frame, rows[no_ids]), reason=gap)
        floors = [records[index].client_tok_per_sec_least for index in np.flatnonzero(~np.isfinite(frame.rate[rows]))]
        if limits := [rate for rate in floors if rate is not None]:
            counts = {"unrated": len(limits), "answers": len(records), "limit": float(np.median(limits))}
            yield observation("first-event", arm, "limit", **counts)
        short = frame.answered[rows] & (frame.predicted[rows] < 2)
        if short.any():
            yield observation("empty-answer", arm, "records", records=_named(frame, rows[short]))
    if damaged:
        yield observation("damaged-records", "records", "texts", texts=cases(damaged))


def check_replication(frame: Frame, consistency: Sequence[SelfConsistency]) -> Iterator[Observation]:
    """Too few blocks, or a baseline that speculates or does not repeat itself."""
    blocks = len(frame.blocks)
    if blocks < MIN_BLOCKS:
        yield observation("few-blocks", "run", "one" if blocks == 1 else "few", blocks=blocks)
    if speculates(frame, frame.baseline):
        yield observation("baseline-speculates", frame.arms[frame.baseline], "drafts")
    yield from _baseline_endings(frame)
    baseline = next((row for row in consistency if row.arm == frame.arms[frame.baseline]), None)
    if baseline and baseline.differing:
        differing = cases(baseline.differing)
        yield observation(
            "baseline-not-reproducible",
            baseline.arm,
            "differing",
            differing=differing,
            prompts=baseline.prompts,
        )


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
    max_tokens = limit if isinstance(limit, int) else None
    broken = {
        "more tokens": [max_tokens is not None and count is not None and count > max_tokens for count in lengths],
        "cut early": [
            max_tokens is not None
            and count is not None
            and record.finish_reason == "length"
            and count < max_tokens
            and before + count < longest  # else the context may have been full
            for record, before, count in zip(records, read, lengths, strict=True)
        ],
        "after the end": [not ends.isdisjoint((record.token_ids or [])[:-1]) for record in records],
    }
    for rule, where in broken.items():
        if any(where):
            records_named = _named(frame, rows[where])
            yield observation("baseline-endings", frame.arms[frame.baseline], rule, records=records_named)


def check_work(frame: Frame, speedups: Sequence[SpeedUp]) -> Iterator[Observation]:
    """Answers of the arm and of the baseline that are not the same amount of work."""
    for speedup in speedups:
        if speedup.task == ALL_TASKS and speedup.pairs_unequal and speedup.pooled is not None:
            values = {name: getattr(speedup, name) for name in ("pairs", "pairs_unequal", "pooled", "length_matched")}
            code = "not matched" if speedup.length_matched is None else "matched"
            yield observation("unequal-work", speedup.arm, code, **values)


def check_speculation(frame: Frame, counters: CounterColumns) -> Iterator[Observation]:
    """Counters that contradict themselves, speculation that never fired, depths beyond the recipe."""
    for number, arm in enumerate(frame.arms):
        of_arm = frame.arm == number
        for sentence, mask in counters.contradictions.items():
            if (mask & of_arm).any():
                records = _named(frame, np.flatnonzero(mask & of_arm))
                yield observation("contradictory-counters", arm, "counters", reason=sentence, records=records)
        attested = attestations(frame, arm)
        if attested and attested[0].state == "idle":
            yield observation("never-fired", arm, "nothing")
        drafted, accepted = (float(np.nansum(column[of_arm])) for column in (counters.drafted, counters.accepted))
        if drafted >= ENOUGH_DRAFTED and accepted < DEAD * drafted and drafts_with_a_model(frame, arm):
            facts = [Fact(code="rejected", values={"drafted": int(drafted), "accepted": int(accepted)})]
            adapter = registered().adapters.get(frame.manifest.engine.kind) if frame.manifest else None
            causes = adapter.dead_drafter if adapter else ""
            facts += [Fact(code="of engine", values={"text": causes})] if causes else []
            yield Observation("dead-drafter", arm, tuple(facts))
        if attested and attested[0].state == "unverified":
            code = "text" if attested[0].reason else "not shown"
            yield observation("unverified", arm, code, text=attested[0].reason)
        limit = speculation_of(frame, arm).get("max")
        if isinstance(limit, int):
            deep = _deeper(frame, counters, frame.rows(number), limit)
            if len(deep):
                yield observation("depth-ignored", arm, "deeper", limit=limit, records=_named(frame, deep))


def drafts_with_a_model(frame: Frame, arm: str) -> bool:
    """Whether an arm drafts with a model or a head, not by copying text, whose share may well be next to nothing."""
    identity = identity_of(frame.manifest, arm)
    return identity is not None and any(kind in DRAFTS for kind in identity.types) and not identity.lossy


def check_depths(frame: Frame, counters: CounterColumns) -> Iterator[Observation]:
    """Arms that differ in their depth alone, with the same counts in every answer."""
    deep = [(arm, depth, settings) for arm in range(len(frame.arms)) for depth, settings in _depth(frame, arm)]
    for index, (first, depth, settings) in enumerate(deep):
        for second, other_depth, other_settings in deep[index + 1 :]:
            if settings != other_settings or depth == other_depth:
                continue
            ours, theirs = frame.pairs(first, second)
            reported = ~np.isnan(counters.drafted[ours]) & ~np.isnan(counters.drafted[theirs])
            ours, theirs = ours[reported], theirs[reported]
            columns = (counters.drafted, counters.accepted, counters.rounds)
            same = all(np.array_equal(column[ours], column[theirs], equal_nan=True) for column in columns)
            if len(ours) >= ENOUGH_ANSWERS and same and counters.drafted[ours].any():
                arms = [f"{frame.arms[first]} (depth {depth})", f"{frame.arms[second]} (depth {other_depth})"]
                yield observation(
                    "depth-without-effect", frame.arms[second], "same counts", arms=arms, answers=len(ours)
                )


def _depth(frame: Frame, arm: int) -> Iterator[tuple[int, dict[str, object]]]:
    """Yield the depth that the recipe gives an arm, and all other settings of its speculation, if any."""
    settings = speculation_of(frame, frame.arms[arm])
    if isinstance(depth := settings.get("max"), int):
        yield depth, {key: value for key, value in settings.items() if key != "max"}


def check_repetitions(frame: Frame) -> Iterator[Observation]:
    """Answers of the baseline that repeat a phrase over much of their text."""
    shares: dict[str, float] = {}
    share_by_answer: dict[str | None, float] = {}  # blocks repeat answers
    for record in (frame.records[row] for row in frame.rows(frame.baseline).tolist()):
        if record.error is None:
            answer = record.token_sha or record.content_sha or record.content
            if answer not in share_by_answer:
                share_by_answer[answer] = repeated_share(record.token_ids or record.content or "")
            shares[f"{record.task}/{record.prompt_idx}"] = share_by_answer[answer]
    loops = sorted((name for name in shares if shares[name] >= REPEATED), key=lambda name: -shares[name])
    if loops:
        repeating = cases([f"{prompt}: {percent(shares[prompt])}" for prompt in loops])
        arm = frame.arms[frame.baseline]
        yield observation("repeating-answers", arm, "repeating", repeating=repeating, prompts=len(shares))


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
            records = _named(frame, np.array(sorted(repeated)))
            facts = [Fact(code="sent", values={"records": records})]
            facts += _acceptance_when_repeated(frame, counters, number, repeated)
            yield Observation("repeated-prompts", arm, tuple(facts))


def _process(frame: Frame, record: Record) -> tuple[int, int] | None:
    """Return the block and attempt of its process; `None` for an endpoint, which has the same in all blocks."""
    identity = identity_of(frame.manifest, record.label)
    return None if identity is not None and identity.url is not None else (record.block, record.attempt)


def _remembers(frame: Frame, arm: str) -> bool:
    if (identity := identity_of(frame.manifest, arm)) is None:
        return False
    return not _REMEMBERED.isdisjoint(identity.types) if identity.remembers is None else identity.remembers


def _acceptance_when_repeated(frame: Frame, counters: CounterColumns, arm: int, repeated: list[int]) -> list[Fact]:
    """Return acceptance and decode rate where a prompt was new, and where it was not; empty where either is missing."""
    is_repeated = np.isin(np.arange(len(frame.records)), repeated)
    counted = (frame.arm == arm) & frame.answered & counters.trusted & (counters.drafted > 0)
    halves = (counted & ~is_repeated, counted & is_repeated)
    if not all(rows.any() and np.isfinite(counters.accepted[rows]).all() for rows in halves):
        return []
    (new, new_rate), (old, old_rate) = (
        (float(counters.accepted[rows].sum() / counters.drafted[rows].sum()), _decode_rate(frame, rows))
        for rows in halves
    )
    values = {"new": new, "new_rate": new_rate, "repeated": old, "repeated_rate": old_rate}
    return [Fact(code="acceptance", values=values)]


def _decode_rate(frame: Frame, rows: Booleans) -> float | None:
    """Return the decode rate of some rows, tokens over time; `None` where none was timed."""
    timed = rows & np.isfinite(frame.decode_s)
    return float(frame.decoded[timed].sum() / frame.decode_s[timed].sum()) if timed.any() else None


def _deeper(frame: Frame, counters: CounterColumns, rows: Integers, limit: int) -> Integers:
    """Return the rows with a round that drafted more than `limit` tokens."""
    records = [frame.records[row] for row in rows.tolist()]
    placed = [any((r.drafted_by_position or r.accepted_by_position or ())[limit:]) for r in records]
    return rows[np.array(placed, dtype=bool) | (counters.drafted[rows] > limit * counters.rounds[rows])]


def _named(frame: Frame, rows: Integers) -> dict[str, Any]:
    """Return how many records there are, and the first few of them."""
    return cases([frame.name(row) for row in rows.tolist()])


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


DISTURBANCES: tuple[tuple[str, str, float, Callable[[WatchRecord, MemoryRecord], float | None]], ...] = (
    ("throttling", "core", 0, lambda watch, _: watch.throttled),
    ("throttling", "gpu", 0.01, lambda watch, _: _gpu_slowed(watch)),
    ("swapping", "system", 8, lambda watch, _: (watch.swapped_bytes or 0) / 2**20),
    ("swapping", "disk", 100, lambda watch, _: watch.engine_major_faults),
    ("swapping", "engine", 8, lambda _, memory: (memory.swapped or 0) / 2**20),
    ("clock-jump", "jump", 0.1, lambda watch, _: watch.clock_jump_s),
)
"""(id of the warning, code, up to where it is not reported, value). Fewer major faults are pages of a library used for
the first time; a clock that is steered moves by half a thousandth."""
_UNWATCHED = WatchRecord(wall_s=0)


def check_disturbances(frame: Frame) -> Iterator[Observation]:
    """Check the watches of every process of the run, earlier attempts included: their records may count."""
    cells = [cell for cell in frame.manifest.cells if cell.discarded is None] if frame.manifest else []
    watched = [(cell.name, cell.watch) for cell in cells if cell.watch is not None]
    yield from _other_work(watched)
    yield from _load(frame)
    facts: dict[str, list[Fact]] = {}
    for kind, code, limit, measure in DISTURBANCES:
        values = [(measure(cell.watch or _UNWATCHED, cell.memory or MemoryRecord()), cell.name) for cell in cells]
        beyond = [(value, name) for value, name in values if value and abs(value) > limit]
        if beyond:
            value, worst = max(beyond, key=lambda pair: (abs(pair[0]), pair[1]))
            facts.setdefault(kind, []).append(
                Fact(code=code, values={"cells": len(beyond), "worst": worst, "value": value})
            )
    if clocks := [(watch.cpu_mhz, name) for name, watch in watched if watch.cpu_mhz]:
        (lowest, name), (highest, _) = min(clocks), max(clocks)
        if lowest < (1 - SLOWER_CLOCK) * highest:
            clock = {"lowest": lowest, "cell": name, "highest": highest}
            facts.setdefault("throttling", []).append(Fact(code="clock", values=clock))
    if spilled := [f"{cell.arm}: {cell.memory.spilled}" for cell in cells if cell.memory and cell.memory.spilled]:
        facts["spilled"] = [Fact(code="spilled", values={"spilled": list(dict.fromkeys(spilled))})]
    yield from (Observation(kind, "machine", tuple(of_kind)) for kind, of_kind in facts.items())


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
        code = "both" if min(used, stolen) >= LEAST_REPORTED else "host" if used < LEAST_REPORTED else "programs"
        values = {"used": used, "stolen": stolen, "cores": watch.cores, "busy": len(busy), "cells": len(shares)}
        yield observation("high-load", "machine", code, worst=name, **values)


def _load(frame: Frame) -> Iterator[Observation]:
    """Cells that started while something else was running, where nothing better is known than the load average."""
    cores = (frame.manifest.machine if frame.manifest else {}).get("cores")
    cells = sorted(latest_cells(frame.manifest), key=lambda cell: cell.started_at)
    if not isinstance(cores, int) or any(cell.watch and cell.watch.other_cpu_s is not None for cell in cells):
        return
    loads = [(cell.load_before, cell) for cell in cells if cell.load_before is not None]
    allowed = [0, *(cores for _ in loads[1:])]
    busy = [
        (load, cell) for (load, cell), ours in zip(loads, allowed, strict=False) if load > LOAD_SHARE * cores + ours
    ]
    if busy:
        load, worst = max(busy, key=itemgetter(0))
        values = {"busy": len(busy), "cells": len(loads), "load": load, "cores": cores}
        yield observation("high-load", "machine", "load", worst=worst.name, **values)


def _gpu_slowed(watch: WatchRecord) -> float:
    return (watch.gpu_slowed_s or 0.0) / watch.wall_s if watch.wall_s else 0.0
