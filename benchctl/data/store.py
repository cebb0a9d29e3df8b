"""The store: a run's folder, read tolerantly and written so that nothing is lost or half-written.

    results/<recipe>/<run>/manifest.json     rewritten whole, atomically
    results/<recipe>/<run>/records.jsonl     append-only, one write a record
    results/<recipe>/<run>/logs/             engine logs, one a cell

A published study's bare JSONL file of eleven keys reads as a run without a manifest.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import force_setattr
from pydantic import ValidationError

from benchctl.data.manifest import Cell, Manifest
from benchctl.data.record import SCHEMA_VERSION, Record
from benchctl.data.replays import Replays, read_replays
from benchctl.data.versions import newer, refuse_newer
from benchctl.errors import StorageError, UsageError

RECORDS = "records.jsonl"
MANIFEST = "manifest.json"
TOKEN_IDS = b'"token_ids":['
"""How the writer begins a list of token ids."""
READ_AHEAD = 1 << 20
"""Bytes: a line is some thousand, and the usual buffer holds three of them."""
MANY = 10_000
"""Of so many records the garbage collector is told that they stay."""


@dataclass(frozen=True)
class RunData:
    """A run as it lies on disk."""

    folder: Path
    manifest: Manifest | None
    """`None` for a study's bare JSONL file."""
    records: list[Record]
    """In file order. Of several records of one measurement only the one that counts; warm-ups are all here.

    Records of a cell whose attestation failed are not: what ran there is not what the recipe asked for.
    """
    damaged: list[str]
    """A sentence for every line that could not be read."""
    replays: Replays | None = None
    """What was replayed to explain differences."""

    @property
    def name(self) -> str:
        """Its id, or for a bare file the name of its folder."""
        return self.manifest.run if self.manifest else self.folder.name


def open_run(path: Path) -> RunData:
    """Read a run folder or a bare JSONL file.

    Raises UsageError when there is no run at `path`, StorageError when it cannot be read or is of a newer schema.
    """
    if path.is_dir():
        manifest = read_manifest(path)
        records_file = path / RECORDS
    elif path.is_file():
        manifest, records_file = None, path
        if path.name == RECORDS and (path.parent / MANIFEST).is_file():
            return open_run(path.parent)
    else:
        raise UsageError(
            "There is no run here.", where=str(path), fix="Name a run folder below results/, or a JSONL file."
        )
    damaged: list[str] = []
    rejected = rejected_cells(manifest.cells) if manifest else set()
    records = _read_records(records_file, damaged, rejected) if records_file.exists() else []
    if manifest is None and not records:
        raise UsageError(
            "This file holds no benchctl record.", where=str(path), fix="Name a run folder, or a records.jsonl file."
        )
    folder = path if path.is_dir() else path.parent
    return RunData(folder, manifest, records, damaged, replays=read_replays(folder) if manifest else None)


def read_manifest(folder: Path) -> Manifest:
    """Read `manifest.json` of a run folder; errors as `open_run`."""
    file = folder / MANIFEST
    try:
        raw: Any = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            "This folder is no run: it has no manifest.json.",
            where=str(folder),
            fix="Name a run folder such as results/<recipe>/<run>.",
        ) from None
    except (OSError, ValueError) as error:
        raise StorageError(
            f"The manifest cannot be read: {error}.",
            where=str(file),
            fix="Restore it from a copy, or run the recipe again.",
        ) from None
    refuse_newer(raw, SCHEMA_VERSION, "This run", str(file))
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise StorageError(f"The manifest is damaged: {key}: {first['msg']}.", where=str(file)) from None


def _read_records(file: Path, damaged: list[str], rejected: set[tuple[int, str, int]]) -> list[Record]:
    collecting = gc.isenabled()
    gc.disable()  # many small objects, none of them garbage: looking for it takes a sixth of the time
    try:
        with file.open("rb", buffering=READ_AHEAD) as lines:
            records = _that_count(_shared(_parsed(file, lines, damaged)), rejected)
    except OSError as error:
        raise StorageError(f"The records cannot be read: {error.strerror}.", where=str(file)) from None
    finally:
        if collecting:
            gc.enable()
    if len(records) >= MANY:
        gc.freeze()  # nor will they be garbage later: analysis takes a tenth less time
    return records


