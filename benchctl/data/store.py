"""The store: a run's folder, read so that a damaged line costs only itself.

    results/<recipe>/<run>/manifest.json     rewritten whole, atomically
    results/<recipe>/<run>/records.jsonl     append-only, a write per record
    results/<recipe>/<run>/further.jsonl     what `verify-lossless --more` asked, for its verdicts alone
    results/<recipe>/<run>/logs/             engine logs, a file per cell

A published study's bare JSONL file of eleven keys reads as a run without a manifest.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import force_setattr

from benchctl.data.cell import Cell
from benchctl.data.integrity import Integrity, StoredScores, lines_damage, manifest_damage
from benchctl.data.machines import by_machine
from benchctl.data.manifest import MANIFEST_FORMAT, Manifest, ModelIdentity
from benchctl.data.record import SCHEMA_VERSION, Record, RecordError
from benchctl.data.rounds import LeftOut, read_left_out
from benchctl.data.scores import TargetScores, read_scores
from benchctl.data.traces import COSTS, CostTraces, read_costs
from benchctl.data.versions import other_version
from benchctl.errors import StorageError, UsageError
from benchctl.text import listed
from benchctl.writing import refuse_links

RECORDS = "records.jsonl"
FURTHER = "further.jsonl"
MANIFEST = "manifest.json"
TOKEN_IDS = b'"token_ids":['
"""How the writer begins a list of token ids."""
READ_AHEAD = 1 << 20
"""Bytes: a line is some thousand, and the usual buffer holds three of them."""
CONFLICT = "conflict"
"""`RecordError.kind` of a measurement whose two good records disagree."""
MANY = 10_000
"""From so many records on they are exempted from garbage collection."""


@dataclass(frozen=True)
class RunData:
    """A run as stored."""

    folder: Path
    manifest: Manifest | None
    """`None` for a study's bare JSONL file."""
    records: list[Record]
    """In file order. Of several records of a measurement only the record that counts; warm-ups are all here.

    Two good records that disagree leave a failed record (`CONFLICT`): which was measured is not known. Records of a
    cell whose attestation failed are left out: what ran there is not what the recipe requests.
    """
    damaged: list[str]
    """A sentence for every line that could not be read."""
    scores: TargetScores | None = None
    """What the target alone makes of its answers."""
    drafts: Mapping[str, ModelIdentity | None] = field(default_factory=dict)
    """Of a part with setups that differ in their draft: by arm, the draft of its setup."""
    part: str | None = None
    """The part of a run with axes or several context lengths; `None`: the whole run."""
    of_parts: Mapping[str, TargetScores | None] = field(default_factory=dict)
    """The scores of each part, by its name."""
    costs: CostTraces | None = None
    """The costs of rounds, timed in runs of their own."""
    further: Sequence[Record] = ()
    """Answers to `Manifest.further`: for verdicts on the output alone (`benchctl.data.pool`)."""
    pooled: bool = False
    """Whether evidence was pooled: what should be in `records` and is not stands there as a failed record, so that
    whatever else lacks was never asked."""
    names: Sequence[str] = ()
    """The runs that this is of, where they are several."""
    left_out: Sequence[LeftOut] = ()
    """What drafts left out of the model, of a run with traces."""
    integrity: Integrity = field(default_factory=Integrity)
    """Whether the files are as they were written; where they are not, nothing is concluded of them."""

    @property
    def name(self) -> str:
        """Its id, or for a bare file the name of its folder; of several runs all ids."""
        return listed(self.names) if self.names else self.manifest.run if self.manifest else self.folder.name


def open_run(path: Path, *, as_stored: bool = False, check: bool = True) -> RunData:
    """Read a run folder, a bare JSONL file, or a folder of a JSONL file per arm, as a published study has them.

    `as_stored`: with the arms as its files name them, as resuming needs; else an arm that unlike machines of a cluster
    measured becomes several (`benchctl.data.machines`). `check`: whether the records are checked against their SHA-256;
    a run that reads what it just wrote is spared that.

    Raises UsageError when there is no run at `path`, StorageError when it cannot be read or is of a newer schema.
    """
    damage: list[str] = []
    if path.is_dir() and (study := study_files(path)):
        manifest, files = None, study
    elif path.is_dir():
        manifest, damage = checked_manifest(path)
        damage += lines_damage(path, manifest, RECORDS) if check else []
        files = [path / RECORDS]
    elif path.is_file():
        manifest, files = None, [path]
        if path.name == RECORDS and (path.parent / MANIFEST).is_file():
            return open_run(path.parent, as_stored=as_stored, check=check)
    else:
        raise UsageError(
            "There is no run here.", where=str(path), fix="Name a run folder below results/, or a JSONL file."
        )
    damaged: list[str] = []
    records = _read_records([file for file in files if file.exists()], damaged, manifest, changed=bool(damage))
    if manifest is None and not records:
        raise UsageError(
            f"{'This folder' if path.is_dir() else 'This file'} contains no benchctl record.",
            where=str(path),
            fix="Name a run folder, a records.jsonl file, or a folder of one JSONL file per arm.",
        )
    folder = path if path.is_dir() else path.parent
    if manifest is None:
        return RunData(folder, manifest, records, damaged)
    scores, further = StoredScores(path, manifest), list[Record]()
    if manifest.further is not None:
        asked = manifest.model_copy(update={"cells": manifest.further.cells})
        damage += lines_damage(path, manifest, FURTHER, unfinished=manifest.further.asking) if check else []
        files = [path / FURTHER] if (path / FURTHER).exists() else []
        further = _read_records(files, damaged, asked, changed=bool(damage))
    if manifest.machines and not as_stored:
        manifest, records = by_machine(manifest, records)
    parts = dict.fromkeys(arm.group.part for arm in manifest.compared().values())
    return RunData(
        folder,
        manifest,
        records,
        damaged,
        scores=read_scores(folder, None, scores.read),
        costs=scores.read(COSTS, lambda: read_costs(folder)),
        left_out=read_left_out(folder, manifest, records, rejected_cells(manifest.cells)),
        further=further,
        of_parts={name: read_scores(folder, name, scores.read) for name in parts if name is not None},
        integrity=Integrity(True, tuple(damage), tuple(scores.findings)),
    )


