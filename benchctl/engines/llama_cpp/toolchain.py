"""The tools that a build of llama.cpp takes: where they are, and whether the compiler breaks AMX."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass

from benchctl.engines.registry import Backend
from benchctl.errors import EngineError

NO_CUDA = "Install the CUDA toolkit and put its bin folder on PATH (or set CUDACXX), or build without --cuda."


@dataclass(frozen=True)
class Toolchain:
    """Paths of the tools that were found, and their versions, as a line that they print."""

    cmake: str
    cmake_version: str
    ninja: str
    cxx: str
    """The C++ compiler."""
    compiler: str
    """The compiler's version, and that of the CUDA compiler for a CUDA build."""
    nvcc: str | None = None


def find_toolchain(backend: Backend) -> Toolchain:
    """Find every tool, this Python environment's first, then PATH's. Raises EngineError that says what is missing."""
    cmake, ninja = (_first(name, prefer_environment=True) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        message = f"{'CMake' if cmake is None else 'ninja'} is not installed"
        fix = "benchctl brings CMake and ninja along: install it again, or put both on PATH."
        raise EngineError(message, kind="install", fix=fix)
    names = shlex.split(os.environ.get("CXX", ""))[:1] or ["c++", "g++", "clang++"]
    cxx = _first(*names)  # macOS has a placeholder c++ that only offers an installation
    if cxx is None:
        fix = "Debian and Ubuntu: `sudo apt install g++`; Fedora: `sudo dnf install gcc-c++`."
        fix = "Run `xcode-select --install`." if sys.platform == "darwin" else fix
        raise EngineError(f"there is no working C++ compiler (tried {', '.join(names)})", kind="install", fix=fix)
    if backend != "cuda":
        return Toolchain(*cmake, ninja[0], *cxx)
    nvcc = _first(*nvcc_candidates(), line=-1)
    if nvcc is None:
        raise EngineError("the CUDA compiler (nvcc) was not found", kind="install", fix=NO_CUDA)
    return Toolchain(*cmake, ninja[0], cxx[0], f"{cxx[1]}; nvcc {nvcc[1]}", nvcc[0])


def nvcc_candidates() -> list[str]:
    """Return where the CUDA compiler may be."""
    homes = [home for name in ("CUDA_PATH", "CUDA_HOME") if (home := os.environ.get(name))]
    from_variable = [compiler] if (compiler := os.environ.get("CUDACXX")) else []
    return [*from_variable, *(f"{home}/bin/nvcc" for home in homes), "nvcc", "/usr/local/cuda/bin/nvcc"]


def _first(*names: str, line: int = 0, prefer_environment: bool = False) -> tuple[str, str] | None:
    """Return the path of the first of these programs that runs, and a line of its version.

    `prefer_environment`: this Python environment's wins; where it is not activated, its programs are not on PATH.
    """
    for name in names:
        in_environment = shutil.which(name, path=sysconfig.get_path("scripts")) if prefer_environment else None
        path = in_environment or shutil.which(name)
        with suppress(OSError, subprocess.TimeoutExpired):
            done = path and subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False)
            if path and done and done.returncode == 0 and (lines := done.stdout.strip().splitlines()):
                return path, lines[line].strip()
    return None


NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def without_amx(flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return CMake arguments that leave AMX out; the compilers' flags that the user gave stay."""
    added = []
    for language in ("C", "CXX"):
        user_flags = os.environ.get(f"{language}FLAGS", "")
        for flag in flags:
            if setting := re.match(rf"-DCMAKE_{language}_FLAGS(?::\w+)?=(.*)", flag, re.DOTALL):
                user_flags = setting[1]
        added.append(f"-DCMAKE_{language}_FLAGS={f'{user_flags} {NO_AMX}'.strip()}")
    return (*flags, *added)


def uses_amx(compiler: str) -> bool:
    """Whether `compiler` uses it for this processor, where llama.cpp then has code for it."""
    argv = [compiler, "-march=native", "-dM", "-E", "-x", "c++", "/dev/null"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "#define __AMX_TILE__ " in done.stdout


_TILES = """
#include <immintrin.h>
void configure(unsigned char rows) {
    unsigned char config[64] = {1};
    config[48] = rows;
    _tile_loadconfig(config);
}
"""


def breaks_amx(compiler: str, processor: str = "native") -> bool:
    """Whether `compiler` drops stores to a tile configuration that only `ldtilecfg` reads, as GCC 12.2 does.

    Its `_tile_loadconfig` declares the first 8 of 64 bytes as read. In sound code the argument is stored.
    """
    argv = [compiler, f"-march={processor}", "-O3", "-S", "-x", "c++", "-", "-o", "-"]
    try:
        done = subprocess.run(argv, input=_TILES, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return "ldtilecfg" in done.stdout and re.search(r"%([er]di|dil)\b", done.stdout) is None
