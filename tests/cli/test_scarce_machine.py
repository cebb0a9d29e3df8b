"""A run on a machine that runs short of files, memory or disk: one message and a documented code, and it can go on."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from benchctl.data.store import open_run
from tests.benchctl_process import benchctl as run
from tests.cli.test_run import measured, the_run, write_recipe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.engine,
    pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce these limits"),
]


def run_with(limit: int, size: int, *words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run benchctl, and everything that it starts, below a limit of the system."""
    return subprocess.run(
        [sys.executable, "-m", "benchctl", *map(str, words)],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(limit, (size, size)),
    )


def answered(results: Path) -> list[tuple[object, ...]]:
    """Every good answer in the file."""
    run_data = open_run(the_run(results))
    assert run_data.damaged == []
    return [record.key for record in run_data.records if record.phase == "measure" and record.error is None]


@pytest.mark.parametrize(
    ("limit", "size", "code", "said"),
    [
        (resource.RLIMIT_NOFILE, 6, 3, "Too many open files"),
        (resource.RLIMIT_NOFILE, 9, 4, "More files are open than this shell allows"),
        (resource.RLIMIT_AS, 200_000_000, 70, "There is not enough memory"),
        (resource.RLIMIT_FSIZE, 3_000, 4, "benchctl cannot write here: File too large"),
    ],
)
def test_what_runs_short_is_said_and_the_run_can_be_made_later(
    limit: int, size: int, code: int, said: str, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path)
    short = run_with(limit, size, "run", recipe, cwd=tmp_path)
    assert "Traceback" not in short.stderr
    if short.returncode:  # where a machine gets by with so little, it is no fault
        assert short.returncode == code, short.stderr
        assert said in short.stderr
    runs = list((tmp_path / "results").glob("*/*/manifest.json"))
    done = run("run", *(("--resume", runs[0].parent) if runs else (recipe,)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(measured(tmp_path / "results")) == 4
    data = open_run(sorted((tmp_path / "results").glob("*/*/manifest.json"))[-1].parent)
    assert data.manifest is not None
    assert data.manifest.status == "finished"


def test_a_disk_that_fills_up_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """Every file may have so much, which the records reach first: the engine's logs are the longest."""
    recipe = write_recipe(tmp_path, prompts=4, blocks=2)
    full = run_with(resource.RLIMIT_FSIZE, 30_000, "run", recipe, cwd=tmp_path)
    assert "Traceback" not in full.stderr
    assert full.returncode in {3, 4}, full.stderr
    before = answered(tmp_path / "results")
    done = run("run", "--resume", the_run(tmp_path / "results"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after = answered(tmp_path / "results")
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 16
