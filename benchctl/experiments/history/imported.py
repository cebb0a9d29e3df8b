"""What can be concluded from files that other programs wrote, and what cannot; their requests as a run's records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchctl.analysis.result import Result
from benchctl.data.record import Record, RecordError, sha256_text
from benchctl.data.writer import cannot_write, write_whole
from benchctl.errors import UsageError
from benchctl.experiments.history.claims import Claim, Request
from benchctl.text import plural

BASELINE = "baseline"


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


class Imported(Result):
    """What is concluded."""

    arms: list[ImportedArm]
    known: list[str]
    lacking: list[str]
    notes: list[str]
    files: list[str]


def conclude(claims: Mapping[str, Claim]) -> Imported:
    """Conclude from files, one an arm. Raises UsageError where two programs' files cannot be compared."""
    programs = {claim.program for claim in claims.values()}
    if len(programs) > 1:
        what = f"Files of {len(programs)} programs ({', '.join(sorted(programs))}) do not time alike."
        raise UsageError(what, where="runs import", fix="Import those of each program alone.")
    base = claims.get(BASELINE)
    arms = [_arm(name, claim, None if name == BASELINE else base) for name, claim in claims.items()]
    compared = [arm for arm in arms if arm.pairs]
    every = [request for claim in claims.values() for request in claim.requests if request.error is None]
    known, lacking = [], []
    if any(arm.rate for arm in arms):
        known.append("How fast one process decoded these requests.")
    if any(arm.acceptance is not None for arm in arms):
        known.append("How much of the drafts was accepted, by the engine's own count.")
    if compared:
        known.append("A speed-up of one process over one other, over the requests of equal length.")
    if base is None:
        lacking.append(f"No baseline: a speed-up needs the same requests without speculation, {BASELINE}=FILE.")
    elif not compared and len(arms) > 1:
        lacking.append("No speed-up: no request was answered with as many tokens by baseline and arm.")
    lacking.append("One process an arm: what differs from process to process is not known, so no interval is given.")
    if any(request.tokens and (request.least is None or request.least < request.most) for request in every):
        lacking.append("Chunks were timed, not tokens: of decode rates only limits are known.")
    if any(claim.overlapping is not False for claim in claims.values()):
        lacking.append("Requests overlapped, or it is not told whether: rates are of requests that shared the engine.")
    if any(arm.pairs_unequal for arm in arms):
        count = sum(arm.pairs_unequal for arm in arms)
        lacking.append(f"Unequal work: {count} {plural(count, 'request')} of unequal length, left out of speed-ups.")
    if all(request.text is None for request in every):
        lacking.append("No answers: whether the output is the target's own cannot be said.")
    else:
        lacking.append("No token ids and no scores of the target: a difference in the output cannot be judged.")
    if all(arm.acceptance is None for arm in arms if arm.arm != BASELINE):
        lacking.append("No drafts are counted: whether speculation was on is not shown.")
    lacking.append("No engine build, command line, machine or model files: it cannot be repeated from the file alone.")
    notes = list(dict.fromkeys(note for claim in claims.values() for note in claim.notes))
    return Imported(arms=arms, known=known, lacking=lacking, notes=notes, files=[])


def _arm(name: str, claim: Claim, base: Claim | None) -> ImportedArm:
    good = [request for request in claim.requests if request.error is None]
    drafted, accepted, rounds = (
        sum(known) if (known := [value for value in values if value is not None]) else total
        for values, total in (
            ([request.drafted for request in good], claim.drafted),
            ([request.accepted for request in good], claim.accepted),
            ([request.rounds for request in good], claim.rounds),
        )
    )
    whole_rounds = all(request.rounds is not None for request in good if request.drafted)
    theirs = {(request.task, request.key): request for request in base.requests} if base else {}
    both = [(theirs[key], request) for request in good if (key := (request.task, request.key)) in theirs]
    both = [(before, after) for before, after in both if before.error is None and before.tokens and after.tokens]
    equal = [(before, after) for before, after in both if before.tokens == after.tokens]
    timed = [(before, after) for before, after in equal if before.decode_s and after.decode_s]
    ours, other = (_rate([pair[side] for pair in timed]) for side in (1, 0))
    spent = [[pair[side].e2e_s for pair in equal] for side in (0, 1)]
    before_s, after_s = (sum(known) if None not in (known := list(side)) else 0.0 for side in spent)  # type: ignore[arg-type]
    return ImportedArm(
        arm=name,
        program=claim.program,
        requests=len(claim.requests),
        failed=len(claim.requests) - len(good),
        tokens=sum(request.tokens or 0 for request in good),
        rate=_rate(good),
        acceptance=accepted / drafted if drafted and accepted is not None else None,
        acceptance_length=1 + accepted / rounds if rounds and accepted is not None and whole_rounds else None,
        speedup=Range(
            low=ours.low / other.high if ours.low is not None else None,
            high=ours.high / other.low,
        )
        if ours and other and other.low
        else None,
        whole=before_s / after_s if before_s and after_s else None,
        pairs=len(equal),
        pairs_unequal=len(both) - len(equal),
    )


def _rate(requests: Sequence[Request]) -> Range | None:
    timed = [request for request in requests if request.most and request.decode_s]
    seconds = sum(request.decode_s or 0.0 for request in timed)
    if not seconds:
        return None
    least = [request.least for request in timed]
    low = None if None in least else sum(value or 0 for value in least) / seconds
    high = sum(request.most for request in timed) / seconds
    return Range(low=None if low is None else min(low, high), high=high)


def write_records(claims: Mapping[str, Claim], out: Path) -> list[Path]:
    """Write a JSONL file of records an arm; a request without tokens or rate has none. Raises StorageError, UsageError.

    A rate is that of a record only where it is known, not where limits alone are.
    """
    keys = sorted({(request.task, request.key) for claim in claims.values() for request in claim.requests})
    numbers: dict[str, int] = {}
    place = {(task, key): numbers.setdefault(task, -1) for task, key in keys}
    for task, key in sorted(place, key=lambda one: (one[0], len(one[1]), one[1])):
        numbers[task] += 1
        place[task, key] = numbers[task]
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("There is something here already.", where=str(out), fix="Name another folder with --out.")
    written = []
    for arm, claim in claims.items():
        lines = [_record(arm, request, place[request.task, request.key]).to_line() for request in claim.requests]
        if lines:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(error, out) from None
            written.append(out / f"{arm}.jsonl")
            write_whole(written[-1], "\n".join(lines))
    return written


def _record(arm: str, request: Request, index: int) -> Record:
    rates = _rate([request])
    rate = rates.high if rates and rates.low == rates.high else None
    return Record(
        label=arm,
        task=request.task,
        prompt_idx=index,
        rep=0,
        schema_version=1,
        tok_per_sec=rate if request.by_engine else None,
        client_tok_per_sec=None if request.by_engine else rate,
        client_tok_per_sec_least=rates.low if rates and not request.by_engine else None,
        n_predicted=request.tokens or 0,
        draft_n=request.drafted,
        draft_n_accepted=request.accepted,
        rounds=request.rounds,
        content=request.text,
        content_sha=None if request.text is None else sha256_text(request.text),
        prompt_tokens=request.prompt_tokens,
        finish_reason=request.ending,
        ttft_s=request.ttft_s,
        decode_s=None if request.by_engine else request.decode_s,
        engine_decode_s=request.decode_s if request.by_engine else None,
        e2e_s=request.e2e_s,
        error=None if request.error is None else RecordError(kind="http", message=request.error[:500]),
    )
