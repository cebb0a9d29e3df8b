"""What the system itself tells: its small files, and what its programs print."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path("/")


def read(path: Path) -> str:
    """Return the text of a small system file, stripped; empty when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def answer(*argv: str) -> str | None:
    """Return what a system program prints, or `None` when it is not there, fails, or takes over ten seconds."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
