"""Calling benchctl as a user does: a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_OF_TERMINALS = {"COLUMNS", "FORCE_COLOR"}


def benchctl(
    *words: object, cwd: Path | None = None, timeout: float = 240.0, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run `benchctl WORDS…` to its end; `env` is added to an environment without a terminal's settings."""
    return subprocess.run(
        [sys.executable, "-m", "benchctl", *map(str, words)],
        cwd=cwd,
        env={key: value for key, value in os.environ.items() if key not in _OF_TERMINALS} | env,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout,
        check=False,
    )
