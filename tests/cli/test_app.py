"""The program as a whole: what becomes of its exit code when nobody can be told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIST = [sys.executable, "-m", "benchctl", "recipes", "list"]


def test_a_reader_that_is_gone_is_no_verdict() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(LIST, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, ""), "1 would say: not lossless"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("words", [LIST, [*LIST, "--json"], [sys.executable, "-m", "benchctl", "--help"]])
def test_output_to_a_full_disk_is_one_message(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "error: the output: It cannot be written or read: No space left on device.\n"
