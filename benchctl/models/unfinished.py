"""A file while it is written: it appears only when it is whole, and two processes that make the same one take turns."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchctl.models.hashes import Notice

SUFFIX = ".part"


def made_once(target: Path, make: Callable[[Path], None], notice: Notice | None = None) -> Path:
    """Return `target`, which `make` writes to the path it is given unless the file is there already.

    What killed processes left beside it goes away first. Raises OSError, and what `make` raises.
    """
    if target.is_file():
        return target
    with unfinished(target, notice) as part:
        remove_leftovers(target.parent)
        if not target.is_file():  # made by the one that we waited for
            make(part)
            finish(part, target)
    return target


@contextmanager
def unfinished(target: Path, notice: Notice | None = None) -> Iterator[Path]:
    """Yield the path beside `target` to write it to, locked; `finish` moves it there, and otherwise it goes away.

    Waits while another process makes the same file: check whether `target` is there now before making it. A killed
    process leaves its part behind, unlocked; the next one that makes the same file begins it anew. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{SUFFIX}")
    lock = _locked(part, notice)
    try:
        yield part
    finally:
        if _same(part, lock):
            part.unlink()
        os.close(lock)


def finish(part: Path, target: Path) -> None:
    """Move a part that is whole to where it belongs, its content on the disk before its name. Raises OSError."""
    with part.open("rb") as stream, suppress(OSError):  # a file system without fsync still has the data
        os.fsync(stream.fileno())
    part.replace(target)


def remove_leftovers(folder: Path) -> None:
    """Delete the parts in `folder` that no process is writing any more: what killed processes left behind."""
    for part in folder.glob(f".*{SUFFIX}"):
        with suppress(OSError), part.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            part.unlink()


def _locked(part: Path, notice: Notice | None) -> int:
    """Return a descriptor that holds the lock of `part`; the system drops it when this process ends."""
    while True:
        lock = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)  # a link may lead to another's file
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if notice:
                notice(f"Another benchctl is making {part.name.removesuffix(SUFFIX)[1:]}; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            return lock  # a file system without locks: the last one to finish wins, and each writes a whole file
        if _same(part, lock):
            return lock
        os.close(lock)  # it was finished, or removed, while we waited


def _same(part: Path, lock: int) -> bool:
    """Whether the file of that name is still the locked one."""
    try:
        return part.stat().st_ino == os.fstat(lock).st_ino
    except FileNotFoundError:
        return False