def _parsed(file: Path, lines: Iterable[bytes], damaged: list[str]) -> Iterator[Record]:
    known: dict[bytes, list[int]] = {}
    for number, line in enumerate(lines, start=1):
        if line.isspace():
            continue
        try:
            record = _parse(line, known)
        except ValueError:
            how = "is no record" if line.endswith(b"\n") else "is cut off"
            damaged.append(f"{file.name}:{number} {how} and was left out ({len(line)} bytes).")
            continue
        if record.schema_version > SCHEMA_VERSION:
            raise newer(record.schema_version, SCHEMA_VERSION, "This run", f"{file}:{number}")
        yield record


def _parse(line: bytes, known: dict[bytes, list[int]]) -> Record:
    """Parse a line. Token ids are most of it, and most answers come several times: equal lists are read once, shared.

    `known`: lists by how they are written, added to.
    """
    head, key, rest = line.partition(TOKEN_IDS)  # within a text its quotes would be escaped
    written, end, tail = rest.partition(b"]")
    shared = known.get(written) if end else None
    if shared is None:
        record = Record.from_line(line)
        if end and record.token_ids is not None:
            known[written] = record.token_ids
    else:
        record = Record.from_line(head + key[:-1] + b"null" + tail)
        force_setattr(record, "token_ids", shared)  # frozen, but nobody has seen it yet
    return record


def rejected_cells(cells: Iterable[Cell]) -> set[tuple[int, str, int]]:
    """Return (block, arm, attempt) of every process that did not run what was asked for."""
    return {
        (cell.block, cell.arm, cell.attempt)
        for cell in cells
        if cell.attestation is not None and cell.attestation.state == "failed"
    }


def _shared(records: Iterable[Record]) -> Iterator[Record]:
    """Let records with equal answers share one text, which most of a run's do."""
    first: dict[str | None, str | None] = {}
    for record in records:
        text = first.setdefault(record.content_sha, record.content)
        if text == record.content:
            force_setattr(record, "content", text)  # frozen, and equal before and after
        yield record


def _that_count(records: Iterable[Record], rejected: set[tuple[int, str, int]]) -> list[Record]:
    """Of the records of one measurement the last good one counts, else the last; none of a rejected cell does."""
    counting: dict[object, Record] = {}
    for number, record in enumerate(records):
        if rejected and (record.block, record.label, record.attempt) in rejected:
            continue
        key = record.key if record.phase == "measure" else number
        earlier = counting.get(key)
        if earlier is None:
            counting[key] = record
        elif record.error is None or earlier.error is not None:
            del counting[key]  # so that the new one stands at its own place in the file
            counting[key] = record
    return list(counting.values())


def latest_run(results: Path) -> Path:
    """Return the newest run folder below `results` (or below one recipe's folder); raises UsageError when none is."""
    runs = [file.parent for pattern in ("*/*/", "*/") for file in results.glob(pattern + MANIFEST)]
    if not runs:
        raise UsageError("There is no run yet.", where=str(results), fix="Make one: benchctl run RECIPE")
    return max(runs, key=lambda folder: (folder.name, str(folder)))  # names begin with the time


def resolve_run(argument: str | None, results: Path) -> Path:
    """Turn what a user names into a run: a run folder, a recipe's folder or name, a run's id, a JSONL file, or nothing.

    Raises UsageError when it is none of these.
    """
    if argument is None:
        return latest_run(results)
    path = Path(argument).expanduser()
    if path.is_file() or (path / MANIFEST).is_file():
        return path
    for folder in (path, results / argument):
        if folder.is_dir():
            return folder if (folder / MANIFEST).is_file() else latest_run(folder)
    by_id = sorted(results.glob(f"*/{argument}/{MANIFEST}")) if "/" not in argument else []
    if by_id:
        return by_id[0].parent
    known = sorted(folder.name for folder in results.glob("*/") if folder.is_dir()) if results.is_dir() else []
    have = f" Recipes with runs in {results}: {', '.join(known)}." if known else ""
    raise UsageError(
        "There is no such run.", where=argument, fix=f"Name a run folder, a recipe, or a JSONL file.{have}"
    )
