"""The rows of a file: of text, JSON lines (plain or gzip), a JSON list, CSV, or parquet, by the file's ending."""

from __future__ import annotations

import codecs
import csv
import gzip
import importlib
import itertools
import json
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import IO, cast

from benchctl.errors import UsageError
from benchctl.prompts.row import Fields
from benchctl.recipes.problems import Plain, quoted
from benchctl.text import one_line

_SEPARATOR = "---"
_MAX_LINE = 16 << 20
_MAX_BYTES = 1 << 28
"""Most bytes of an unpacked file. A gzip or parquet file of a few kilobytes can hold any number of rows."""
_BATCH = 256


def rows_of(path: Path, label: str, columns: Sequence[str]) -> Iterator[tuple[str, Fields | UsageError]]:
    """Give every row, or what is wrong with it, with its place (`a.jsonl:3`); `columns`: of a CSV file without a
    header. Raises UsageError for what is wrong with the file.
    """
    label, ending = one_line(label), path.suffix.lower()
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _too_long(label)
        if ending == ".parquet":
            yield from _parquet_rows(path, label)
        elif ending == ".txt":
            yield from _text_rows(path.read_text(encoding=_encoding(path)), label)
        elif ending == ".csv":
            yield from _csv_rows(path, label, columns)
        else:
            yield from _json_rows(path, label)
    except UnicodeDecodeError:
        raise UsageError("this is no text in UTF-8 (or in UTF-16 with a byte-order mark)", where=label) from None
    except csv.Error as error:
        raise UsageError(f"this is no CSV file: {error}", where=label) from None
    except gzip.BadGzipFile as error:
        if "Not a gzipped file" in str(error):
            fix = f"Rename it to {label.removesuffix('.gz')} where it is text."
            raise UsageError("its name ends in .gz, but it is no gzip file", where=label, fix=fix) from None
        raise UsageError("this gzip file is truncated or damaged", where=label) from None
    except (EOFError, zlib.error):
        raise UsageError("this gzip file is truncated or damaged", where=label) from None
    except OSError as error:
        raise UsageError(f"the file cannot be read: {error.strerror or error}", where=label) from None


def _too_long(label: str) -> UsageError:
    fix = "Name a file of fewer questions."
    return UsageError(f"a line is longer than 16 MiB, or the file than {_MAX_BYTES >> 20} MiB", where=label, fix=fix)


def _text_rows(text: str, label: str) -> Iterator[tuple[str, Fields]]:
    """Give a prompt for every line; where lines of dashes separate them, for all between two of those."""
    lines = text.split("\n")
    several = any(line.strip() == _SEPARATOR for line in lines)
    start, part = 1, list[str]()
    for number, line in enumerate([*lines, _SEPARATOR], 1):
        ends = line.strip() == _SEPARATOR
        part += [] if ends else [line]
        if ends or not several:
            if prompt := "\n".join(part).strip():
                yield f"{label}:{start}", {"prompt": prompt}
            start, part = number + 1, []


def _csv_rows(path: Path, label: str, columns: Sequence[str]) -> Iterator[tuple[str, Fields]]:
    with path.open(encoding=_encoding(path), newline="") as stream:
        reader = csv.reader(stream, strict=True)
        header: Sequence[str] = columns
        for number, cells in enumerate(reader):
            if number == 0 and (not columns or set(columns) & {cell.strip().lower() for cell in cells}):
                header = cells
            elif cells:
                yield f"{label}:{reader.line_num}", dict(zip(header, cells, strict=False))


def _json_rows(path: Path, label: str) -> Iterator[tuple[str, Fields | UsageError]]:
    """Give the objects of a list, where a `.json` file begins with one, else those of its lines."""
    name = path.name.lower()
    with cast(BufferedReader, gzip.open(path)) if name.endswith(".gz") else path.open("rb") as packed:
        stream: IO[bytes] = packed
        begins = packed.peek(64)
        if begins.startswith(_UTF16):
            text = as_utf8(b"".join(_lines(packed, label)))
            stream, begins = BytesIO(text), text
        if name.endswith(".json") and begins.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
            rows = parse_json(stream.read(), label, "a JSON list of objects")
            yield from ((f"{label}[{number}]", _object(row, f"{label}[{number}]")) for number, row in enumerate(rows))
            return
        for number, line in enumerate(_lines(stream, label), start=1):
            if line.strip():
                where = f"{label}:{number}"
                yield where, _line(line, where)


_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _encoding(path: Path) -> str:
    with path.open("rb") as stream:
        return "utf-16" if stream.read(2) in _UTF16 else "utf-8-sig"


def as_utf8(text: bytes) -> bytes:
    """Return a text in UTF-8 without a byte-order mark, also of UTF-16 with one. Raises UnicodeDecodeError."""
    return text.decode("utf-16").encode() if text.startswith(_UTF16) else text.removeprefix(codecs.BOM_UTF8)


def _lines(stream: IO[bytes], label: str) -> Iterator[bytes]:
    total = 0
    while line := stream.readline(_MAX_LINE + 1):
        total += len(line)
        if len(line) > _MAX_LINE or total > _MAX_BYTES:
            raise _too_long(label)
        yield line


def _line(line: bytes, where: str) -> Fields | UsageError:
    try:
        return _object(parse_json(line, where, "one JSON object a line"), where)
    except UsageError as error:
        return error


def _object(row: Plain, where: str) -> Fields | UsageError:
    """Return a row; a text alone is a prompt."""
    if isinstance(row, str):
        return {"prompt": row}
    return row if isinstance(row, dict) else UsageError(f"expected a JSON object; got {quoted(row)}", where=where)


def parse_json(text: bytes, where: str, expected: str) -> Plain:
    """Return the plain data of a JSON text. Raises UsageError that says what was expected."""
    try:
        return json.loads(as_utf8(text).decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"expected {expected}; this is no JSON in UTF-8: {one_line(str(error))}", where=where
        ) from None


def _parquet_rows(path: Path, label: str) -> Iterator[tuple[str, Fields]]:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        fix = 'Install the extra `importers`: pip install "benchctl[importers]"'
        raise UsageError("reading a parquet file needs pyarrow, which is not installed", where=label, fix=fix) from None
    try:
        with path.open("rb") as stream:
            total, numbers = 0, itertools.count(1)
            for batch in parquet.ParquetFile(stream).iter_batches(batch_size=_BATCH):
                total += batch.nbytes
                if total > _MAX_BYTES:
                    raise _too_long(label)
                yield from ((f"{label}: row {next(numbers)}", fields) for fields in batch.to_pylist())
    except ValueError:  # such as pyarrow.lib.ArrowInvalid
        raise UsageError("this is not a parquet file, or it is damaged", where=label) from None
