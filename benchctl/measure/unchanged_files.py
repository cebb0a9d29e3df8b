"""Models and binaries as they were when they were hashed: a run whose files change is two experiments."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchctl.errors import EngineError


class SameFiles:
    """Remembers files by size and time: cheap, where hashing them again would warm the page cache."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._stamps = {file: _stamp(file) for file in files}

    def check(self) -> None:
        """Raise EngineError (`launch`) when one of them is no longer what it was."""
        changed = [str(file) for file, stamp in self._stamps.items() if _stamp(file) != stamp]
        if changed:
            raise EngineError(
                f"Changed since the run began: {', '.join(changed)}.",
                kind="launch",
                fix="Start a new run, with files that stay as they are.",
            )


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return size and time of a file, `None` when it is gone."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns
