"""A program that a person named: a path, or a name on PATH; what was named and is not there is an error.

And what decides what it does: its own file, and the libraries of its build beside it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import UsageError
from benchctl.models.hashes import file_sha256

_LIBRARIES = ("libllama*", "libggml*", "libmtmd*")
"""Shared libraries of programs that compute with ggml."""


@dataclass(frozen=True)
class FoundBinary:
    """A program, and the word for where it was found: `recipe`, `option`, `environment`, `PATH` or `bundled`."""

    path: Path
    found_in: str


def named_program(value: str, where: str, *, within: str, install: str, optional: bool = False) -> Path | None:
    """Return the program that `value` names, a path or a name on PATH; `None` only if `optional`.

    `where` is the setting that named it, `within` the program's place in a folder that was named instead, `install`
    what to do to have one. Raises UsageError.
    """
    if os.sep not in value and not value.startswith("~"):
        if on_path := shutil.which(value):
            return Path(on_path).absolute()
        if optional:
            return None
        here = f" To run the file in this folder, write ./{value}." if Path(value).is_file() else ""
        raise UsageError(f"there is no program called {value!r} on PATH", where=where, fix=f"{install}{here}")
    path = Path(value).expanduser().absolute()
    if path.is_dir():
        raise UsageError("this is a folder, not a program", where=where, fix=f"Did you mean {path / within}?")
    if not path.is_file():
        raise UsageError("there is no such program", where=where, fix="Correct the path, or leave it out.")
    if not os.access(path, os.X_OK):
        raise UsageError("this file may not be executed", where=where, fix=f"Run `chmod +x {path}` if it is a program.")
    return path


def sibling_hashes(binary: Path) -> dict[str, str]:
    """Return name and SHA-256 of ggml's shared libraries beside the binary or in the `lib` folder next to it."""
    home = binary.resolve().parent
    found = {
        library.resolve()
        for folder in (home, home.parent / "lib")
        for pattern in _LIBRARIES
        for library in folder.glob(pattern)
        if library.is_file() and (".so" in library.name or library.suffix == ".dylib")
    }
    return {library.name: file_sha256(library) for library in sorted(found)}
