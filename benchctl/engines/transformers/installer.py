"""`benchctl engines install transformers`: a Python environment with torch and transformers."""

from __future__ import annotations

from pathlib import Path

from benchctl.engines.common.python_environment import PythonEnvironment
from benchctl.engines.installing import Installed, InstallOptions, Report
from benchctl.errors import UsageError
from benchctl.paths import cache_folder

VERSION = "5.19.0"
TORCH = "2.13.0"
"""As tested. Which build of it this is, for a CPU, for CUDA or for Metal, is what the package index has."""
_LOCK = Path(__file__).with_name("lock.txt")
_FREE_BYTES, _CUDA_BYTES = 2 * 10**9, 10 * 10**9
"""With a build of torch for the CPU or for Metal, and with one that brings CUDA's libraries, as the public index has
for Linux."""
_TRIAL = "import torch, transformers; print(torch.__version__, transformers.__version__)"


class TransformersInstaller:
    """Installs what the package index has for this machine; see `benchctl.engines.installing.Installer`."""

    title = "transformers"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment, where it is not there."""
        useless = options.named("version", "sdist", "jobs")
        if options.backend is not None:
            useless.append(f"--{options.backend}")
        if useless:
            raise UsageError(
                "transformers supports none of these",
                where=" ".join(useless),
                fix=f"It is {VERSION} with torch {TORCH}, as tested, built for what the package index has. For another "
                "build install them yourself and name their Python: engine.binary or BENCHCTL_TRANSFORMERS.",
            )
        python = install(report, force=options.force)
        return Installed(
            heading=f"transformers {VERSION} with torch {TORCH}",
            lines=(str(python),),
            facts={"program": str(python), "version": VERSION, "torch": TORCH},
        )


def environment_folder() -> Path:
    """Return where the environment lies or will lie."""
    return cache_folder() / "engines" / "transformers" / f"{VERSION}-torch-{TORCH}"


def installed_python() -> Path | None:
    """Return the Python of a whole installation; `None` when there is none."""
    return _environment().installed()


def install(report: Report, *, force: bool = False) -> Path:
    """Return the Python of benchctl's own environment, made where it is not there. Raises BenchctlError.

    `force`: make the environment anew.
    """
    environment = _environment()
    python = environment.program_path
    with environment.made(report, force=force) as making:
        if making is not None:
            printed = making.run("trying the result", str(python), "-c", _TRIAL)
            versions = next((line for line in reversed(printed) if line.strip()), "")
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
        cuda_bytes=_CUDA_BYTES,
        fix="Install torch and transformers yourself and name their Python: engine.binary, BENCHCTL_TRANSFORMERS.",
    )
