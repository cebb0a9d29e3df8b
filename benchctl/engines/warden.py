"""The warden: a small process between benchctl and an engine, so that no engine outlives benchctl.

Run as a script by its own path with nothing but the standard library (`python -I -S warden.py ENGINE ARGS…`). Its
standard input is a pipe that only benchctl holds: a `T` asks for SIGTERM, a `K` for SIGKILL, and the end of the pipe
means that benchctl is gone, however it died. Its standard output carries two lines back: `pid N` or `fail MESSAGE`,
and `exit STATUS` (negative: the signal that ended the engine). The engine writes to the warden's standard error.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time

ORPHAN_GRACE_S = 2.0
"""How long an engine whose benchctl is gone has between SIGTERM and SIGKILL."""


def _die_with_parent() -> None:
    """Between fork and exec of the engine, on Linux: have the kernel kill it when the warden is killed."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def _tell(line: str) -> None:
    """Write one line to benchctl; it may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, (line.replace("\n", " ") + "\n").encode("utf-8", "replace"))


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the engine's whole process group, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _watch(engine: subprocess.Popen[bytes], wake: int) -> None:
    """Pass requests from the pipe on to the engine until it has ended."""
    pipe_open, kill_at = True, float("inf")
    while engine.poll() is None:
        timeout = None if kill_at == float("inf") else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([0, wake] if pipe_open else [wake], [], [], timeout)
        numbers = os.read(wake, 512) if wake in ready else b""
        request = os.read(0, 64) if 0 in ready else None
        if request == b"" or signal.SIGTERM in numbers:
            pipe_open = pipe_open and request != b""
            _signal_group(engine.pid, signal.SIGTERM)
            kill_at = min(kill_at, time.monotonic() + ORPHAN_GRACE_S)
        elif request and b"T" in request:
            _signal_group(engine.pid, signal.SIGTERM)
        if (request and b"K" in request) or time.monotonic() >= kill_at:
            _signal_group(engine.pid, signal.SIGKILL)
            kill_at = float("inf")


def main(command: list[str]) -> int:
    """Start the engine in a process group of its own and stay until it has ended."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    try:
        engine = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            process_group=0,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one thread
        )
    except OSError as error:
        _tell(f"fail {error.strerror}: {command[0]}")
        return 1
    _tell(f"pid {engine.pid}")
    _watch(engine, wake)
    _signal_group(engine.pid, signal.SIGKILL)
    _tell(f"exit {engine.returncode}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
