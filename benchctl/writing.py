"""Writing files without following links: a link in another person's folder never leads a write to the user's files.

A file is written whole under a random name and then renamed, so that it is there as a whole or as it was before. A file
that grows (records, a log) is opened without following a link in its place.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from benchctl.errors import StorageError, UsageError


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file under a random name next to it, then put it in its place. Raises StorageError."""
    data = content.encode("utf-8") if isinstance(content, str) else content
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(8)}.new")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as stream:
            stream.write(data)
        temporary.replace(file)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot_write(error, file) from None


def refuse_overwriting(file: Path, force: bool) -> None:
    """Raise UsageError where a file or a link is in the way, unless `force` is given."""
    if os.path.lexists(file) and not force:
        raise UsageError("this file exists already", where=str(file), fix="Overwrite it with --force.")


def open_unlinked(file: str | Path, flags: int, mode: int = 0o644) -> int:
    """Open a file for writing and return its descriptor; as an `opener` of `open`, too.

    Raises OSError, also where a link lies there, or a file that has a second name elsewhere.
    """
    descriptor = os.open(file, flags & ~os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        if os.fstat(descriptor).st_nlink > 1:
            raise OSError(errno.EMLINK, "the file has another name, under which it would change", str(file))
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def refuse_links(folder: Path) -> None:
    """Raise StorageError where a folder of measurements holds anything but files and folders: a link, a pipe."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
                    raise StorageError(
                        "A folder of measurements must not contain links or pipes: they lead to files elsewhere.",
                        where=entry.path,
                        fix="Remove it, or put the file itself in its place.",
                    )
    except OSError as error:
        raise StorageError(f"The folder cannot be read: {error.strerror}.", where=str(folder)) from None


def cannot_write(error: OSError, where: Path) -> StorageError:
    """Return the error for a failed write, with what to do about it."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            "The disk is full.", where=str(where), fix="Free some space, then finish this run with --resume."
        )
    reason = "a link lies in its place" if error.errno == errno.ELOOP else error.strerror or str(error)
    return StorageError(
        f"benchctl cannot write here: {reason}.",
        where=str(where),
        fix="Make it writable, or choose another place with --output.",
    )
