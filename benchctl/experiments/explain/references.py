"""Acceptance lengths from elsewhere, read and written as the YAML of InferenceX's golden_al_distribution.

    model: {thinking_on: {3: 2.52}}     # model, mode, draft depth: tokens a round, the target's own included

Top-level keys that begin with `_` describe the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml
from pydantic import ValidationError

from benchctl.errors import StorageError, UsageError
from benchctl.experiments.explain.curve import Reference

_MOST = 10_000


def read_references(file: Path) -> list[Reference]:
    """Read acceptance lengths.

    Raises UsageError that names the place, StorageError for a file that cannot be read.
    """
    try:
        models = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise StorageError(f"The reference cannot be read: {error.strerror}.", where=str(file)) from None
    except UnicodeDecodeError:
        raise UsageError("The reference is not UTF-8 text.", where=str(file)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"The reference is not YAML: {str(error).splitlines()[0]}.", where=str(file)) from None
    found = list(_references(models, str(file)))
    if len(found) > _MOST:
        raise UsageError(f"The reference has more than {_MOST} acceptance lengths.", where=str(file))
    return found


def _references(models: object, file: str) -> Iterator[Reference]:
    for model, modes in _mapping(models, file):
        if not model.startswith("_"):
            for mode, lengths in _mapping(modes, f"{file}: {model}"):
                for depth, length in _mapping(lengths, f"{file}: {model}.{mode}"):
                    row = {"model": model, "mode": mode, "depth": depth, "acceptance_length": length}
                    yield _reference(row, f"{file}: {model}.{mode}.{depth}")


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
    """Write acceptance lengths; `about` becomes comments. Raises StorageError."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for row in references:
        found.setdefault(row.model, {}).setdefault(row.mode, {})[row.depth] = round(row.acceptance_length, 2)
    comments = "".join(f"# {' '.join(line.split())}\n" for line in about)
    try:
        file.write_text(comments + yaml.safe_dump(found, sort_keys=False, allow_unicode=True), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"The reference cannot be written: {error.strerror}.", where=str(file)) from None
