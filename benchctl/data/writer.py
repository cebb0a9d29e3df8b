"""Writing a run: a single writer at a time, records appended whole, the manifest replaced atomically."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from benchctl.data.cell import Cell
from benchctl.data.chain import Chain, chain_seed, sealed
from benchctl.data.integrity import DIGESTS, Digests, ScoreDigest, anchor, read_digests
from benchctl.data.manifest import Manifest
from benchctl.data.record import Record
from benchctl.data.store import MANIFEST, RECORDS
from benchctl.errors import StorageError
from benchctl.writing import cannot_write, open_unlinked, refuse_links, write_whole

LOGS = "logs"
LOCK = ".lock"


@contextlib.contextmanager
def folder_lock(folder: Path, what: str = "writing this run", fix: str | None = None) -> Iterator[None]:
    """Lock a folder as its only writer; it is made where it does not exist.

    The lock is the operating system's, so it goes with the process even when that is killed. Raises StorageError when
    the folder cannot be written, contains links, or another benchctl is `what` there.
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
                f"Another benchctl (process {owner or 'unknown'}) is {what}.",
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
        os.close(lock)


class FolderWriter(ABC):
    """The only writer of a folder of measurements, for as long as the `with` block lasts."""

    lines: ClassVar[str]
    """Name of the file of a JSON line a request."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._open = contextlib.ExitStack()
        self._lines = -1
        self._chain: Chain | None = None

    @abstractmethod
    def save(self) -> None:
        """Replace the file that holds the manifest, atomically."""

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
                if self.manifest.digests:
                    seed = chain_seed(self.manifest.run, self.manifest.recipe_sha256)
                    self._chain = Chain.of_file(self._lines, seed)
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
        """Append a JSON object as a chained line of ASCII, in a single write.

        On a full disk what was written of it is taken back.
        """
        line = text.encode("ascii") + b"\n" if self._chain is None else self._chain.line(text)
        end = os.fstat(self._lines).st_size
        try:
            if os.write(self._lines, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._lines, end)
            raise cannot_write(error, self.folder / self.lines) from None
        if self._chain is not None:
            self._chain.add(line)

    def add_cell(self, cell: Cell) -> None:
        """Add a finished, failed or interrupted cell to the manifest, its lines being safe on disk before."""
        with contextlib.suppress(OSError):  # a file system without fsync still has the data
            os.fsync(self._lines)
        self.manifest.cells.append(cell.model_copy(update={"mark": self._chain and self._chain.mark}))
        self.save()

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

    lines = RECORDS

    def append(self, record: Record) -> None:
        """Append a record."""
        self.append_line(record.to_line())

    def save(self) -> None:
        """Replace the manifest."""
        write_whole(self.folder / MANIFEST, sealed(self.manifest.model_dump_json(by_alias=True, indent=1)) + "\n")


def write_scores(folder: Path, name: str, text: str, manifest: Manifest) -> None:
    """Replace a file of scores of a run, after its digest (`benchctl.data.integrity`). Raises StorageError."""
    if manifest.digests:
        marks = [cell.mark for cell in manifest.cells if cell.mark is not None]
        own = ScoreDigest(
            sha256=hashlib.sha256((text + "\n").encode("utf-8")).hexdigest(),
            mark=max(marks, key=lambda mark: mark.lines, default=None),
        )
        with _alone_in(folder):
            known = read_digests(folder, manifest) or Digests()
            known.files[name] = own
            write_whole(
                folder / DIGESTS, sealed(known.model_dump_json(by_alias=True, indent=1), anchor(manifest)) + "\n"
            )
    write_whole(folder / name, text + "\n")


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process changes the digests there. Raises StorageError."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise cannot_write(error, folder) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
