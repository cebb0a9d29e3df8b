"""An engine process under its supervisor: in a process group of its own, always stopped, its exit status known.

It is reached by a Unix socket where the engine can listen on it, and with a key: other users of the machine, and web
pages open on it, can connect to every port of loopback, but not to a socket in a folder of this user's alone; on a
port, the engine refuses every request without the key.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchctl.errors import EngineError, StorageError
from benchctl.writing import cannot_write, open_unlinked

SUPERVISOR = Path(__file__).with_name("supervisor.py")
STOP_GRACE_S = 10.0
"""How long an engine may take to end after SIGTERM before it is killed."""
KILL_GRACE_S = 10.0
"""How long the kernel and the supervisor may take to remove killed processes."""

_INHERITED = """
PATH HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR SYSTEMROOT
LD_LIBRARY_PATH LD_PRELOAD DYLD_LIBRARY_PATH DYLD_FALLBACK_LIBRARY_PATH
CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_HOME CUDA_PATH NVIDIA_VISIBLE_DEVICES
HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HSA_OVERRIDE_GFX_VERSION GPU_DEVICE_ORDINAL
VK_ICD_FILENAMES GGML_VK_VISIBLE_DEVICES VK_DRIVER_FILES VK_ADD_DRIVER_FILES VK_LOADER_LAYERS_DISABLE
ONEAPI_DEVICE_SELECTOR ZE_AFFINITY_MASK ZES_ENABLE_SYSMAN ASCEND_RT_VISIBLE_DEVICES
"""
"""Variables of the caller's that an engine gets."""
OWN_SETTINGS = {
    # A path below which nothing can exist: no file of the user's can set a flag.
    "XDG_CONFIG_HOME": "/dev/null",
    # Threads that spin while they wait ruin every measurement on a machine with anything else to do.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
}
OFFLINE_PYTHON = {
    "HF_HUB_OFFLINE": "1",  # models are resolved before; a name that is no folder must not be fetched
    "TRANSFORMERS_OFFLINE": "1",
    "PYTHONSAFEPATH": "1",  # nothing is imported from the working folder
    "NO_COLOR": "1",
}
"""What engines that are Python packages get in addition."""
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
    names = {number.value: number.name for number in signal.Signals}
    return f"status {status}" if status >= 0 else f"signal {names.get(-status, -status)}"


class EngineProcess:
    """A running engine; `pid` is its process id and that of its process group."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], log_path: Path, access: Access | None = None
    ) -> None:
        """Start `argv`; the folder of `access` goes with it, however it ends. Raises EngineError, StorageError."""
        self.log_path, self.access = log_path, access
        self._status: int | None = None
        self._ended = False
        self._unread = b""
        self._waiting = threading.RLock()
        try:
            self.pid = self._start(argv, env)
        except BaseException:
            if access is not None:
                shutil.rmtree(access.folder, ignore_errors=True)
            raise

    def _start(self, argv: Sequence[str], env: Mapping[str, str]) -> int:
        try:
            self.log_path.parent.mkdir(parents=True, exist_ok=True)
            log = os.fdopen(open_unlinked(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb")
        except OSError as error:
            raise cannot_write(error, self.log_path) from error
        scratch = "" if self.access is None else str(self.access.folder)
        with log:
            # A process group of its own keeps the terminal's Ctrl-C away: benchctl decides when an engine stops.
            # Not a session of its own: Linux schedules sessions against each other (autogroup), and on a busy
            # machine the client then sees the engine's first tokens 20 ms late.
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), scratch, *argv],
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
        """SIGTERM, a wait, SIGINT where `interrupt_s` is not 0, SIGKILL to the group; return the exit status."""
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


def refused_variables(added: Mapping[str, str], refused: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Return a sentence for every variable that `engine.env` may not set; `own`: an engine's, by their beginning."""
    problems = []
    for name in added:
        reason = next((refused[start] for start in refused if name.startswith(start)), None)
        if reason is not None:
            problems.append(f"{name} may not be set: {reason}.")
        elif name.startswith("LLAMA_ARG_"):
            flag = f"--{name.removeprefix('LLAMA_ARG_').lower().replace('_', '-')}"
            use = f"write {flag} in engine.args, or its key of the recipe (context, threads, models, speculation)"
            problems.append(f"{name} sets a flag that the recipe does not show; {use}.")
        elif _SECRET.search(name):
            problems.append(f"{name} looks like a secret; a recipe is recorded as it is, and must not hold one.")
        elif name in {"XDG_CONFIG_HOME", "AIP_MODE", "AIP_HTTP_PORT"}:
            problems.append(f"{name} would load settings that benchctl does not see.")
    return problems


