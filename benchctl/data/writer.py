"""Writing a run: one writer at a time, records appended whole, the manifest replaced atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path
from types import TracebackType

from benchctl.data.manifest import Cell, Manifest
from benchctl.data.record import Record
from benchctl.data.store import MANIFEST, RECORDS
from benchctl.errors import StorageError

LOGS = "logs"
LOCK = ".lock"


class RunWriter:
    """The only writer of a run folder, for as long as the `with` block lasts.

    The lock is the operating system's, so it goes with the process even when that is killed.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._lock = -1
        self._records = -1

    def __enter__(self) -> RunWriter:
        try:
            (self.folder / LOGS).mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            self._take_lock()
            self._records = os.open(self.folder / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._drop_half_line()
            self.save()
        except OSError as error:
            self._close()
            raise cannot_write(error, self.folder) from None
        except StorageError:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def append(self, record: Record) -> None:
        """Append one record in a single write; on a full disk what was written of it is taken back."""
        line = record.to_line().encode("ascii") + b"\n"
        end = os.fstat(self._records).st_size
        try:
            if os.write(self._records, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._records, end)
            raise cannot_write(error, self.folder / RECORDS) from None

    def add_cell(self, cell: Cell) -> None:
        """Add a finished, failed or interrupted cell to the manifest, its records being safe on disk before."""
        with contextlib.suppress(OSError):  # a file system without fsync still has the data
            os.fsync(self._records)
        self.manifest.cells.append(cell)
        self.save()

    def save(self) -> None:
        """Replace the manifest atomically."""
        write_whole(self.folder / MANIFEST, self.manifest.model_dump_json(by_alias=True, indent=1))

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip()
            raise StorageError(
                f"Another benchctl (process {owner or 'unknown'}) is writing this run.",
                where=str(self.folder),
                fix="Wait until it has ended, or start a new run without --resume.",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode("ascii"), 0)

    def _drop_half_line(self) -> None:
        """Cut a last line that a killed writer or a full disk left unfinished: it was never a record."""
        size = os.fstat(self._records).st_size
        keep = size
        while keep and os.pread(self._records, 1, keep - 1) != b"\n":
            start = max(0, keep - 65536)
            keep = start + os.pread(self._records, keep - start, start).rfind(b"\n") + 1
        if keep != size:
            os.ftruncate(self._records, keep)

    def _close(self) -> None:
        for descriptor in (self._records, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._records = self._lock = -1


def write_whole(file: Path, text: str) -> None:
    """Write a file beside its place, a line end after `text`, then put it there. Raises StorageError."""
    temporary = file.with_name(f".{file.name}.new")
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        temporary.replace(file)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise cannot_write(error, file) from None


def cannot_write(error: OSError, where: Path) -> StorageError:
    """Return the error for a failed write, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            "The disk is full.", where=str(where), fix="Free some space, then finish this run with --resume."
        )
    reason = error.strerror or str(error)
    return StorageError(
        f"benchctl cannot write here: {reason}.",
        where=str(where),
        fix="Make it writable, or choose another results folder with --out.",
    )
