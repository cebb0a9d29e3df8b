"""Acceptance lengths from elsewhere, read and written as the YAML of InferenceX's golden_al_distribution.

    model: {thinking_on: {3: 2.52}}     # model, mode, draft depth: tokens a round, the target's own included

Top-level keys that begin with `_` describe the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, TypeAdapter, ValidationError

from benchctl.errors import StorageError, UsageError
from benchctl.experiments.explain.curve import Reference

Lengths = dict[Annotated[int, Field(ge=1)], Annotated[float, Field(ge=1, allow_inf_nan=False)]]
_FORM = TypeAdapter(dict[str, dict[str, Lengths]])


def read_references(file: Path) -> list[Reference]:
    """Read acceptance lengths.

    Raises UsageError that names the place, StorageError for a file that cannot be read.
    """
    try:
        models = yaml.safe_load(file.read_text(encoding="utf-8-sig"))
        if isinstance(models, dict):
            models = {model: modes for model, modes in models.items() if not str(model).startswith("_")}
        found = _FORM.validate_python(models)
    except OSError as error:
        raise StorageError(f"The reference cannot be read: {error.strerror}.", where=str(file)) from None
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"] if part != "[key]")
        raise UsageError(
            f"Expected model: {{mode: {{depth: acceptance length}}}}: {first['msg']}.",
            where=": ".join(filter(None, (str(file), path))),
        ) from None
    except UnicodeDecodeError:
        raise UsageError("The reference is not UTF-8 text.", where=str(file)) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"The reference is not YAML: {str(error).splitlines()[0]}.", where=str(file)) from None
    rows = [
        Reference(model=model, mode=mode, depth=depth, acceptance_length=length)
        for model, modes in found.items()
        for mode, lengths in modes.items()
        for depth, length in lengths.items()
    ]
    for row in rows:
        if row.acceptance_length > row.depth + 1:
            raise UsageError(
                f"An acceptance length at depth {row.depth} lies between 1 and {row.depth + 1}; this is "
                f"{row.acceptance_length:g}.",
                where=f"{file}: {row.model}.{row.mode}.{row.depth}",
            )
    return rows


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
