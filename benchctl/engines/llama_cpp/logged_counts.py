"""What llama-server's own log counts of drafts, held against its counters: a second account of the same tokens.

    statistics draft-simple: … #gen tokens = 61, #acc tokens = 47, …

It is written after every answer and counts over the life of the server. Drafted tokens must agree exactly. So must
accepted ones, but where the target keeps checkpoints: after a partial rejection it evaluates the accepted tokens again,
and the log takes that step, one token more than was accepted, for a draft that was accepted whole. All that is known
then is that the log counts up to one token more for every round.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from benchctl.data.manifest import UNCHECKED_ACCEPTANCE
from benchctl.engines.common.metrics import Counters

_STATISTICS = re.compile(r"statistics\s+([\w-]+):.*#gen tokens =\s*(\d+), #acc tokens =\s*(\d+)")
_CHECKPOINTS = "speculative decoding will use checkpoints"


@dataclass(frozen=True)
class LoggedCounts:
    """Of all kinds of drafts together, since the server started."""

    drafted: int
    accepted: int
    replays: bool
    """Whether the target evaluates accepted tokens again, and the log counts them again."""


def read_counts(log: Sequence[str]) -> LoggedCounts | None:
    """Return the last counts in a log; `None` where it has none."""
    last = {found[1]: (int(found[2]), int(found[3])) for line in log if (found := _STATISTICS.search(line))}
    if not last:
        return None
    drafted, accepted = (sum(column) for column in zip(*last.values(), strict=True))
    return LoggedCounts(drafted, accepted, any(_CHECKPOINTS in line for line in log))


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
