"""The runs that no GPU has made yet: the script that makes them, with a benchctl that only prints its words."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "on_a_gpu.sh"


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """The file of what the script starts, a line a command."""
    program = tmp_path / "bin" / "benchctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/started\n[ "$1" != tune ] || exit ${{TUNE-0}}\n')
    program.chmod(0o755)
    return tmp_path / "started"


def script(started: Path, *words: str, **settings: str) -> tuple[int, str]:
    """Return its exit status and all that it printed."""
    env = {"PATH": f"{started.parent}/bin:/usr/bin:/bin", "OUT": str(started.parent / "out")} | settings
    done = subprocess.run(["bash", SCRIPT, *words], env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_step_that_ended_is_not_made_again_and_one_that_failed_is(started: Path) -> None:
    assert script(started, "tune", "widths", TUNE="3")[0] == 1
    assert started.read_text().count("widths") == 3, "the steps after it are made all the same"
    assert script(started, "tune", "widths")[0] == 0
    words = [line.split()[0] for line in started.read_text().splitlines()]
    assert words == ["tune", "run", "explain", "report", "tune"]


def test_what_no_time_was_left_for_is_named_with_a_status_of_its_own(started: Path) -> None:
    code, printed = script(started, "tune", "align-8", MINUTES="0")
    assert (code, printed.strip().rpartition(": ")[2]) == (124, "tune align-8")
    assert not started.exists()
    for words, settings in ((("tune", "--dry-run"), {}), (("tune", "tunes"), {}), ((), {"MINUTES": "soon"})):
        assert script(started, *words, **settings)[0] == 2
        assert not started.exists(), "nothing is measured before the words are understood"
    assert script(started, "tune", MINUTES="08")[0] == 0
    assert started.exists(), "eight minutes, no octal number"


def test_the_findings_list_what_it_would_run(started: Path) -> None:
    code, printed = script(started, "--dry-run")
    assert code == 0 and not (started.parent / "out").exists()
    steps = re.findall(r"^== ([\w-]+), ", printed, re.MULTILINE)
    part = (ROOT / "docs" / "findings.md").read_text("utf-8").partition("### Not run on a GPU")[2].partition("\n## ")[0]
    listed = re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (.*?) \|", part, re.MULTILINE)))
    assert {*listed, "machine"} == {*steps, "install"}, "`machine` only describes it"
    runs = [line for line in started.read_text().splitlines() if line.startswith(("run ", "tune "))]
    assert len(runs) == len(started.read_text().splitlines()), "nothing else is started"
    assert all(line.endswith("--dry-run") for line in runs)
