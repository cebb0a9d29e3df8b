"""Writing a run: a single writer at a time, records appended whole, the manifest replaced atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from benchctl.data.cell import Cell
from benchctl.data.digests import FileDigest, is_sealed, sealed
from benchctl.data.manifest import FurtherPrompts, Manifest
from benchctl.data.record import Record
from benchctl.data.store import FURTHER, MANIFEST, RECORDS
from benchctl.errors import StorageError
from benchctl.writing import cannot_write, open_unlinked, refuse_links, write_whole

LOGS = "logs"
LOCK = ".lock"


@contextlib.contextmanager
def folder_lock(folder: Path, activity: str = "writing this run", fix: str | None = None) -> Iterator[None]:
    """Lock a folder as its only writer; it is made where it does not exist.

    The lock is the operating system's, so it goes with the process even when that is killed. Raises StorageError when
    the folder cannot be written, contains links, or another benchctl is `activity` there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_links(folder)
        lock = open_unlinked(folder / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise cannot_write(error, folder) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
            raise StorageError(
                f"Another benchctl (process {owner or 'unknown'}) is {activity}.",
                where=str(folder),
                fix=fix or "Wait until it has ended.",
            ) from None
        try:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode("ascii"), 0)
        except OSError as error:
            raise cannot_write(error, folder / LOCK) from None
        yield
    finally:
        # Not by closing alone: a process that a thread is just starting holds a copy of the descriptor until its exec.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


class FolderWriter(ABC):
    """The only writer of a folder of measurements, for as long as the `with` block lasts."""

    document: ClassVar[str]
    """Name of the file that holds the manifest."""
    lines: ClassVar[str]
    """Name of the file of a JSON line a request."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._open = contextlib.ExitStack()
        self._lines = -1
        self._sha256 = hashlib.sha256()
        """The SHA-256 of all lines so far."""

    def save(self) -> None:
        """Replace the file that holds the manifest, with the SHA-256 of the lines so far."""
        size = os.fstat(self._lines).st_size
        self.manifest.files[self.lines] = FileDigest(bytes=size, sha256=self._sha256.hexdigest())
        write_whole(self.folder / self.document, sealed(self._text()))

    @abstractmethod
    def _text(self) -> str:
        """Return the document that holds the manifest, as JSON indented by one space."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            opened.enter_context(
                folder_lock(self.folder, fix="Wait until it has ended, or start a new run without --resume.")
            )
            try:
                (self.folder / LOGS).mkdir(exist_ok=True)
                self._lines = open_unlinked(self.folder / self.lines, os.O_RDWR | os.O_CREAT | os.O_APPEND)
                opened.callback(os.close, self._lines)
                self._drop_half_line()
                self._hash_lines()
                self.save()
            except OSError as error:
                raise cannot_write(error, self.folder) from None
            self._open = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def append_line(self, text: str) -> None:
        """Append a JSON object as a line of ASCII, in one write. A line that does not fit the disk is removed again."""
        line = text.encode("ascii") + b"\n"
        end = os.fstat(self._lines).st_size
        try:
            if os.write(self._lines, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lines, end)
            raise cannot_write(error, self.folder / self.lines) from None
        self._sha256.update(line)

    def add_cell(self, cell: Cell) -> None:
        """Add a finished, failed or interrupted cell to the manifest, its lines being safe on disk before."""
        with contextlib.suppress(OSError):  # a file system without fsync still has the data
            os.fsync(self._lines)
        self.cells.append(cell)
        self.save()

    @property
    def cells(self) -> list[Cell]:
        """The cells of the lines, in the manifest."""
        return self.manifest.cells

    def _hash_lines(self) -> None:
        start = 0
        while block := os.pread(self._lines, 1 << 20, start):
            self._sha256.update(block)
            start += len(block)

    def _drop_half_line(self) -> None:
        """Cut a last line that a killed writer or a full disk left unfinished: it was never a record."""
        size = os.fstat(self._lines).st_size
        keep = size
        while keep and os.pread(self._lines, 1, keep - 1) != b"\n":
            start = max(0, keep - 65536)
            keep = start + os.pread(self._lines, keep - start, start).rfind(b"\n") + 1
        if keep != size:
            os.ftruncate(self._lines, keep)


class RunWriter(FolderWriter):
    """The only writer of a run's folder."""

    document, lines = MANIFEST, RECORDS

    def append(self, record: Record) -> None:
        """Append a record."""
        self.append_line(record.to_line())

    def _text(self) -> str:
        return self.manifest.model_dump_json(by_alias=True, indent=1)


class FurtherWriter(RunWriter):
    """The only writer of a run's folder, which adds what was asked after the run."""

    lines = FURTHER

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.further = manifest.further = manifest.further or FurtherPrompts()
        self.further.asking = True

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.further.asking = False
            self.save()
        finally:
            super().__exit__(kind, value, trace)

    @property
    def cells(self) -> list[Cell]:
        """The cells of what was asked after the run."""
        return self.further.cells


def write_scores(document: Path, name: str, text: str) -> None:
    """Replace a file of scores, after its SHA-256 in the document that holds the manifest. Raises StorageError.

    The caller holds the folder's lock.
    """
    content = f"{text}\n".encode()
    try:
        stored = document.read_bytes()
    except OSError as error:
        raise StorageError(f"It cannot be read: {error.strerror}.", where=str(document)) from None
    if not is_sealed(stored):
        raise StorageError(
            "This file was changed after it was written, so no scores are added.",
            where=str(document),
            fix="Restore it from a copy, or run the recipe again.",
        )
    parsed = json.loads(stored)
    del parsed["digest"]
    files = parsed.get("manifest", parsed)["files"]
    files[name] = FileDigest(bytes=len(content), sha256=hashlib.sha256(content).hexdigest()).model_dump()
    write_whole(document, sealed(json.dumps(parsed, indent=1, ensure_ascii=False)))
    write_whole(document.with_name(name), content)
