"""Locks and folders in places that others can write to: no link is followed, and what killed processes left goes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from benchctl.data.writer import LOCK, folder_lock
from benchctl.engines.common import process as engine_process
from benchctl.engines.common.process import LEFT_FOR_S, EngineProcess, make_access
from benchctl.errors import StorageError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "t"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_link_in_place_of_a_runs_lock_is_not_followed(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("the user's own")
    run = tmp_path / "run"
    run.mkdir()
    (run / LOCK).symlink_to(own)
    with pytest.raises(StorageError), folder_lock(run):
        pass
    assert own.read_text() == "the user's own"


def old(folder: Path) -> None:
    long_ago = time.time() - 2 * LEFT_FOR_S
    os.utime(folder, (long_ago, long_ago))


def test_the_folder_of_a_killed_supervisor_goes_at_the_next_start(temporary: Path, tmp_path: Path) -> None:
    access = make_access(by_socket=True)
    engine = EngineProcess(
        [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"],
        dict(os.environ),
        tmp_path / "log",
        scratch=access.folder,
    )
    until = time.monotonic() + 20
    while "up" not in (tmp_path / "log").read_text() and time.monotonic() < until:
        time.sleep(0.05)
    old(access.folder)
    beside = make_access(by_socket=True)
    assert access.folder.is_dir(), "its engine runs"
    engine._supervisor.send_signal(signal.SIGKILL)
    engine._supervisor.wait(20)
    assert access.folder.is_dir(), "nobody was left to remove it"
    old(access.folder)
    after = make_access(by_socket=True)
    assert not access.folder.exists()
    assert beside.folder.is_dir() and after.folder.is_dir(), "just made, and not locked yet"


def test_only_folders_that_benchctl_made_for_engines_go(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    made = make_access(by_socket=False).folder
    prefix = made.name[:-8]
    link, other, held = temporary / f"{prefix}link", temporary / "benchctl-other", temporary / f"{prefix}held"
    link.symlink_to(elsewhere)
    for folder in (other, held):
        folder.mkdir()
        old(folder)
    old(made)
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)
    make_access(by_socket=False)
    os.close(lock)
    assert link.is_symlink() and elsewhere.is_dir() and other.is_dir() and held.is_dir()
    assert not made.exists()


def test_a_supervisor_starts_where_its_folder_cannot_be_locked(tmp_path: Path) -> None:
    supervisor = Path(engine_process.__file__).with_name("supervisor.py")
    command = [sys.executable, "-I", "-S", str(supervisor), str(tmp_path / "gone"), "/bin/true"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.read()  # its input stays open: the end of it is the end of benchctl, which ends engines
    assert "exit 0" in said
