"""Installing torch and transformers: how much disk is asked for depends on the build that pip's index has."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from benchctl.engines.transformers import engine as find
from benchctl.errors import StorageError

PIP = """#!{python}
import json, pathlib, sys
words = sys.argv[1:]
log = pathlib.Path({log!r})
log.open("a").write(" ".join(words) + "\\n")
if "--report" in words:
    names = log.with_name("packages").read_text().split()
    report = {{"install": [{{"metadata": {{"name": name}}}} for name in names]}}
    pathlib.Path(words[words.index("--report") + 1]).write_text(json.dumps(report))
elif "-c" in words:
    print("2.13.0+cpu 5.19.0")
"""
GB = 10**9


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment with a pip that notes what it is asked and knows the packages of the file beside the notes."""
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    python = find.environment().folder / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PIP.format(python=sys.executable, log=str(tmp_path / "asked")))
    python.chmod(0o755)
    return tmp_path / "asked"


def free(monkeypatch: pytest.MonkeyPatch, gigabytes: int) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(99 * GB, 0, gigabytes * GB))


def quiet(stage: str, done: int, total: int) -> None:
    """Show nothing."""


def test_a_build_for_the_cpu_needs_two_gigabytes(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.with_name("packages").write_text("torch sympy jinja2")
    free(monkeypatch, 3)
    assert find.environment().install(quiet) == find.environment().installed()
    text = calls.read_text()
    assert "--dry-run" in text
    assert text.index("--dry-run") < text.index("--progress-bar off torch==2.13.0")


def test_a_build_for_cuda_is_not_begun_where_it_does_not_fit(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls.with_name("packages").write_text("torch nvidia-cudnn-cu13 triton")
    free(monkeypatch, 3)
    with pytest.raises(StorageError, match="takes 10 GB of disk") as caught:
        find.environment().install(quiet)
    assert "have pip use" in caught.value.what
    assert "--progress-bar off torch" not in calls.read_text()
    free(monkeypatch, 30)
    assert find.environment().install(quiet).is_file()


def test_a_disk_too_small_for_either_is_reported_at_once(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 1)
    with pytest.raises(StorageError, match="2 GB of disk"):
        find.environment().install(quiet)
    assert not calls.exists()