def study_files(folder: Path) -> list[Path]:
    """Return the JSONL files of a folder that is no run, a file per arm: the label is in each line."""
    if (folder / MANIFEST).exists() or not folder.is_dir():
        return []
    return sorted(file for file in folder.glob("*.jsonl") if file.is_file() and file.name != RECORDS)


def read_manifest(folder: Path) -> Manifest:
    """Read `manifest.json` of a run folder; errors as `open_run`."""
    return checked_manifest(folder)[0]


def checked_manifest(folder: Path) -> tuple[Manifest, list[str]]:
    """Return `manifest.json` of a run folder, and a sentence for all of it that changed; errors as `open_run`."""
    refuse_links(folder)
    try:
        manifest, content = MANIFEST_FORMAT.read_with_source(folder / MANIFEST, Manifest)
        return manifest, manifest_damage(content, MANIFEST)
    except FileNotFoundError:
        raise UsageError(
            "This folder is no run: it has no manifest.json.",
            where=str(folder),
            fix="Name a run folder such as results/<recipe>/<run>.",
        ) from None


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector. Objects without cycles are still freed at once.

    While answers are measured, all streams share an event loop, and during a full collection no arrival is noticed:
    with some 100,000 tokens in memory that is up to 90 ms, which would be read as an engine's. What is not freed
    meanwhile is about 2 KB an answer: asyncio's transports refer to themselves.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _read_records(
    files: Sequence[Path], damaged: list[str], manifest: Manifest | None, *, changed: bool
) -> list[Record]:
    rejected = rejected_cells(manifest.cells) if manifest else set()
    overlapping = {arm.name for arm in manifest.arms if arm.overlapping} if manifest else set()
    try:
        with collector_paused():  # many small objects, none of them garbage: collecting takes a sixth of the time
            read = (record for file in files for record in _lines_of(file, damaged, changed=changed))
            records = _counting_records(_with_shared_texts(read), rejected, overlapping)
    except OSError as error:
        where = str(error.filename or files[0])
        raise StorageError(f"The records cannot be read: {error.strerror}.", where=where) from None
    if len(records) >= MANY:
        gc.freeze()  # nor will they be garbage later: analysis takes a tenth less time
    return records


def _lines_of(file: Path, damaged: list[str], *, changed: bool) -> Iterator[Record]:
    shared: dict[bytes, list[int]] = {}
    with file.open("rb", buffering=READ_AHEAD) as lines:
        for number, line in enumerate(lines, start=1):
            if line.isspace():
                continue
            try:
                record = _parse(line, shared)
            except ValueError:
                problem = "is no record" if line.endswith(b"\n") else "is cut off"
                damaged.append(f"{file.name}:{number} {problem} and was left out ({len(line)} bytes).")
                continue
            if record.schema_version <= SCHEMA_VERSION:
                yield record
            elif changed:
                damaged.append(f"{file.name}:{number} is of no version that this run has and was left out.")
            else:
                raise other_version(record.schema_version, SCHEMA_VERSION, "record", f"{file}:{number}")


def _parse(line: bytes, shared: dict[bytes, list[int]]) -> Record:
    """Parse a line. Equal lists of token ids, which are most of a run, are parsed once and shared.

    `shared`: lists by how they are written, added to.
    """
    head, key, after_key = line.partition(TOKEN_IDS)  # within a text its quotes would be escaped
    digits, end, tail = after_key.partition(b"]")
    token_ids = shared.get(digits) if end else None
    if token_ids is None:
        record = Record.from_line(line)
        if end and record.token_ids is not None:
            shared[digits] = record.token_ids
    else:
        record = Record.from_line(head + key[:-1] + b"null" + tail)
        force_setattr(record, "token_ids", token_ids)  # frozen, but not yet shared
    return record


