"""The JSON of every command: `--json` prints a document on stdout, and all are written here."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from benchctl import __version__


def json_text(command: str | None, content: Mapping[str, Any] | Sequence[Any], *, schema: int = 1) -> str:
    """Return the document as ASCII, a key of the content a line; a number that JSON lacks (NaN) becomes `null`.

    Its first keys are `benchctl`, the version that printed it; `document`, the command that prints documents of this
    kind, such as `runs show` (`None` where the content is a file of its own kind, such as a recipe); `schema`, the
    version of the kind, which rises when a key changes its meaning or is removed (of a stored file: that file's).
    """
    if not isinstance(content, Mapping):
        return f"{_text(content)}\n"
    if command is not None:
        content = {"benchctl": __version__, "document": command, "schema": schema, **content}
    lines = (f"{json.dumps(str(key))}: {_text(value)}" for key, value in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def print_json(command: str | None, content: Mapping[str, Any] | Sequence[Any], *, schema: int = 1) -> None:
    """Print the document on stdout."""
    sys.stdout.write(json_text(command, content, schema=schema))


def _text(value: object) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
