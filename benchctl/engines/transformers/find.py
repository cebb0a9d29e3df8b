"""Which Python runs the server: one that has torch and transformers.

In this order: the option `--engine-binary`, the recipe's `engine.binary`, `$BENCHCTL_TRANSFORMERS`, the Python that
runs benchctl where it has both packages, the environment of `benchctl engines install transformers`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path

from benchctl.engines.common.programs import FoundBinary, which
from benchctl.engines.registry import FoundEngine
from benchctl.engines.transformers.installer import VERSION, installed_python
from benchctl.engines.transformers.methods import METHODS
from benchctl.errors import BenchctlError, EngineError

VARIABLE = "BENCHCTL_TRANSFORMERS"
INSTALL = (
    "`benchctl engines install transformers`, or name a Python that has torch and transformers: engine.binary, "
    f"--engine-binary, or {VARIABLE}."
)


def find_python(recipe: str | None = None, option: str | None = None) -> FoundBinary:
    """Return the Python to run. Raises EngineError (`launch`) when there is none."""
    named = ((option, "option"), (recipe, "recipe"), (os.environ.get(VARIABLE), "environment"))
    for value, found_in in named:
        if not value:
            continue
        path = which(value)
        if path is None:
            raise EngineError("there is no such program", kind="launch", where=value, fix=INSTALL)
        return FoundBinary(path, found_in)
    if found := _unnamed():
        return found[0]
    raise EngineError(
        "no transformers was found", kind="launch", where="transformers", fix=INSTALL, installs="transformers"
    )


def converting_python() -> Path | None:
    """Return the Python that the user named, else that of benchctl's own environment; `None` where there is neither."""
    return which(os.environ.get(VARIABLE, "")) or installed_python()


def _unnamed() -> list[FoundBinary]:
    found = []
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        found.append(FoundBinary(Path(sys.executable), "Python package"))
    if (python := installed_python()) is not None:
        found.append(FoundBinary(python, "bundled"))
    return found


def inventory() -> list[FoundEngine]:
    """Return every Python that could run the server, the one that runs first; none is probed, which takes seconds."""
    found = _unnamed()
    if os.environ.get(VARIABLE):
        try:
            found.insert(0, find_python())
        except BenchctlError as error:
            return [FoundEngine("transformers", "environment", error.where, problem=error.what, hint=error.fix)]
    if not found:
        return [FoundEngine("transformers", hint="install it with `benchctl engines install transformers`")]
    return [
        FoundEngine(
            "transformers",
            one.found_in,
            str(one.path),
            runs=number == 0,
            version=_version(one),
            speculation_types=tuple(METHODS),
        )
        for number, one in enumerate(found)
    ]


def _version(found: FoundBinary) -> str | None:
    if found.found_in == "Python package":
        return importlib.metadata.version("transformers")
    return VERSION if found.found_in == "bundled" else None
