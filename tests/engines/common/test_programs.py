"""The Python that llama.cpp's converter runs by, and programs that are run to their end."""

from __future__ import annotations

import importlib.util
import stat
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchctl.engines.common.programs import converting_python, program, run_to_end
from benchctl.errors import UsageError


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide torch from this Python, which has all else, and what is installed for this user."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name) or name)
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCHCTL_TRANSFORMERS", raising=False)


def test_this_python_where_it_has_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    assert converting_python() == Path(sys.executable)


@pytest.mark.usefixtures("without_torch")
def test_what_is_missing_is_named_with_the_installation_that_brings_it() -> None:
    with pytest.raises(UsageError, match="torch") as caught:
        converting_python()
    assert caught.value.fix is not None and "benchctl engines install transformers" in caught.value.fix
    assert caught.value.installs == "transformers"


@pytest.mark.usefixtures("without_torch")
def test_another_python_runs_the_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "run by the other one: $2"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("BENCHCTL_TRANSFORMERS", str(python))
    script, log = tmp_path / "convert.py", tmp_path / "log"
    script.write_text("")
    tool = program(script)
    assert tool.run([*tool.command, "folder"], log, None) == 0
    assert log.read_text() == "run by the other one: folder\n"


def test_a_program_whose_log_cannot_be_read_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened = Path.open

    def unreadable(path: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if path.name == "log.txt" and mode == "rb":
            raise OSError("too many open files")
        return opened(path, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", unreadable)
    mark = str(tmp_path)
    with pytest.raises(OSError, match="too many"):
        run_to_end([sys.executable, "-c", "import time; time.sleep(60)", mark], tmp_path / "log.txt")
    running = [process for process in psutil.process_iter(["cmdline"]) if mark in (process.info["cmdline"] or [])]
    assert not running
