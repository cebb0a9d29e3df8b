"""Which vLLM runs: the user's own always wins over the one that benchctl installed.

In this order: the option `--engine-binary`, the recipe's `engine.binary`, `$BENCHCTL_VLLM`, `vllm` on PATH, the
environment of `benchctl engines install vllm --cpu`. Each is the program `vllm` of a Python environment.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from benchctl.engines.common.programs import FoundBinary, named_program
from benchctl.engines.vllm.install import installed_program
from benchctl.errors import EngineError
from benchctl.paths import on_path

PROGRAM = "vllm"
VARIABLE = "BENCHCTL_VLLM"
_INSTALL = (
    "For a CPU: `benchctl engines install vllm --cpu`. For a GPU install vLLM yourself and name its program: "
    f"engine.binary, --engine-binary, {VARIABLE}, or PATH."
)
_SHEBANG = re.compile(rb"^#!(/[^\s]+)")
_LONG_SHEBANG = re.compile(rb"'''exec' \"?(/[^\"\n]+?)\"? \"\$0\"")
"""As pip writes it where the path of the interpreter is long or has spaces."""


def find_vllm(recipe_binary: str | None = None, option: str | None = None) -> FoundBinary:
    """Return the vLLM to run.

    Raises UsageError when the one that was named is not there or cannot be run, EngineError (`launch`) when there is
    none at all. A recipe that says just `vllm` names no particular one: when it is not on PATH, the search goes on.
    """
    if option is not None and (path := _named(option, f"--engine-binary {option}")):
        return FoundBinary(path, "option")
    if recipe_binary is not None:
        where = f"engine.binary: {recipe_binary}"
        if path := _named(recipe_binary, where, optional=recipe_binary == PROGRAM):
            return FoundBinary(path, "recipe")
    found = candidates()
    if not found:
        raise EngineError("no vLLM was found", kind="launch", where="vllm", fix=_INSTALL)
    return found[0]


def candidates() -> list[FoundBinary]:
    """Return every vLLM that is found without a recipe or an option, the winner first. Raises UsageError."""
    found = []
    if (own := os.environ.get(VARIABLE)) and (path := _named(own, f"{VARIABLE}={own}")):
        found.append(FoundBinary(path, "environment"))
    if there := on_path(PROGRAM):
        found.append(FoundBinary(there, "PATH"))
    if (program := installed_program()) is not None:
        found.append(FoundBinary(program, "bundled"))
    return found


def python_of(program: Path) -> Path:
    """Return the Python that runs the program `vllm`. Raises EngineError (`launch`) where it is no such script."""
    try:
        with program.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise EngineError(f"it cannot be read: {error.strerror}", kind="launch", where=str(program)) from None
    match = _LONG_SHEBANG.search(head) or _SHEBANG.search(head)
    named = Path(os.fsdecode(match[1])) if match else None
    if named is None or "python" not in named.name or not os.access(named, os.X_OK):
        raise EngineError(
            "this is no `vllm` program of a Python environment",
            kind="launch",
            where=str(program),
            fix="Name the file `vllm` in the `bin` folder of the environment that vLLM is installed in.",
        )
    return named


def _named(value: str, where: str, *, optional: bool = False) -> Path | None:
    return named_program(value, where, within=f"bin/{PROGRAM}", install=_INSTALL, optional=optional)
