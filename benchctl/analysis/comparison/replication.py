"""Does a run that somebody else made agree with the same work measured here? Claim by claim, within their intervals.

A claim of a number agrees where the interval of here over theirs has 1 in it (`compare.py`, all arms together), and
excludes a difference of 30 % (`EXCLUDED`). Of what another program measured only a single process is known: its
speed-up agrees where it lies in the interval that holds here for prompts like these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from benchctl.analysis.comparison.changes import Ratio
from benchctl.analysis.comparison.compare import ArmComparison, RunComparison
from benchctl.analysis.comparison.gates import EXCLUDED, KINDS
from benchctl.analysis.result import Interval, Result
from benchctl.analysis.results import ALL_TASKS, Analysis
from benchctl.data.record import Record

BASELINE = "baseline"
WIDE = f"A difference of {100 * EXCLUDED:g} % is not excluded: measure more blocks."
ClaimOutcome = Literal["agrees", "differs", "cannot tell", "not compared"]


class ReplicatedClaim(Result):
    """What a run says of an arm, and what was found here."""

    arm: str
    what: str
    """`speed-up`, `decode rate`, `output`, or what gates watch, such as `acceptance code`."""
    theirs: float | str | None
    here: float | str | None
    ratio: float | None = None
    """Here over theirs."""
    interval: Interval | None = None
    outcome: ClaimOutcome
    why: str | None = None
    """Why it is not compared, or why nothing can be told."""


class Replication(Result):
    """Everything that `benchctl compare --replicate` finds."""

    theirs: str
    here: str
    claims: list[ReplicatedClaim]
    notes: list[str]

    def those(self, outcome: ClaimOutcome) -> list[ReplicatedClaim]:
        """Return the claims of this outcome."""
        return [claim for claim in self.claims if claim.outcome == outcome]


def replication_of(found: RunComparison) -> Replication:
    """Return which claims of run A agree with run B."""
    claims = [claim for arm in found.arms for claim in _claims(arm, other_machine=found.other_machine is not None)]
    missing = "It was not measured here."
    claims += [
        ReplicatedClaim(arm=name, what="arm", theirs=None, here=None, outcome="not compared", why=missing)
        for name in found.only_in_a
    ]
    notes = list(found.on_trust)
    if found.other_machine is not None:
        notes.append(f"Other machines: {found.other_machine}. A speed-up that differs may be the machine's.")
    engine = [change for change in found.changed if change.what in ("engine", "engine version", "engine build")]
    notes += [f"Another {change.what}: theirs {change.a}, here {change.b}." for change in engine]
    notes.append("One run each: the intervals lack what changes from run to run. Measure again what differs by little.")
    return Replication(theirs=found.a.folder, here=found.b.folder, claims=claims, notes=notes)


def _claims(arm: ArmComparison, *, other_machine: bool) -> Iterator[ReplicatedClaim]:
    def claim(what: str, change: Ratio, doubt: str | None, *, absolute: bool) -> ReplicatedClaim:
        if doubt is None and absolute and other_machine:
            doubt = "Theirs was measured on another machine."
        if doubt is None and (change.ratio is None or change.interval is None):
            doubt = arm.rate_doubt or "It is not known in every block of both."
        outcome: ClaimOutcome = "not compared"
        if not doubt and (ends := change.interval) is not None:
            close = ends.low > 1 - EXCLUDED and ends.high < 1 / (1 - EXCLUDED)
            outcome = "differs" if ends.excludes_one else "agrees" if close else "cannot tell"
        told: dict[str, Any] = {
            "theirs": change.a,
            "here": change.b,
            "ratio": change.ratio,
            "interval": change.interval,
        }
        why = WIDE if outcome == "cannot tell" else doubt
        return ReplicatedClaim(arm=arm.arm, what=what, outcome=outcome, why=why, **told)

    if not arm.is_baseline:
        yield claim("speed-up", arm.speedup, arm.doubt, absolute=False)
    yield claim("decode rate", arm.rate, arm.rate_doubt, absolute=True)
    for quantity, change in arm.watched.items():
        yield claim(quantity, change, None, absolute=KINDS[quantity.partition(" ")[0]].absolute)
    if not arm.is_baseline:
        known = {arm.lossless_a, arm.lossless_b}.isdisjoint({None, "undetermined", "not judged"})
        yield ReplicatedClaim(
            arm=arm.arm,
            what="output",
            theirs=arm.lossless_a,
            here=arm.lossless_b,
            outcome="not compared" if not known else "agrees" if arm.lossless_a == arm.lossless_b else "differs",
            why=None if known else "One of the two is not determined.",
        )


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
    drafted, accepted, rounds = (
        sum(known) if (known := [count for request in good if (count := getattr(request, key)) is not None]) else told
        for key, told in (("draft_n", claim.drafted), ("draft_n_accepted", claim.accepted), ("rounds", claim.rounds))
    )
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


def replication_of_imported(records: Sequence[Record], here: Analysis, theirs: str, folder: str) -> Replication:
    """Return which speed-ups of another program's requests agree with a run that was made here."""
    told = {
        name: Claim("", [(str(record.prompt_idx), record) for record in records if record.label == name], None)
        for name in dict.fromkeys(record.label for record in records)
    }
    base = told.pop(BASELINE, None)
    notes = [
        "Theirs is a single process without an interval: a speed-up that differs may be what processes differ by.",
        "That models, prompts, sampling and engine are the same cannot be checked, so no more than the speed-up is "
        "compared.",
    ]
    claims = [_imported_claim(name, own, base, here) for name, own in told.items()]
    return Replication(theirs=theirs, here=folder, claims=claims, notes=notes)


def _imported_claim(name: str, own: Claim, base: Claim | None, here: Analysis) -> ReplicatedClaim:
    told = imported_arm(name, own, base).speedup
    speedup = next((row for row in here.speedups if row.arm == name and row.task == ALL_TASKS), None)
    interval = None if speedup is None else speedup.like_these or speedup.interval
    outcome: ClaimOutcome = "not compared"
    if base is None:
        why: str | None = f"Theirs has no baseline: import it, too, as {BASELINE}=FILE."
    elif told is None:
        why = "They answered no request with as many tokens by baseline and arm, or timed none."
    elif interval is None:
        why = "No arm of this name was measured here in three blocks."
    elif told.low is None and told.high >= interval.low:
        why = "They timed chunks instead of tokens, so that only its upper limit is known."
    else:
        apart = (told.low or 0.0) > interval.high or told.high < interval.low
        wide = interval.high / interval.low > (1 - EXCLUDED) ** -2
        outcome = "differs" if apart else "cannot tell" if wide else "agrees"
        why = WIDE if outcome == "cannot tell" else None
    return ReplicatedClaim(
        arm=name, what="speed-up", theirs=_limits(told), here=_limits(interval), outcome=outcome, why=why
    )


def _limits(value: Range | Interval | None) -> str | float | None:
    if value is None:
        return None
    if value.low == value.high:
        return value.high
    return f"at most {value.high:.2f}" if value.low is None else f"{value.low:.2f} to {value.high:.2f}"
