"""The tools that a build needs: CMake, ninja or make, a C++ compiler, and nvcc for CUDA."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass

from benchctl.engines.llama_cpp.builds import Backend
from benchctl.errors import EngineError

_NEEDED_CMAKE = (3, 14)
_BUILD_EXTRA = 'Install CMake 3.14 or newer and ninja, for instance with `pip install "benchctl[build]"`.'


@dataclass(frozen=True)
class Toolchain:
    """What was found; versions are as the tools print them, one line."""

    cmake: str
    cmake_version: str
    generator: str
    maker: str
    """Path of the program that runs the build: ninja or make."""
    compiler: str
    cxx: str
    """Path of the C++ compiler."""
    nvcc: str | None = None
    """Path of the CUDA compiler, for a CUDA build."""


def find_toolchain(backend: Backend) -> Toolchain:
    """Find every tool, this Python environment's first, then PATH's. Raises EngineError that says what is missing."""
    cmake = _find("cmake")
    cmake_version = _version(cmake) if cmake else None
    if cmake is None or cmake_version is None:
        raise EngineError("CMake is not installed", kind="install", fix=_BUILD_EXTRA)
    digits = re.search(r"(\d+)\.(\d+)", cmake_version)
    if digits is None or (int(digits[1]), int(digits[2])) < _NEEDED_CMAKE:
        raise EngineError(f"CMake is too old: {cmake_version}", kind="install", where=cmake, fix=_BUILD_EXTRA)
    ninja, make = _find("ninja"), _find("make")
    if not ninja and not make:
        raise EngineError("neither ninja nor make is installed", kind="install", fix=_BUILD_EXTRA)
    cxx, compiler = _compiler()
    nvcc = None
    if backend == "cuda":
        nvcc, nvcc_version = _nvcc()
        compiler += f"; nvcc {nvcc_version}"
    return Toolchain(
        cmake=cmake,
        cmake_version=cmake_version,
        generator="Ninja" if ninja else "Unix Makefiles",
        maker=ninja or make or "",
        compiler=compiler,
        cxx=cxx,
        nvcc=nvcc,
    )


def _find(program: str) -> str | None:
    # An environment that is not activated has its programs beside its interpreter, not on PATH.
    return shutil.which(program, path=sysconfig.get_path("scripts")) or shutil.which(program)


def _compiler() -> tuple[str, str]:
    compilers = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    for name in compilers:
        if (path := shutil.which(name)) and (
            version := _version(path)
        ):  # macOS has a placeholder c++ that only offers an installation
            return path, version
    fix = "Debian and Ubuntu: `sudo apt install g++`; Fedora: `sudo dnf install gcc-c++`."
    if sys.platform == "darwin":
        fix = "Run `xcode-select --install`."
    raise EngineError(f"there is no working C++ compiler (tried {', '.join(compilers)})", kind="install", fix=fix)


def _nvcc_candidates() -> list[str]:
    homes = [home for name in ("CUDA_PATH", "CUDA_HOME") if (home := os.environ.get(name))]
    own = [compiler] if (compiler := os.environ.get("CUDACXX")) else []
    return [*own, *(f"{home}/bin/nvcc" for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"]


def _nvcc() -> tuple[str, str]:
    for candidate in _nvcc_candidates():
        if (path := shutil.which(candidate)) and (version := _version(path, line=-1)):
            return path, version
    raise EngineError(
        "the CUDA compiler (nvcc) was not found",
        kind="install",
        fix="Install the CUDA toolkit and put its bin folder on PATH (or set CUDACXX), or build without --cuda.",
    )


def _version(path: str, line: int = 0) -> str | None:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[line].strip() if done.returncode == 0 and lines else None
