"""The rows of a question file: text, JSON lines (plain or gzip), a JSON list, or parquet, by the file's ending."""

from __future__ import annotations

import codecs
import gzip
import importlib
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from benchctl.errors import UsageError
from benchctl.prompts.importers.formats import Fields
from benchctl.recipes.problems import Plain, quoted
from benchctl.text import one_line

SEPARATOR = "---"
ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".parquet")
_MAX_LINE = 16 << 20
_MAX_BYTES = 1 << 30
"""Of JSON lines, unpacked: a gzip file of a few kilobytes can hold any number of them."""
_BATCH = 256


def read_rows(path: Path, label: str) -> Iterator[tuple[str, Fields]]:
    """Give every row with its place (`question.jsonl:3`), which messages call `label`.

    Raises UsageError for a file that cannot be read, and for a line that is not a JSON object.
    """
    label, name = one_line(label), path.name.lower()
    if name.endswith(".parquet"):
        yield from _parquet_rows(path, label)
        return
    if name.endswith(".txt"):
        yield from _text_rows(path, label)
        return
    try:
        with _opened(path) as stream:
            if name.endswith(".json") and _is_list(stream):
                yield from _listed_rows(stream.read(_MAX_BYTES), label)
                return
            for number, line in enumerate(_lines(stream, label), start=1):
                if line.strip():
                    yield f"{label}:{number}", _object(line, f"{label}:{number}")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError("this gzip file is truncated or damaged", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=label) from None


def _is_list(stream: IO[bytes]) -> bool:
    beginning = stream.read(_MAX_LINE).removeprefix(codecs.BOM_UTF8).lstrip()
    stream.seek(0)
    return beginning.startswith(b"[")


def _listed_rows(text: bytes, label: str) -> Iterator[tuple[str, Fields]]:
    rows = _parsed(text, label, "a JSON list of objects")
    for number, row in enumerate(rows if isinstance(rows, list) else [rows]):
        if not isinstance(row, dict):
            raise UsageError(f"expected an object; got {quoted(row)}", where=f"{label}[{number}]")
        yield f"{label}[{number}]", row


def _text_rows(path: Path, label: str) -> Iterator[tuple[str, Fields]]:
    """Give a prompt for every line; where lines of dashes separate them, for all between two of those."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise UsageError("this is not UTF-8 text", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror}", where=label) from None
    if not any(line.strip() == SEPARATOR for line in lines):
        yield from (
            (f"{label}:{number}", {"prompt": line.strip()}) for number, line in enumerate(lines, 1) if line.strip()
        )
        return
    start, part = 1, list[str]()
    for number, line in enumerate([*lines, SEPARATOR], 1):
        if line.strip() != SEPARATOR:
            part.append(line)
            continue
        if whole := "\n".join(part).strip():
            yield f"{label}:{start}", {"prompt": whole}
        start, part = number + 1, []


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path)) if path.name.lower().endswith(".gz") else path.open("rb")


def _lines(stream: IO[bytes], label: str) -> Iterator[bytes]:
    total = 0
    while line := stream.readline(_MAX_LINE + 1):
        total += len(line)
        if len(line) > _MAX_LINE or total > _MAX_BYTES:
            raise UsageError("a line is longer than 16 MiB, or the file than 1 GiB", where=label)
        yield line


def _object(line: bytes, where: str) -> Fields:
    value = _parsed(line, where, "one JSON object a line")
    if not isinstance(value, dict):
        raise UsageError(f"expected one JSON object a line; got {quoted(value)}", where=where)
    return value


def _parsed(text: bytes, where: str, expected: str) -> Plain:
    try:
        value: Plain = json.loads(text.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UsageError("expected UTF-8 text", where=where) from None
    except json.JSONDecodeError as error:
        what = f"this line is not JSON: {error.msg} (column {error.colno})"
        raise UsageError(f"expected {expected}; {what}", where=where) from None
    except RecursionError:
        raise UsageError("expected a JSON object; this one is nested too deeply", where=where) from None
    return value


def _parquet_rows(path: Path, label: str) -> Iterator[tuple[str, Fields]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        fix = 'Install the extra `importers`: pip install "benchctl[importers]"'
        raise UsageError("reading a parquet file needs pyarrow, which is not installed", where=label, fix=fix) from None
    number = 0
    try:
        with path.open("rb") as stream:
            for batch in parquet.ParquetFile(stream).iter_batches(batch_size=_BATCH):
                for fields in batch.to_pylist():
                    number += 1
                    yield f"{label}: row {number}", fields
    except ValueError as error:  # pyarrow.lib.ArrowInvalid is one
        if not type(error).__module__.startswith("pyarrow"):
            raise
        raise UsageError("this is not a parquet file, or it is damaged", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror or error}", where=label) from None
