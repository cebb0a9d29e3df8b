"""How a process of an engine is reached, and kept from everybody else: a Unix socket where the engine can listen on
one, and a key.

Other users of the machine, and web pages open on it, can connect to every port of loopback. They cannot reach a socket
in a folder of this user's alone; on a port, the engine refuses every request without the key.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchctl.errors import StorageError

_LONGEST_PATH = 103
"""Bytes of a socket's path: at most 104 with the NUL at the end on macOS, 108 on Linux."""
_LONGEST_NAME = 40
"""Bytes of what engines put into the folder: the sockets of vLLM's processes are called by UUIDs."""
_SOCKET = "engine.sock"
_PREFIX = "benchctl-engine-"
LEFT_FOR_S = 300.0
"""How old a folder is, at least, before it may count as left behind: its supervisor may not have locked it yet."""


@dataclass(frozen=True)
class Access:
    """Of one process. Neither the socket nor the key is written down anywhere."""

    folder: Path
    """Made for this process, and for this user alone; it goes with the process."""
    socket_path: Path | None
    """Where the engine listens; `None`: on a port of loopback."""
    key: str
    """Its API key. It is passed in the environment or in a file: others can read command lines."""

    @property
    def headers(self) -> Mapping[str, str]:
        """What every request needs."""
        return {"Authorization": f"Bearer {self.key}"}

    def url(self, port: int | None) -> str:
        """Return the address below which requests are made; the port means nothing to a socket."""
        return "http://localhost" if self.socket_path is not None else f"http://127.0.0.1:{port}"


def make_access(*, by_socket: bool) -> Access:
    """Return how to reach a process that is about to be launched; `by_socket`: whether it can listen on a Unix socket.

    Raises StorageError where no folder can be made.
    """
    _remove_leftovers()
    try:
        folder = _folder()
    except OSError as error:
        what = f"No folder can be made for the engine's socket: {error.strerror}."
        raise StorageError(what, where=tempfile.gettempdir()) from error
    path = folder / _SOCKET
    # Letters and digits alone: a key that begins with a dash would be taken for an option.
    return Access(folder, path if by_socket and _takes_sockets(path) else None, secrets.token_hex(24))


def _folder() -> Path:
    """Make a folder that only this user can enter, in the short place where the caller's is too long for sockets."""
    made = tempfile.mkdtemp(prefix=_PREFIX)
    if len(os.fsencode(made)) + 1 + _LONGEST_NAME > _LONGEST_PATH and Path("/tmp").is_dir():  # noqa: S108
        shutil.rmtree(made)
        made = tempfile.mkdtemp(prefix=_PREFIX, dir="/tmp")
    return Path(made)


def _remove_leftovers() -> None:
    """Delete this user's folders that no supervisor holds any more, as one leaves it that was killed."""
    for parent in {tempfile.gettempdir(), "/tmp"}:  # noqa: S108
        for folder in Path(parent).glob(f"{_PREFIX}*"):
            with suppress(OSError):
                held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                try:
                    status = os.fstat(held)
                    if status.st_uid == os.getuid() and time.time() - status.st_mtime > LEFT_FOR_S:
                        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
                finally:
                    os.close(held)


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
