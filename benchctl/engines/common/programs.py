"""The programs that come with an engine and end by themselves, run under the same supervisor as the engine."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from benchctl.engines.common.environment import engine_environment
from benchctl.engines.common.named_program import sibling_hashes
from benchctl.engines.common.process import EngineProcess
from benchctl.models.hashes import file_sha256
from benchctl.models.program import OnLine, Program

_POLL_S = 0.1


def program(file: Path) -> Program:
    """Return the program in `file`, a binary or a Python script."""
    parts = [file_sha256(file), *sorted(sibling_hashes(file).values())]
    command = (sys.executable, str(file)) if file.suffix == ".py" else (str(file),)
    if file.suffix == ".py":  # its modules lie beside it, in a folder named after the source they came from
        parts.append(file.parent.name)
    return Program(command, hashlib.sha256(" ".join(parts).encode()).hexdigest(), run_to_end)


def run_to_end(argv: Sequence[str], log: Path, on_line: OnLine | None = None) -> int:
    """Run `argv` to its end; see `benchctl.models.program.Run`. An interrupt stops it before it is passed on."""
    environment = engine_environment(os.environ, {"HF_HUB_OFFLINE": "1"})
    process = EngineProcess(argv, environment, log)
    reader = _Lines(log, on_line)
    try:
        while not process.wait(_POLL_S):
            reader.read()
    finally:
        status = process.stop(grace_s=2.0)
    reader.read(last=True)
    return -1 if status is None else status


class _Lines:
    """Passes on the lines that a log has grown by."""

    def __init__(self, log: Path, on_line: OnLine | None) -> None:
        self._log, self._on_line = log, on_line
        self._read = 0

    def read(self, *, last: bool = False) -> None:
        if self._on_line is None:
            return
        with self._log.open("rb") as stream:
            stream.seek(self._read)
            block = stream.read()
        whole = len(block) if last else block.rfind(b"\n") + 1
        self._read += whole
        for line in block[:whole].decode("utf-8", "replace").splitlines():
            self._on_line(line)
