"""What llama-server drafted and accepted in one answer: its counters before and after, and the answer's timings.

`/metrics` counts over the life of the server and is brought up to date when a slot is released; with one slot and one
request at a time the difference is the request's. `timings` carries the drafted and accepted tokens of the request, and
leaves them out when nothing was drafted. Neither overrules the other: drafted and accepted are the timings' where those
have them, rounds and positions are `/metrics`', so that a contradiction stays visible in the record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchctl.data.cell import UNCHECKED_ACCEPTANCE
from benchctl.engines.base import Ledger, MemoryReport
from benchctl.engines.common.metrics import Counters, Tally, read_counters, since
from benchctl.engines.common.values import count_in

_STATISTICS = re.compile(
    r"statistics\s+([\w-]+):.*#gen tokens =\s*(\d{1,15}), #acc tokens =\s*(\d{1,15})\b"
    r"(?:.*dur\(b,g,a\) =\s*[\d.]+,\s*(\d{1,15}(?:\.\d{1,15})?)\b)?"
)
_CHECKPOINTS = "speculative decoding will use checkpoints"
_CHECKPOINT_SIZE = re.compile(
    r"created (?:context|speculative) checkpoint.*\bsize = (\d{1,9}\.\d+) MiB(?:, draft = (\d{1,9}\.\d+) MiB)?"
)
"""A context checkpoint is of target and draft together; a speculative one lists the draft's share separately."""
_OFFLOADED = re.compile(r"offloaded (\d{1,6})/(\d{1,6}) layers to GPU")
_MIB = 1 << 20


def parse_metrics(text: str) -> Counters:
    """Read the counters from llama-server's `/metrics`."""
    return read_counters(text, "llamacpp")


def make_ledger(before: Counters, after: Counters, timings: Mapping[str, object], *, speculating: bool) -> Ledger:
    """Return the ledger of the request between two readings.

    All `None` for an engine that does not speculate, unless its counters show drafts.
    """
    found = since(before, after).ledger()
    drafted, accepted = (count_in(timings.get(name), 2**53) for name in ("draft_n", "draft_n_accepted"))
    if drafted is not None:
        found = replace(found, drafted=drafted, accepted=found.accepted if accepted is None else accepted)
    return found if speculating or found.drafted else Ledger()


def against(tally: Tally, counters: Counters) -> str | None:
    """Return a sentence that compares the server's counters with all answers; `None` where either is not reported."""
    agrees = tally.agrees(counters)
    if agrees is None:
        return None
    comparison = (
        f"GET /metrics over all answers: {counters.drafted} drafted, {counters.accepted} accepted in "
        f"{counters.rounds} rounds; the answers' own sums: {tally.drafted} drafted, {tally.accepted} accepted"
    )
    if agrees:
        return comparison
    if tally.broken:
        return f"{comparison}; {tally.broken} requests were broken off, and only the server's counters include them"
    return f"{comparison}: a contradiction"


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
    """Return how the counters contradict the log, as the end of a sentence; `None` where they do not, or one is absent.

    `answers`: draft tokens by the answers' own timings, which may lack some of the log's but never exceed them.
    """
    if logged is None or counters.drafted is None or counters.accepted is None:
        return None
    if counters.drafted != logged.drafted or (answers or 0) > logged.drafted:
        counted = counters.drafted if counters.drafted != logged.drafted else answers
        return f"{counted} draft tokens were counted, and its own log counts {logged.drafted}"
    more = logged.accepted - counters.accepted
    most = (counters.rounds if counters.rounds is not None else logged.drafted) if logged.replays else 0
    if not 0 <= more <= most:
        return f"{counters.accepted} tokens were counted as accepted, and its own log counts {logged.accepted}"
    return None


def observation(logged: LoggedCounts | None, counters: Counters) -> str | None:
    """Return the comparison as an observation; `None` where there is nothing to compare."""
    if logged is None or counters.drafted is None:
        return None
    comparison = (
        f"log: {logged.drafted} drafted, {logged.accepted} accepted; GET /metrics: {counters.drafted} drafted, "
    )
    comparison += f"{counters.accepted} accepted"
    if logged.replays and logged.accepted:
        return f"{comparison}: {UNCHECKED_ACCEPTANCE}, because this log also counts re-evaluated tokens as accepted"
    return comparison


def read_memory(log: Sequence[str]) -> MemoryReport:
    """Return the largest checkpoint of one sequence, and whether some layers are not on the GPU."""
    sizes = [
        float(found[1]) + (float(found[2]) if found[2] and "speculative" in found[0] else 0.0)
        for line in log
        if (found := _CHECKPOINT_SIZE.search(line))
    ]
    layers = [(int(found[1]), int(found[2])) for line in log if (found := _OFFLOADED.search(line))]
    there, all_layers = next(((some, whole) for some, whole in layers if 0 < some < whole), (0, 0))
    return MemoryReport(
        checkpoint=round(max(sizes) * _MIB) if sizes else None,
        spilled=f"{there} of {all_layers} layers are on the GPU, the others in the machine's memory" if there else None,
    )
