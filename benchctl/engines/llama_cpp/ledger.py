"""What llama-server drafted and accepted in one answer: its counters before and after, and the answer's timings.

`/metrics` counts over the life of the server and is brought up to date when a slot is released; with one slot and one
request at a time the difference is the request's. `timings` carries the drafted and accepted tokens of the request,
and leaves them out when nothing was drafted. Neither overrules the other: drafted and accepted are the timings' where
they speak, rounds and positions are `/metrics`', so that a contradiction stays visible in the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchctl.data.manifest import UNCHECKED_ACCEPTANCE
from benchctl.engines.base import Ledger, MemoryTold
from benchctl.engines.common.metrics import Counters, Tally, read_counters, since
from benchctl.engines.common.stream import count_in

_STATISTICS = re.compile(
    r"statistics\s+([\w-]+):.*#gen tokens =\s*(\d+), #acc tokens =\s*(\d+)"
    r"(?:.*dur\(b,g,a\) =\s*[\d.]+,\s*([\d.]+))?"
)
_CHECKPOINTS = "speculative decoding will use checkpoints"
_CHECKPOINT_SIZE = re.compile(
    r"created (?:context|speculative) checkpoint.*\bsize = (\d+\.\d+) MiB(?:, draft = (\d+\.\d+) MiB)?"
)
"""A context checkpoint is of target and draft together; a speculative one tells the draft's share apart."""
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_MIB = 1 << 20


def parse_metrics(text: str) -> Counters:
    """Read the counters from llama-server's `/metrics`."""
    return read_counters(text, "llamacpp")


def make_ledger(before: Counters, after: Counters, timings: Mapping[str, object], *, speculating: bool) -> Ledger:
    """Return the ledger of the request between two readings.

    An engine that does not speculate tells nothing (all `None`), unless its counters say otherwise.
    """
    counted = since(before, after)
    drafted, accepted = counted.drafted, counted.accepted
    told, told_accepted = (count_in(timings.get(name), 2**53) for name in ("draft_n", "draft_n_accepted"))
    if told is not None:
        drafted, accepted = told, accepted if told_accepted is None else told_accepted
    if not speculating and not drafted:
        return Ledger()
    return Ledger(
        drafted=drafted,
        accepted=accepted,
        rounds=counted.rounds,
        accepted_by_position=counted.accepted_by_position,
    )


def against(tally: Tally, counters: Counters) -> str | None:
    """Return a sentence that holds the server's counters against all answers; `None` where either is not reported."""
    agrees = tally.agrees(counters)
    if agrees is None:
        return None
    said = (
        f"GET /metrics over all answers: {counters.drafted} drafted, {counters.accepted} accepted in "
        f"{counters.rounds} rounds; the answers' own sums: {tally.drafted} drafted, {tally.accepted} accepted"
    )
    if agrees:
        return said
    if tally.broken:
        return f"{said}; {tally.broken} requests broke off, and the first alone counts them"
    return f"{said}: a contradiction"


@dataclass(frozen=True)
class LoggedCounts:
    """Of all kinds of drafts together, since the server started."""

    drafted: int
    accepted: int
    replays: bool
    """Whether the target evaluates accepted tokens again, and the log counts them again."""
    draft_s: float | None = None
    """What making the drafts took, without the draft model's reading of prompts and of what is verified."""


def read_counts(log: Sequence[str]) -> LoggedCounts | None:
    """Return the last counts in a log; `None` where it has none."""
    last = {found[1]: found for line in log if (found := _STATISTICS.search(line))}
    if not last:
        return None
    drafted, accepted = (sum(int(found[column]) for found in last.values()) for column in (2, 3))
    times = [found[4] for found in last.values()]
    draft_s = None if None in times else sum(float(time) for time in times) / 1000
    return LoggedCounts(drafted, accepted, any(_CHECKPOINTS in line for line in log), draft_s)


def contradiction(logged: LoggedCounts | None, counters: Counters, answers: int | None) -> str | None:
    """Say how the counters contradict the log, as the end of a sentence; `None` where they do not, or one is absent.

    `answers`: draft tokens that the answers' own timings told, which may leave some of the log's out but add none.
    """
    if logged is None or counters.drafted is None or counters.accepted is None:
        return None
    if counters.drafted != logged.drafted or (answers or 0) > logged.drafted:
        told = counters.drafted if counters.drafted != logged.drafted else answers
        return f"{told} draft tokens were counted, and its own log counts {logged.drafted}"
    more = logged.accepted - counters.accepted
    most = (counters.rounds if counters.rounds is not None else logged.drafted) if logged.replays else 0
    if not 0 <= more <= most:
        return f"{counters.accepted} tokens were counted as accepted, and its own log counts {logged.accepted}"
    return None


def observation(logged: LoggedCounts | None, counters: Counters) -> str | None:
    """Return what the comparison shows, as an observation; `None` where there is nothing to compare."""
    if logged is None or counters.drafted is None:
        return None
    said = f"log: {logged.drafted} drafted, {logged.accepted} accepted; GET /metrics: {counters.drafted} drafted, "
    said += f"{counters.accepted} accepted"
    if logged.replays and logged.accepted:
        return f"{said}: {UNCHECKED_ACCEPTANCE}, for this log counts what the target evaluates again as accepted, too"
    return said


def read_memory(log: Sequence[str]) -> MemoryTold:
    """Return the largest checkpoint of one sequence, and whether layers stayed beside the GPU."""
    sizes = [
        float(found[1]) + (float(found[2]) if found[2] and "speculative" in found[0] else 0.0)
        for line in log
        if (found := _CHECKPOINT_SIZE.search(line))
    ]
    layers = [(int(found[1]), int(found[2])) for line in log if (found := _OFFLOADED.search(line))]
    there, all_layers = next(((some, whole) for some, whole in layers if 0 < some < whole), (0, 0))
    return MemoryTold(
        checkpoint=round(max(sizes) * _MIB) if sizes else None,
        spilled=f"{there} of {all_layers} layers are on the GPU, the others in the machine's memory" if there else None,
    )
