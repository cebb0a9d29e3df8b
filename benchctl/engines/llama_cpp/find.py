"""Which llama-server runs: the user's own always wins over the one that benchctl built.

In this order: the recipe's `engine.binary`, the option `--engine-binary`, `$BENCHCTL_LLAMA_SERVER`, `llama-server` on
PATH, the newest build of `benchctl engines install llama.cpp` that this machine can run.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from benchctl.engines.llama_cpp.builds import installed_builds
from benchctl.errors import EngineError, UsageError

SERVER = "llama-server"
VARIABLE = "BENCHCTL_LLAMA_SERVER"
_INSTALL = "Build it with `benchctl engines install llama.cpp`, or name your own with --engine-binary."


@dataclass(frozen=True)
class FoundBinary:
    """A program, and the word for where it was found: `recipe`, `option`, `environment`, `PATH` or `bundled`."""

    path: Path
    found_in: str


def find_server(recipe_binary: str | None = None, option: str | None = None, *, device: str = "auto") -> FoundBinary:
    """Return the llama-server to run.

    Raises UsageError when the one that was named is not there or cannot be run, EngineError (`launch`) when there is
    none at all. A recipe that says just `llama-server`, the name that every installation has, names no particular one:
    when it is not on PATH, the search goes on. Among builds of benchctl, one for `device` comes first.
    """
    if recipe_binary is not None:
        where = f"engine.binary: {recipe_binary}"
        if path := _named(recipe_binary, where, optional=recipe_binary == SERVER):
            return FoundBinary(path, "recipe")
    if option is not None and (path := _named(option, f"--engine-binary {option}")):
        return FoundBinary(path, "option")
    found = candidates(device=device)
    if not found:
        raise EngineError("no llama-server was found", kind="launch", where="llama.cpp", fix=_INSTALL)
    return found[0]


def candidates(*, device: str = "auto") -> list[FoundBinary]:
    """Return every llama-server that is found without a recipe or an option, the winner first. Raises UsageError."""
    found = []
    if (own := os.environ.get(VARIABLE)) and (path := _named(own, f"{VARIABLE}={own}")):
        found.append(FoundBinary(path, "environment"))
    if on_path := shutil.which(SERVER):
        found.append(FoundBinary(Path(on_path).absolute(), "PATH"))
    builds = sorted(installed_builds(), key=lambda build: build.backend != device)  # stable: newest first within each
    return found + [FoundBinary(build.binary(), "bundled") for build in builds]


def find_tool(name: str, server: Path) -> Path:
    """Return the program `name` (such as `llama-quantize`) that belongs to `server`: its sibling, else any there is.

    Raises EngineError (`launch`).
    """
    siblings = [server.parent / name, server.resolve().parent / name]  # Homebrew links only some into its bin folder
    on_path = [Path(path).absolute()] if (path := shutil.which(name)) else []
    for candidate in [*siblings, *on_path, *(build.binary(name) for build in installed_builds())]:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    raise EngineError(f"no {name} was found beside {server}", kind="launch", where="llama.cpp", fix=_INSTALL)


def _named(value: str, where: str, *, optional: bool = False) -> Path | None:
    """Return the program that `value` names, a path or a name on PATH; `None` only if `optional`."""
    if os.sep not in value and not value.startswith("~"):
        if on_path := shutil.which(value):
            return Path(on_path).absolute()
        if optional:
            return None
        here = f" To run the file in this folder, write ./{value}." if Path(value).is_file() else ""
        raise UsageError(f"there is no program called {value!r} on PATH", where=where, fix=f"{_INSTALL}{here}")
    path = Path(value).expanduser().absolute()
    if path.is_dir():
        raise UsageError("this is a folder, not a program", where=where, fix=f"Did you mean {path / SERVER}?")
    if not path.is_file():
        raise UsageError("there is no such program", where=where, fix="Correct the path, or leave it out.")
    if not os.access(path, os.X_OK):
        raise UsageError("this file may not be executed", where=where, fix=f"Run `chmod +x {path}` if it is a program.")
    return path
