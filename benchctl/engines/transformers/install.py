"""Install torch and transformers in a Python environment of their own, once per user."""

from __future__ import annotations

from pathlib import Path

from benchctl.engines.common.python_environment import PythonEnvironment, Report
from benchctl.paths import cache_folder

VERSION = "5.19.0"
TORCH = "2.13.0"
"""As tested. Which build of it this is, for a CPU, for CUDA or for Metal, is what the package index has."""
_LOCK = Path(__file__).with_name("lock.txt")
_FREE_BYTES = 10 * 10**9
"""torch's build for CUDA, which the public index has for Linux, takes most of it; one for the CPU takes a tenth."""
_TRIAL = "import torch, transformers; print(torch.__version__, transformers.__version__)"


def environment_folder() -> Path:
    """Return where the environment lies or will lie."""
    return cache_folder() / "engines" / "transformers" / f"{VERSION}-torch-{TORCH}"


def installed_python() -> Path | None:
    """Return the Python of a whole installation; `None` when there is none."""
    python = environment_folder() / "bin" / "python"
    return python if _environment().is_whole() and python.is_file() else None


def install(report: Report, *, force: bool = False) -> Path:
    """Return the Python of benchctl's own environment, made where it is not there. Raises BenchctlError.

    `force`: make the environment anew.
    """
    environment = _environment()
    python = environment.folder / "bin" / "python"
    with environment.made(report, force=force or (environment.is_whole() and not python.is_file())) as making:
        if making is not None:
            told = making.run("trying the result", str(python), "-c", _TRIAL)
            versions = next((line for line in reversed(told) if line.strip()), "")
            making.finish({"version": VERSION, "version_output": versions})
    return python


def _environment() -> PythonEnvironment:
    return PythonEnvironment(
        engine="transformers",
        name="transformers",
        folder=environment_folder(),
        lock=_LOCK,
        torch=TORCH,
        free_bytes=_FREE_BYTES,
        fix="Install torch and transformers yourself and name their Python: engine.binary, BENCHCTL_TRANSFORMERS.",
    )
