"""SHA-256 of model files, remembered per user so that a file of gigabytes is read once and not at every run."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchctl.paths import cache_folder

Notice = Callable[[str], None]
"""Called with a few words on what takes long."""

_CHUNK = 1 << 22
_REPORTED_FROM_BYTES = 1 << 28
_STEP_PERCENT = 25


def file_sha256(path: Path, notice: Notice | None = None) -> str:
    """Return the SHA-256 (64 hex digits) of a file, from the cache while path, size, time and inode are the same."""
    state = path.stat()
    key = f"{path.resolve()}|{state.st_size}|{state.st_mtime_ns}|{state.st_ino}"
    known = _load()
    if key in known:
        return known[key]
    digest = _digest(path, state.st_size, notice)
    _remember(key, digest)
    return digest


def _digest(path: Path, size: int, notice: Notice | None) -> str:
    digest = hashlib.sha256()
    done = last_percent = 0
    if notice and size >= _REPORTED_FROM_BYTES:
        notice(f"Hashing {path.name} ({size / 1e9:.1f} GB)")
    with path.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            percent = 100 * done // max(size, 1)
            if notice and size >= 8 * _REPORTED_FROM_BYTES and last_percent + _STEP_PERCENT <= percent < 100:
                last_percent = percent
                notice(f"Hashing {path.name}: {percent} %")
    return digest.hexdigest()


def _load() -> dict[str, str]:
    try:
        found = json.loads((cache_folder() / "hashes.json").read_text("utf-8"))
    except (OSError, ValueError):  # absent or damaged: it is only a cache
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _remember(key: str, digest: str) -> None:
    """Add an entry and drop older ones of the same file; a cache that cannot be written is no error."""
    path = key.split("|", 1)[0]
    entries = {other: value for other, value in _load().items() if other.split("|", 1)[0] != path}
    entries[key] = digest
    folder = cache_folder()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix="hashes-", suffix=".json")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(entries, stream, indent=0)
            Path(name).replace(folder / "hashes.json")
        except OSError:
            Path(name).unlink(missing_ok=True)