def rejected_cells(cells: Iterable[Cell]) -> set[tuple[int, str, int]]:
    """Return (block, arm, attempt) of every process that did not run as requested, or whose group was discarded.

    A failed attestation also rejects the earlier processes of its cell that were broken off before they were attested.
    """
    rejected: set[tuple[int, str, int]] = set()
    failed: dict[tuple[int, str], int] = {}
    closed: set[tuple[int, str, int]] = set()
    for cell in cells:
        if cell.discarded is not None:
            rejected.add((cell.block, cell.arm, cell.attempt))
        elif cell.attestation is not None and cell.attestation.state == "failed":
            rejected.add((cell.block, cell.arm, cell.attempt))
            failed[cell.block, cell.arm] = max(cell.attempt, failed.get((cell.block, cell.arm), 0))
        elif cell.status == "finished":
            closed.add((cell.block, cell.arm, cell.attempt))
    for (block, arm), last in failed.items():
        rejected |= {(block, arm, attempt) for attempt in range(last) if (block, arm, attempt) not in closed}
    return rejected


def _with_shared_texts(records: Iterable[Record]) -> Iterator[Record]:
    """Yield the records; equal answers share one text, which saves most of a run's memory."""
    first: dict[str | None, str | None] = {}
    for record in records:
        text = first.setdefault(record.content_sha, record.content)
        if text == record.content:
            force_setattr(record, "content", text)  # frozen, and equal before and after
        yield record


def _counting_records(
    records: Iterable[Record], rejected: set[tuple[int, str, int]], overlapping: set[str]
) -> list[Record]:
    """Return the record that counts of every measurement: the last good one, else the last; none of a rejected cell.

    Answers of `overlapping` requests do not repeat, and a cell of them that was broken off is measured again as a
    whole: there the last process counts, and only records of the same process can disagree.
    """
    counting: dict[object, Record] = {}
    for number, record in enumerate(records):
        if rejected and (record.block, record.label, record.attempt) in rejected:
            continue
        key = record.key if record.phase == "measure" else number
        earlier = counting.get(key)
        if earlier is None:
            counting[key] = record
            continue
        if is_conflict(earlier) or (record.error is not None and earlier.error is None):
            continue
        if record.error is None and earlier.error is None:
            measured_anew = record.label in overlapping and record.attempt != earlier.attempt
            differ = None if measured_anew else _disagreement(earlier, record)
        else:
            differ = None
        del counting[key]  # so that the new record stands at its own place in the file
        counting[key] = record if differ is None else _conflict(record, differ)
    return list(counting.values())


def is_conflict(record: Record) -> bool:
    """Whether a record stands for several good ones that disagree."""
    return record.error is not None and record.error.kind == CONFLICT


def _disagreement(first: Record, second: Record) -> str | None:
    """Return in what two good records of a measurement disagree; `None` where the second only adds to the first.

    What a process adds to its own record is the token ids that its stream withheld.
    """
    if (first.content, first.content_sha) != (second.content, second.content_sha):
        return "text"
    if None not in (first.token_sha, second.token_sha) and first.token_sha != second.token_sha:
        return "token ids"
    if (first.n_predicted, first.finish_reason) != (second.n_predicted, second.finish_reason):
        return "length or ending"
    if first.prompt_sha != second.prompt_sha:
        return "rendered prompt"
    same = second.changed(token_ids=first.token_ids, token_sha=first.token_sha, token_gap=first.token_gap)
    return "times or counts" if first.attempt == second.attempt and same != first else None


_IDENTITY = ("label", "task", "prompt_idx", "rep", "schema_version", "run", "block", "order", "attempt")


def _conflict(record: Record, differ: str) -> Record:
    error = RecordError(kind=CONFLICT, message=f"two good records of this measurement disagree in their {differ}")
    return Record(**{name: getattr(record, name) for name in _IDENTITY}, error=error)


def latest_run(results: Path) -> Path:
    """Return the newest run folder below `results` (or below a recipe's folder); raises UsageError when none is."""
    runs = [file.parent for pattern in ("*/*/", "*/") for file in results.glob(pattern + MANIFEST)]
    if not runs:
        raise UsageError("There is no run yet.", where=str(results), fix="Make one: benchctl run RECIPE")
    return max(runs, key=lambda folder: (folder.name, str(folder)))  # names begin with the time


def resolve_run(argument: str | None, results: Path) -> Path:
    """Return the run that an argument means: a run folder, a recipe's folder or name, a run's id, or nothing.

    A JSONL file, or a folder of such files, is returned as it is.

    Raises UsageError when it is none of these.
    """
    if argument is None:
        return latest_run(results)
    path = Path(argument).expanduser()
    if path.is_file() or (path / MANIFEST).is_file() or study_files(path):
        return path
    for folder in (path, results / argument):
        if folder.is_dir():
            return folder if (folder / MANIFEST).is_file() else latest_run(folder)
    by_id = sorted(results.glob(f"*/{argument}/{MANIFEST}")) if "/" not in argument else []
    if by_id:
        return by_id[0].parent
    names = sorted(folder.name for folder in results.glob("*/") if folder.is_dir()) if results.is_dir() else []
    have = f" Recipes with runs in {results}: {', '.join(names)}." if names else ""
    raise UsageError(
        "There is no such run.", where=argument, fix=f"Name a run folder, a recipe, or a JSONL file.{have}"
    )
