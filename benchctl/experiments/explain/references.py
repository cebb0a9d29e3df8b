"""Acceptance lengths from elsewhere, read and written as CSV or as the YAML of InferenceX's golden_al_distribution.

    model: {thinking_on: {3: 2.52}}     # model, mode, draft depth: tokens a round, the target's own included

Top-level keys that begin with `_` describe the file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from benchctl.errors import StorageError, UsageError
from benchctl.experiments.explain.curve import Reference
from benchctl.reports.write import spreadsheet_text

COLUMNS = ("model", "mode", "depth", "acceptance_length")
_MOST = 10_000
_YAML = (".yaml", ".yml")


def read_references(file: Path) -> list[Reference]:
    """Read acceptance lengths, YAML by the file's ending, else CSV.

    Raises UsageError that names the place, StorageError for a file that cannot be read.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise StorageError(f"The reference cannot be read: {error.strerror}.", where=str(file)) from None
    except UnicodeDecodeError:
        raise UsageError("The reference is not UTF-8 text.", where=str(file)) from None
    rows = _of_yaml(text, file) if file.suffix.lower() in _YAML else _of_csv(text, file)
    found = [_reference(row, place) for row, place in rows]
    if len(found) > _MOST:
        raise UsageError(f"The reference has more than {_MOST} acceptance lengths.", where=str(file))
    return found


def _of_csv(text: str, file: Path) -> Iterator[tuple[dict[str, object], str]]:
    rows = csv.DictReader(io.StringIO(text))
    lacking = [name for name in COLUMNS if name not in (rows.fieldnames or [])]
    if lacking:
        raise UsageError(
            f"The reference has no column {' and no column '.join(lacking)}.",
            where=f"{file}:1",
            fix=f"Its first line names the columns: {','.join(COLUMNS)}",
        )
    for row in rows:
        yield {name: row[name] or "" for name in COLUMNS}, f"{file}:{rows.line_num}"


def _of_yaml(text: str, file: Path) -> Iterator[tuple[dict[str, object], str]]:
    try:
        models = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"The reference is not YAML: {str(error).splitlines()[0]}.", where=str(file)) from None
    for model, modes in _mapping(models, str(file)):
        if not model.startswith("_"):
            for mode, lengths in _mapping(modes, f"{file}: {model}"):
                for depth, length in _mapping(lengths, f"{file}: {model}.{mode}"):
                    row = {"model": model, "mode": mode, "depth": depth, "acceptance_length": length}
                    yield row, f"{file}: {model}.{mode}.{depth}"


def _mapping(value: object, where: str) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise UsageError("Expected a mapping: model: {mode: {depth: acceptance length}}.", where=where)
    return [(str(key), inner) for key, inner in value.items()]


def _reference(row: dict[str, object], where: str) -> Reference:
    try:
        found = Reference.model_validate(row)
    except ValidationError:
        raise UsageError("depth is a whole number, acceptance_length a number.", where=where) from None
    depth, length = found.depth, found.acceptance_length
    if not (depth >= 1 and 1 <= length <= depth + 1):
        raise UsageError(
            f"An acceptance length at depth {depth} lies between 1 and {depth + 1}; this is {length:g}.", where=where
        )
    return found


def write_references(file: Path, references: Sequence[Reference], about: Sequence[str]) -> None:
    """Write acceptance lengths in the form of the file's ending; `about` becomes comments of YAML.

    Raises StorageError.
    """
    text = _as_yaml(references, about) if file.suffix.lower() in _YAML else _as_csv(references)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"The reference cannot be written: {error.strerror}.", where=str(file)) from None


def _as_csv(references: Sequence[Reference]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in references:
        writer.writerow([spreadsheet_text(row.model), spreadsheet_text(row.mode), row.depth, row.acceptance_length])
    return stream.getvalue()


def _as_yaml(references: Sequence[Reference], about: Sequence[str]) -> str:
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in references:
        found.setdefault(row.model, {}).setdefault(row.mode, {})[row.depth] = round(row.acceptance_length, 2)
    comments = "".join(f"# {' '.join(line.split())}\n" for line in about)
    return comments + yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
