"""The summaries of all runs below a folder, at any depth."""

from __future__ import annotations

import os
from pathlib import Path

from benchctl.analysis.comparison.summary import RunSummary, summaries_of
from benchctl.data.store import MANIFEST
from benchctl.errors import BenchctlError, UsageError
from benchctl.lossless.analysed import judge


def run_folders(results: Path) -> list[Path]:
    """Return every run folder below a folder, itself included; hidden folders and what lies in runs are left out.

    Raises UsageError where there is no such folder.
    """
    if not results.is_dir():
        raise UsageError("There is no such folder.", where=str(results), fix="Name a folder of runs, such as results/.")
    found = []
    for folder, inner, files in os.walk(results):
        if MANIFEST in files:
            found.append(Path(folder))
            inner.clear()
        inner[:] = sorted(name for name in inner if not name.startswith("."))
    return found


def read_summaries(results: Path) -> tuple[list[RunSummary], dict[Path, BenchctlError]]:
    """Return the summaries of all runs below a folder, and why others cannot be read."""
    unreadable: dict[Path, BenchctlError] = {}
    return summaries_of(run_folders(results), judge, unreadable), unreadable
