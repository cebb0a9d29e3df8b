"""Files of models and builds: hashed once, there only when they are whole, and what a source resolves to."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchctl.paths import cache_folder

SUFFIX = ".part"
ORIGIN = "derived-from.json"
"""In a derived Hugging Face folder: the source's SHA-256 and each file's size in bytes. It is no part of the model."""


def made_once(target: Path, make: Callable[[Path], None], notice: Notice | None = None) -> Path:
    """Return `target`, which `make` writes to the path it is given unless it is there. Raises OSError as `make`."""
    if target.is_file():
        return target
    with unfinished(target, notice) as part:
        remove_leftovers(target.parent)
        if not target.is_file():  # made by the process that we waited for
            make(part)
            finish(part, target)
    return target


@contextmanager
def unfinished(target: Path, notice: Notice | None = None) -> Iterator[Path]:
    """Yield the path beside `target` to write it to, locked; `finish` moves it there, and otherwise it goes away.

    Waits while another process makes the same file: check whether `target` is there now before making it. A killed
    process leaves its part behind, unlocked; the next that makes the same file begins it anew. Raises OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{SUFFIX}")
    lock = _locked(part, notice)
    try:
        yield part
    finally:
        if _same(part, lock):
            part.unlink()
        with suppress(OSError):  # as `folder_lock` does: a process that is just starting may hold a copy
            fcntl.flock(lock, fcntl.LOCK_UN)
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
            return lock  # a file system without locks: the last to finish wins, and each writes a whole file
        if _same(part, lock):
            return lock
        os.close(lock)  # it was finished, or removed, while we waited


def _same(part: Path, lock: int) -> bool:
    """Whether the file of that name is still the locked file."""
    try:
        return part.stat().st_ino == os.fstat(lock).st_ino
    except FileNotFoundError:
        return False


Notice = Callable[[str], None]
"""Called with a few words on what takes long."""

_REPORTED_FROM_BYTES = 1 << 28


def file_sha256(path: Path, notice: Notice | None = None) -> str:
    """Return the SHA-256 (64 hex digits) of a file, from the cache while path, size, times and inode are the same.

    The time of change of the inode is one of them, since a writer can set back the other time.
    """
    state, resolved = path.stat(), str(path.resolve()).encode("utf-8", "surrogateescape")
    cached = cache_folder() / "hashes" / hashlib.sha256(resolved).hexdigest()
    unchanged = f"{state.st_size} {state.st_mtime_ns} {state.st_ctime_ns} {state.st_ino} "
    with suppress(OSError, UnicodeDecodeError):
        if (record := cached.read_text("ascii")).startswith(unchanged):
            return record.removeprefix(unchanged)
    if notice and state.st_size >= _REPORTED_FROM_BYTES:
        notice(f"Hashing {path.name} ({state.st_size / 1e9:.1f} GB)")
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    with suppress(OSError), unfinished(cached) as part:  # a cache that cannot be written is no error
        part.write_text(f"{unchanged}{digest}", "ascii")
        finish(part, cached)
    return digest


@dataclass(frozen=True)
class ModelFile:
    """A file of a model and what identifies it."""

    path: Path
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True)
class ResolvedModel:
    """A model that an engine can be given: its source as written, and its files (all shards in order).

    A served model has no files here; its `source` is `served:NAME`.
    """

    source: str
    files: tuple[ModelFile, ...]
    unquantized: Path | None = None
    """What it was quantized from for this run, the file or the first shard; None where it was taken as it is."""
    unmade: str | None = None
    """The type that a run would quantize `files` to first, where that was not to be done now; None where it is done."""

    folder: Path | None = None
    """The folder of a Hugging Face model. `files` are then all files in it."""
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What its headers or its configuration say, read once, when it is resolved; as the manifest has them."""
    cache_bytes: int = field(default=0, compare=False)
    """Bytes of a token in the KV cache, in 16 bits; 0 where that is not known."""
    state_bytes: int = field(default=0, compare=False)
    """Bytes of a sequence's recurrent state."""

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(file.size for file in self.files)

    @property
    def path(self) -> Path:
        """What the engine is pointed at: the folder, the file, or the first shard."""
        return self.folder or self.files[0].path


@dataclass(frozen=True)
class ResolvedPair:
    """The target, and the draft where the recipe names it."""

    target: ResolvedModel
    draft: ResolvedModel | None
