"""Calling benchctl as a user does: a process of its own.

Each is forked from a process that has imported benchctl, which takes a new one most of a second.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryDirectory
from unittest.mock import patch

import benchctl as package

PACKAGE = Path(package.__file__).parent
_OF_TERMINALS = {"COLUMNS", "FORCE_COLOR"}
_WITH_TORCH = "benchctl.engines.transformers.serving"

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(
    [module.name for module in walk_packages(package.__path__, "benchctl.") if not module.name.startswith(_WITH_TORCH)]
)


def benchctl(*words: object, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `benchctl WORDS…` to its end; `env` is added to an environment without a terminal's settings."""
    environment = {key: value for key, value in os.environ.items() if key not in _OF_TERMINALS} | env
    command = ["benchctl", *map(str, words)]
    with TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("stdout", "stderr")]
        process = _forks.Process(target=_run, args=(command, cwd or Path.cwd(), environment, printed))
        process.start()
        try:
            process.join()
        finally:
            process.kill()
        assert process.exitcode is not None
        return subprocess.CompletedProcess(command, process.exitcode, *(file.read_text("utf-8") for file in printed))


def _run(command: list[str], folder: Path, environment: Mapping[str, str], printed: Sequence[Path]) -> None:
    """Become that command: in its folder, with its environment and streams."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate((Path(os.devnull), *printed)):
        stream = os.open(file, os.O_RDWR | os.O_CREAT)
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.argv = command
    from benchctl.__main__ import main

    # Where this machine pauses, no cell is measured again: tests/measurement/test_pauses.py is about that.
    with patch("benchctl.measurement.requests.find_pauses", return_value=[]):
        main()
