"""Run one command of an installation: its output goes to the log as it comes, and nothing of it outlives us."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TextIO

_KEPT_LINES = 4000
_LONGEST_LINE = 8192
_TAIL_LINES = 20
_GRACE_S = 3.0
_TROUBLE = re.compile(r"\berror\b|^FAILED:|CMake Error|undefined reference|\*\*\*|No space left|Killed", re.IGNORECASE)


class CommandFailedError(Exception):
    """A command ended with another status than 0. `lines` is the end of its output: untrusted text."""

    def __init__(self, argv: Sequence[str], status: int, lines: Sequence[str]) -> None:
        super().__init__(f"{argv[0]} exited with status {status}")
        self.status = status
        self.lines = tuple(lines)

    def tail(self) -> tuple[str, ...]:
        """Return the lines that show the cause: from the first sign of trouble on, else the last ones."""
        for index, line in enumerate(self.lines):
            if _TROUBLE.search(line):
                return self.lines[index : index + _TAIL_LINES]
        return self.lines[-_TAIL_LINES:]


def run_logged(
    argv: Sequence[str],
    *,
    log: TextIO,
    env: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
) -> tuple[str, ...]:
    """Run `argv`; return the end of its output (stdout and stderr together). Raises CommandFailedError.

    When we are interrupted, the command ends with all its children: a compiler that goes on would write into a folder
    that is being removed.
    """
    log.write(f"$ {' '.join(argv)}\n")
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in iter(partial(process.stdout.readline, _LONGEST_LINE), ""):
            log.write(line)
            lines.append(line.rstrip("\n"))
            if on_line:
                on_line(lines[-1])
        status = process.wait()
    except BaseException:
        _end(process)
        raise
    finally:
        if process.stdout:
            process.stdout.close()
        log.flush()
    if status:
        raise CommandFailedError(argv, status, lines)
    return tuple(lines)


def _end(process: subprocess.Popen[str]) -> None:
    """End the process and its descendants. Ninja gives each of its children a group, so killing ours is not enough."""
    import psutil

    family: list[psutil.Process] = []
    with suppress(psutil.Error):
        family = psutil.Process(process.pid).children(recursive=True)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    for member in psutil.wait_procs(family, timeout=_GRACE_S)[1]:
        with suppress(psutil.Error):
            member.kill()
    process.kill()
    process.wait()
