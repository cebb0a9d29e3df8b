"""One engine process under its supervisor: in a process group of its own, always stopped, its exit status known."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchctl.errors import EngineError, StorageError

SUPERVISOR = Path(__file__).with_name("supervisor.py")
STOP_GRACE_S = 10.0
"""How long an engine may take to end after SIGTERM before it is killed."""
KILL_GRACE_S = 10.0
"""How long the kernel and the supervisor may take to clear away what was killed."""

_KEPT = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SYSTEMROOT"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
        *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "CUDA_PATH", "NVIDIA_VISIBLE_DEVICES"),
        *("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION", "VK_ICD_FILENAMES"),
        *("ONEAPI_DEVICE_SELECTOR", "ASCEND_RT_VISIBLE_DEVICES"),
    }
)
OWN_SETTINGS = {
    # A path below which nothing can exist: no file of the user's can set a flag.
    "XDG_CONFIG_HOME": "/dev/null",
    # Threads that spin while they wait ruin every measurement on a machine with anything else to do.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}
_SECRET = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE)


def free_port() -> int:
    """Return a loopback port that was free a moment ago; another process may still take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def describe_exit(status: int | None) -> str:
    """Say how a process ended: `status 1`, `signal SIGABRT`."""
    if status is None:
        return "an unknown status"
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


class EngineProcess:
    """A running engine; `pid` is its process id and that of its process group."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log_path: Path, *, scratch: Path | None = None
    ) -> None:
        """Start `argv` with its output going to `log_path`. Raises EngineError (`launch`), StorageError.

        `scratch` is a folder that the caller made for this engine; it goes with it, however it ends or if it never
        started.
        """
        self._status: int | None = None
        self._ended = False
        self._unread = b""
        self._waiting = threading.RLock()
        try:
            self.pid = self._start(argv, env, log_path, scratch)
        except BaseException:
            if scratch is not None:
                shutil.rmtree(scratch, ignore_errors=True)
            raise

    def _start(self, argv: Sequence[str], env: Mapping[str, str], log_path: Path, scratch: Path | None) -> int:
        try:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            log = log_path.open("wb")
        except OSError as error:
            raise StorageError(f"The engine's log cannot be written: {error.strerror}.", where=str(log_path)) from error
        with log:
            # A process group of its own keeps the terminal's Ctrl-C away: benchctl decides when an engine stops.
            # Not a session of its own: Linux schedules sessions against each other (autogroup), and on a busy
            # machine the client then sees the engine's first tokens 20 ms late.
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), "" if scratch is None else str(scratch), *argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=dict(env),
                process_group=0,
            )
        assert self._supervisor.stdin is not None
        assert self._supervisor.stdout is not None
        self._requests, self._replies = self._supervisor.stdin, self._supervisor.stdout
        os.set_blocking(self._replies.fileno(), False)
        try:
            return self._started(argv[0])
        except BaseException:
            self._requests.close()
            self._supervisor.wait(timeout=STOP_GRACE_S)
            self._replies.close()
            raise

    def _started(self, name: str) -> int:
        line = self._line(timeout=30.0)
        if line is not None and line.startswith("pid "):
            return int(line[4:])
        reason = line[5:] if line and line.startswith("fail ") else "its supervisor did not start"
        raise EngineError(f"The engine could not be started: {reason}", kind="launch", where=name)

    def _line(self, timeout: float) -> str | None:
        """Return the supervisor's next line, or `None` after `timeout` seconds or at its end."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._replies], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            block = os.read(self._replies.fileno(), 4096)
            if not block:
                self._ended = True
                return None
            self._unread += block
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode("utf-8", "replace")

    def wait(self, timeout: float = 0.0) -> bool:
        """Wait up to `timeout` seconds for the end of the engine; return whether it has ended. Thread-safe."""
        with self._waiting:
            if not self._ended:
                line = self._line(timeout)
                if line is not None and line.startswith("exit "):
                    self._status = int(line[5:])
                    self._ended = True
                elif self._ended:  # The supervisor was killed; end what the kernel did not end with it.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(self.pid, signal.SIGKILL)
            return self._ended

    @property
    def status(self) -> int | None:
        """The exit status, negative for the signal that ended it; `None` while it runs or when it is unknown."""
        return self._status

    def alive(self) -> bool:
        """Whether the engine still runs."""
        return not self.wait(0.0)

    def _send(self, request: bytes) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._requests.write(request)
            self._requests.flush()

    def remember_shared_memory(self) -> None:
        """Have the supervisor note the engine's shared memory, so that nothing of it stays when it is killed."""
        self._send(b"R")

    def stop(self, grace_s: float = STOP_GRACE_S, interrupt_s: float = 0.0) -> int | None:
        """SIGTERM once, wait `grace_s` seconds, SIGKILL to the whole group; return the exit status. Idempotent.

        `interrupt_s`: so long an engine that SIGTERM did not end is given after a SIGINT; 0 sends none.
        """
        if not self._requests.closed:
            try:
                for request, patience in ((b"T", grace_s), (b"I", interrupt_s), (b"K", KILL_GRACE_S)):
                    if not self.wait(0.0) and patience:
                        self._send(request)
                        self.wait(patience)
            finally:
                # An interrupt during the wait ends here too: the closed pipe has the supervisor finish the work.
                with contextlib.suppress(OSError):
                    self._requests.close()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._supervisor.wait(timeout=KILL_GRACE_S)
                self._replies.close()
        return self._status


def refused_variables(added: Mapping[str, str]) -> list[str]:
    """Return a sentence for every variable of a recipe's `engine.env` that may not be set there."""
    problems = []
    for name in added:
        if name.startswith("LLAMA_ARG_"):
            problems.append(f"{name} sets a flag that the recipe does not show; write the flag in engine.args.")
        elif _SECRET.search(name):
            problems.append(f"{name} looks like a secret; a recipe is recorded as it is, and must not hold one.")
        elif name in {"XDG_CONFIG_HOME", "AIP_MODE", "AIP_HTTP_PORT"}:
            problems.append(f"{name} would load settings that benchctl does not see.")
    return problems


def engine_environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of an engine: what is kept of the caller's, benchctl's settings, the recipe's."""
    kept = {name: value for name, value in caller.items() if name in _KEPT or name.startswith("LC_")}
    return {**kept, **OWN_SETTINGS, **added}
