"""What an arm's requests show that another program made: limits of decode rate and speed-up, and acceptance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchctl.analysis.result import Result
from benchctl.data.record import Record

BASELINE = "baseline"


@dataclass(frozen=True)
class Claim:
    """What a file tells."""

    program: str
    requests: list[tuple[str, Record]]
    """What identifies the prompt in files of the same program, and the request; arm and `prompt_idx` are not set."""
    overlapping: bool | None
    """Whether several requests were in flight; `None`: not told."""
    drafted: int | None = None
    accepted: int | None = None
    rounds: int | None = None
    """Of all requests together, where they are told of none alone."""
    notes: list[str] = field(default_factory=list)


class Range(Result):
    """A number of which only limits are known where chunks were timed instead of tokens; equal where it is known."""

    low: float | None
    """`None`: not even a limit."""
    high: float


class ImportedArm(Result):
    """What a file tells of an arm."""

    arm: str
    program: str
    requests: int
    failed: int
    tokens: int
    rate: Range | None
    """Decode rate, tokens per second."""
    acceptance: float | None
    acceptance_length: float | None
    speedup: Range | None
    """Of decoding, over the requests that both arms answered with as many tokens."""
    whole: float | None
    """Time of the baseline's whole answers over the arm's, over the same requests."""
    pairs: int
    pairs_unequal: int
    """Requests that both answered with unequal numbers of tokens."""


def imported_arm(name: str, claim: Claim, base: Claim | None) -> ImportedArm:
    """Return what an arm's requests show; `base`: those of its baseline, where they are told."""
    good = [request for _, request in claim.requests if request.error is None]
    counts = {"draft_n": claim.drafted, "draft_n_accepted": claim.accepted, "rounds": claim.rounds}
    for key in counts:
        known = [value for request in good if (value := getattr(request, key)) is not None]
        counts[key] = sum(known) if known else counts[key]
    drafted, accepted, rounds = counts.values()
    if any(request.draft_n and request.rounds is None for request in good):
        rounds = None
    theirs = {(before.task, key): before for key, before in base.requests} if base else {}
    both = [
        (before, request)
        for key, request in claim.requests
        if (before := theirs.get((request.task, key))) is not None
        and before.error is request.error is None
        and before.n_predicted
        and request.n_predicted
    ]
    equal = [(before, after) for before, after in both if before.n_predicted == after.n_predicted]
    timed = [(before, after) for before, after in equal if _seconds(before) and _seconds(after)]
    whole = [(before.e2e_s, after.e2e_s) for before, after in equal if before.e2e_s and after.e2e_s]
    ours, other = (_rate([pair[side] for pair in timed]) for side in (1, 0))
    speedup = None
    if ours and other and other.low:
        speedup = Range(low=None if ours.low is None else ours.low / other.high, high=ours.high / other.low)
    return ImportedArm(
        arm=name,
        program=claim.program,
        requests=len(claim.requests),
        failed=len(claim.requests) - len(good),
        tokens=sum(request.n_predicted for request in good),
        rate=_rate(good),
        acceptance=accepted / drafted if drafted and accepted is not None else None,
        acceptance_length=1 + accepted / rounds if rounds and accepted is not None else None,
        speedup=speedup,
        whole=sum(pair[0] for pair in whole) / sum(pair[1] for pair in whole) if whole else None,
        pairs=len(equal),
        pairs_unequal=len(both) - len(equal),
    )


def _seconds(request: Record) -> float | None:
    return request.decode_s if request.engine_decode_s is None else request.engine_decode_s


def _least(request: Record) -> float | None:
    """The fewest tokens that `_seconds` may be of; `None`: not known."""
    rate = request.tok_per_sec or request.client_tok_per_sec or request.client_tok_per_sec_least
    return None if rate is None else rate * (_seconds(request) or 0.0)


def _rate(requests: Sequence[Record]) -> Range | None:
    timed = [request for request in requests if request.n_predicted > 1 and _seconds(request)]
    seconds = sum(_seconds(request) or 0.0 for request in timed)
    if not seconds:
        return None
    least = [tokens for request in timed if (tokens := _least(request)) is not None]
    high = sum(request.n_predicted - 1 for request in timed) / seconds
    return Range(low=min(high, sum(least) / seconds) if len(least) == len(timed) else None, high=high)
