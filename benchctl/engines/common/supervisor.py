"""The supervisor: a small process between benchctl and an engine, so that no engine outlives benchctl.

Run as a script by its own path with nothing but the standard library (`python -I -S supervisor.py SCRATCH
ENGINE ARGS…`; SCRATCH is a folder that benchctl made for this engine and that goes with it, or empty). Its
standard input is a pipe that only benchctl holds: a `T` asks for SIGTERM, an `I` for SIGINT, a `K` for SIGKILL, an `R`
to remember which shared memory the engine holds, and the end of the pipe means that benchctl is gone, however it died.
Its standard output carries two lines back: `pid N` or `fail MESSAGE`, and `exit STATUS` (negative: the signal that
ended the engine), the latter once nothing of the engine is left: no descendant, no shared-memory file. The engine
writes to the supervisor's standard error.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time

ORPHAN_GRACE_S = 2.0
"""How long an engine whose benchctl is gone has between SIGTERM and SIGKILL."""
FAMILY_GRACE_S = 3.0
"""How long descendants of an engine that has ended may take to end by themselves."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SHARED = re.compile(r" (/dev/shm/(?:psm_|sem\.mp-)[\w.-]+)$", re.MULTILINE)
"""Shared memory as Python's multiprocessing names it; killed processes leave it behind."""
_OPENMP = "/dev/shm/__KMP_REGISTERED_LIB_{pid}_{user}"  # noqa: S108 - its own, by its process id
"""The file by which Intel's OpenMP registers itself for a process; it, too, stays when the process is killed."""


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process, on Linux."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    """Between fork and exec of the engine: have the kernel kill it when the supervisor is killed."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _reply(line: str) -> None:
    """Write a line to benchctl; it may be gone."""
    with contextlib.suppress(OSError):
        os.write(1, (line.replace("\n", " ") + "\n").encode("utf-8", "replace"))


def _signal(pid: int, number: signal.Signals, *, group: bool = False) -> None:
    """Send a signal to a process, or to its whole group, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def _descendants() -> list[int]:
    """Return every process below this one, on Linux; orphans among them, for the supervisor adopts those."""
    parents: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208 - a supervisor imports as little as it can
            with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    family, size = {os.getpid()}, -1
    while len(family) != size:
        size = len(family)
        family |= {pid for pid, parent in parents.items() if parent in family}
    return sorted(family - {os.getpid()})


def _is_tracker(pid: int) -> bool:
    """Whether this is the helper of Python's multiprocessing that deletes what killed processes leave behind."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:  # noqa: PTH123
        return b"multiprocessing.resource_tracker" in file.read()
    return False


def _kill(engine: int) -> None:
    """Kill the engine and its descendants, but for the trackers, which then do their work and end by themselves."""
    family = _descendants()
    trackers = [pid for pid in family if _is_tracker(pid)]
    if not trackers:
        _signal(engine, signal.SIGKILL, group=True)
    for pid in family:
        if pid not in trackers:
            _signal(pid, signal.SIGKILL)


class _SharedMemory:
    """The shared-memory files that an engine made, as far as they were observed."""

    def __init__(self) -> None:
        self._since = time.time()
        self._files: set[str] = set()

    def remember(self) -> None:
        """Note what the descendants have mapped now."""
        for pid in _descendants():
            self._files.add(_OPENMP.format(pid=pid, user=os.getuid()))
            with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                self._files |= set(_SHARED.findall(file.read()))

    def remove(self) -> None:
        """Delete what is left of it, unless it is older than the engine and so not its own."""
        for file in self._files:
            with contextlib.suppress(OSError):
                if os.stat(file).st_ctime >= self._since:  # noqa: PTH116
                    os.unlink(file)  # noqa: PTH108


def _watch(engine: subprocess.Popen[bytes], wake: int, shared: _SharedMemory) -> None:
    """Pass requests from the pipe on to the engine until it has ended."""
    pipe_open, kill_at = True, float("inf")
    while engine.poll() is None:
        timeout = None if kill_at == float("inf") else max(0.0, kill_at - time.monotonic())
        ready, _, _ = select.select([0, wake] if pipe_open else [wake], [], [], timeout)
        numbers = os.read(wake, 512) if wake in ready else b""
        request = os.read(0, 64) if 0 in ready else None
        orphaned = request == b"" or signal.SIGTERM in numbers
        late = time.monotonic() >= kill_at
        if request is not None or orphaned or late:
            shared.remember()
        if orphaned:
            pipe_open = pipe_open and request != b""
            _signal(engine.pid, signal.SIGTERM)
            kill_at = min(kill_at, time.monotonic() + ORPHAN_GRACE_S)
        for letter, number in ((b"T", signal.SIGTERM), (b"I", signal.SIGINT)):
            if request and letter in request:
                _signal(engine.pid, number)
        if late or (request and b"K" in request):
            _kill(engine.pid)
            kill_at = float("inf")


def _end_family(engine: int) -> None:
    """Wait for the descendants of an engine that has ended; end those that stay."""
    for pid in _descendants():
        _signal(pid, signal.SIGTERM)
    kill_at = time.monotonic() + FAMILY_GRACE_S
    while time.monotonic() < kill_at + FAMILY_GRACE_S:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not _descendants():
            break
        if time.monotonic() >= kill_at:
            _kill(engine)
        time.sleep(0.02)
    for pid in _descendants():
        _signal(pid, signal.SIGKILL)
    _signal(engine, signal.SIGKILL, group=True)


def main(scratch: str, command: list[str]) -> int:
    """Start the engine in a process group of its own and stay until nothing of it is left, `scratch` included."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    # SIGINT has a handler and is not ignored, because an engine would inherit that and then could not be interrupted.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    shared = _SharedMemory()
    with contextlib.suppress(OSError):
        if scratch:  # held until this process is gone: `access.py` removes what nobody holds
            fcntl.flock(os.open(scratch, os.O_RDONLY), fcntl.LOCK_SH)
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
        _reply(f"fail {error.strerror}: {command[0]}")
        return 1
    _reply(f"pid {engine.pid}")
    _watch(engine, wake, shared)
    shared.remember()
    _end_family(engine.pid)
    shared.remove()
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)
    _reply(f"exit {engine.returncode}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
