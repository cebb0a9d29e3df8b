"""What can be concluded from files that other programs wrote, and what cannot; their requests as a run's records."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchctl.analysis.imported import BASELINE, Claim, ImportedArm, imported_arm
from benchctl.analysis.result import Result
from benchctl.data.writer import cannot_write, write_whole
from benchctl.errors import UsageError
from benchctl.text import plural


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
    arms = [imported_arm(name, claim, None if name == BASELINE else base) for name, claim in claims.items()]
    compared = [arm for arm in arms if arm.pairs]
    every = [request for claim in claims.values() for _, request in claim.requests if request.error is None]
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
    if any(request.n_predicted > 1 and not (request.tok_per_sec or request.client_tok_per_sec) for request in every):
        lacking.append("Chunks were timed, not tokens: of decode rates only limits are known.")
    if any(claim.overlapping is not False for claim in claims.values()):
        lacking.append("Requests overlapped, or it is not told whether: rates are of requests that shared the engine.")
    if any(arm.pairs_unequal for arm in arms):
        count = sum(arm.pairs_unequal for arm in arms)
        lacking.append(f"Unequal work: {count} {plural(count, 'request')} of unequal length, left out of speed-ups.")
    if all(request.content is None for request in every):
        lacking.append("No answers: whether the output is the target's own cannot be said.")
    else:
        lacking.append("No token ids and no scores of the target: a difference in the output cannot be judged.")
    if all(arm.acceptance is None for arm in arms if arm.arm != BASELINE):
        lacking.append("No drafts are counted: whether speculation was on is not shown.")
    lacking.append("No engine build, command line, machine or model files: it cannot be repeated from the file alone.")
    notes = list(dict.fromkeys(note for claim in claims.values() for note in claim.notes))
    return Imported(arms=arms, known=known, lacking=lacking, notes=notes, files=[])


def write_records(claims: Mapping[str, Claim], out: Path) -> list[Path]:
    """Write a JSONL file of records an arm. Raises StorageError, UsageError where there is something already."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("There is something here already.", where=str(out), fix="Name another folder with -o.")
    keys = {(request.task, key) for claim in claims.values() for key, request in claim.requests}
    tasks: dict[str, list[str]] = {}
    for task, key in sorted(keys, key=lambda pair: (len(pair[1]), pair)):
        tasks.setdefault(task, []).append(key)
    place = {(task, key): number for task, of_it in tasks.items() for number, key in enumerate(of_it)}
    written = []
    for arm, claim in claims.items():
        lines = [
            request.changed(label=arm, prompt_idx=place[request.task, key]).to_line() for key, request in claim.requests
        ]
        if lines:
            try:
                out.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise cannot_write(error, out) from None
            written.append(out / f"{arm}.jsonl")
            write_whole(written[-1], "\n".join(lines))
    return written
