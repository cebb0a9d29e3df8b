"""Ctrl-C at any moment of a start: one line at most, the documented exit code, and never a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MOMENTS = [0.05 * number for number in range(21)]
"""Seconds after the start: Python's own, then imports, reading the recipe, probing the engine, preparing models."""


@pytest.mark.slow
@pytest.mark.engine
def test_no_moment_of_a_start_gives_a_traceback(tmp_path: Path) -> None:
    for moment in MOMENTS:
        with subprocess.Popen(
            [sys.executable, "-m", "benchctl", "run", "quickstart", "--dry-run"],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            time.sleep(moment)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=120)
        pythons_own = "Traceback" in said and "benchctl" not in said  # before the first line of benchctl was read
        assert pythons_own or "Traceback" not in said, f"after {moment:.2f} s:\n{said}"
        assert pythons_own or process.returncode in {130, 0, -signal.SIGINT}, f"after {moment:.2f} s:\n{said}"
        assert pythons_own or len(said.splitlines()) <= 2, f"after {moment:.2f} s:\n{said}"