def engine_environment(caller: Mapping[str, str], added: Mapping[str, str]) -> dict[str, str]:
    """Return the whole environment of an engine: what is kept of the caller's, benchctl's settings, the recipe's."""
    inherited = {name: value for name, value in caller.items() if name in _INHERITED.split() or name.startswith("LC_")}
    return {**inherited, **OWN_SETTINGS, **added}


_LONGEST_PATH = 103
"""Bytes of a socket's path: at most 104 with the NUL at the end on macOS, 108 on Linux."""
_LONGEST_NAME = 40
"""Bytes of a name that an engine puts into the folder: vLLM names the sockets of its processes by UUIDs."""
_SOCKET = "engine.sock"
_PREFIX = "benchctl-engine-"
LEFT_FOR_S = 300.0
"""How old a folder is, at least, before it may count as left behind: its supervisor may not have locked it yet."""


@dataclass(frozen=True)
class Access:
    """How a process is reached. Neither the socket nor the key is written down anywhere."""

    folder: Path
    """A folder for this process that only this user can enter; it is removed with the process."""
    socket_path: Path | None
    """Where the engine listens; `None`: on a port of loopback."""
    key: str
    """Its API key. It is passed in the environment or in a file: others can read command lines."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that every request needs."""
        return {"Authorization": f"Bearer {self.key}"}

    def url(self, port: int | None) -> str:
        """Return the address below which requests are made; the port means nothing to a socket."""
        return "http://localhost" if self.socket_path is not None else f"http://127.0.0.1:{port}"


def make_access(*, by_socket: bool) -> Access:
    """Return how to reach a process, `by_socket` where it can listen on a Unix socket. Raises StorageError."""
    _remove_leftovers()
    try:
        folder = _folder()
    except OSError as error:
        message = f"No folder can be made for the engine's socket: {error.strerror}."
        raise StorageError(message, where=tempfile.gettempdir()) from error
    path = folder / _SOCKET
    # Letters and digits alone: a key that begins with a dash would be taken for an option.
    return Access(folder, path if by_socket and _takes_sockets(path) else None, secrets.token_hex(24))


def _folder() -> Path:
    """Make a folder that only this user can enter, in the short place where the caller's is too long for sockets."""
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    if len(os.fsencode(folder)) + 1 + _LONGEST_NAME > _LONGEST_PATH and Path("/tmp").is_dir():  # noqa: S108
        shutil.rmtree(folder)
        folder = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
    return Path(folder)


def _remove_leftovers() -> None:
    """Delete this user's folders that no supervisor holds any more, as a killed supervisor leaves them."""
    for parent in {tempfile.gettempdir(), "/tmp"}:  # noqa: S108
        for folder in Path(parent).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    status = os.fstat(descriptor)
                    if status.st_uid == os.getuid() and time.time() - status.st_mtime > LEFT_FOR_S:
                        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(descriptor)


def _takes_sockets(path: Path) -> bool:
    """Whether this system, and the file system there, takes a Unix socket at `path`."""
    if len(os.fsencode(path)) > _LONGEST_PATH or not hasattr(socket, "AF_UNIX") or "," in str(path):
        return False  # llama-server takes a comma for the end of an address
    try:
        with socket.socket(socket.AF_UNIX) as tried:
            tried.bind(str(path))
        path.unlink()
    except OSError:
        return False
    return True
