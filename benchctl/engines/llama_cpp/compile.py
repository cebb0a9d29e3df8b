"""Makes a build of llama.cpp: configure, compile, try; again where it crashes."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from benchctl.engines.common.programs import CommandFailedError, run_logged
from benchctl.engines.llama_cpp.build import Build, Host
from benchctl.engines.llama_cpp.source import KNOWN_SHA256, Sdist, extract_llama_cpp
from benchctl.engines.llama_cpp.toolchain import NO_CUDA, Toolchain, breaks_amx, uses_amx, without_amx
from benchctl.engines.llama_cpp.trial import crashed, try_quantized
from benchctl.engines.registry import Backend, Report
from benchctl.errors import BenchctlError, EngineError, StorageError
from benchctl.models.files import file_sha256

TARGETS = ("llama-server", "llama-quantize", "llama-perplexity")
QUICK_BUILD = Path(__file__).with_name("quick_build.cmake")
"""Shortens the build. Its path is no flag of the build, since it depends on where benchctl is installed."""
REPLAY = "llama-replay"
"""A program of benchctl's own, which `QUICK_BUILD` adds to the targets."""
REPLAY_SOURCE = Path(__file__).with_name("replay.cpp")

FREE_SOME = "Free some space, or set BENCHCTL_CACHE to a folder on another disk."
_STEP_FAILURES = {
    "configure": "CMake could not configure llama.cpp",
    "compile": "llama.cpp did not compile",
    "try": "the llama-server that was built does not start on this machine",
}
_CAUSES = rf"""
Killed signal terminated program|std::bad_alloc|out of memory
    Memory ran out: try again with `--jobs 1`.
CUDA Toolkit not found|No CMAKE_CUDA_COMPILER|nvcc.*not found|Could not find nvcc
    {NO_CUDA}
unsupported GNU version|-- unsupported (GNU|clang)
    This CUDA toolkit does not take this C++ compiler: set CXX and CUDAHOSTCXX to an older compiler.
No CMAKE_C(XX)?_COMPILER could be found|is not able to compile a simple test program
    Install a working C++ compiler (Debian: `apt install g++`; macOS: `xcode-select --install`), or set CXX.
^\s*CUDA::\w+$
    The CUDA toolkit is there in part only: install its development libraries (cuBLAS: libcublas-dev; cudart).
Could NOT find Vulkan|SPIRV-Headers|glslc.*not found
    Install LunarG's SDK, or Debian 13's libvulkan-dev, glslc and spirv-headers, or build without --vulkan.
Could not find a package configuration file provided by "hip"|No CMAKE_HIP_COMPILER
    Install ROCm's HIP SDK, set HIPCXX and HIP_PATH as llama.cpp's docs/build.md says, or build without --rocm.
\bicp?x[\s:]+(is |command )?not\b
    Install oneAPI and run its setvars.sh in this shell first, or build without --sycl.
Illegal instruction
    Flags in CMAKE_ARGS or CXXFLAGS enable instructions that this processor lacks.
"""
_ADVICE = [line.strip() for line in _CAUSES.strip().splitlines()]
"""A pattern of the output, and what to do, in turn."""


@dataclass(frozen=True)
class Work:
    """The settings of a build, its log, and whom it reports to."""

    folder: Path
    """Everything is written below it."""
    toolchain: Toolchain
    backend: Backend
    flags: tuple[str, ...]
    jobs: int
    log: TextIO
    log_path: Path
    report: Report

    def run(self, step: str, *argv: str, on_line: Callable[[str], None] | None = None) -> tuple[str, ...]:
        """Run a step of the build. Raises BenchctlError that says what to do."""
        env = {**os.environ, "NINJA_STATUS": "[%f/%t] ", "CLICOLOR_FORCE": "0"}
        if self.toolchain.nvcc:
            env.setdefault("CUDACXX", self.toolchain.nvcc)
        try:
            return run_logged(argv, log=self.log, env=env, on_line=on_line)
        except CommandFailedError as failure:
            raise explain(step, failure, self.log_path) from failure


def make_build(work: Work, sdist: Sdist, key: str) -> Path:
    """Return the folder with `bin` and `build.json` of a build that has answered with quantized models.

    Raises BenchctlError.
    """
    started = time.monotonic()
    work.report("unpacking the source", 0, 0)
    commit = extract_llama_cpp(sdist, work.folder / "source")
    # A plain build of the unpacked archive counts one commit, too: its history is cut off. The commit identifies it.
    identity = ("-DLLAMA_BUILD_NUMBER=1", f"-DLLAMA_BUILD_COMMIT={(commit or 'unknown')[:7]}")
    flags = (*work.flags, *identity)
    # The shortened build, and benchctl's own program in it, were not tested with other sources.
    quick = sdist.sha256 in KNOWN_SHA256.values()
    compiled, programs = _compile_sound(work, flags, quick=quick), _programs(quick=quick)
    work.report("putting it in place", 0, 0)
    staged = work.folder / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    (staged / "bin").mkdir(parents=True)
    for name in programs:
        shutil.move(compiled.server.with_name(name), staged / "bin" / name)
    finished = Build(
        folder=staged,
        version=sdist.version,
        backend=work.backend,
        key=key,
        commit=commit,
        sdist_sha256=sdist.sha256,
        flags=compiled.flags,
        compiler=work.toolchain.compiler,
        cmake=work.toolchain.cmake_version,
        host=Host.here(),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(time.monotonic() - started, 1),
        version_output=" · ".join(line for line in compiled.printed if line.strip()),
        files={name: file_sha256(staged / "bin" / name) for name in programs},
        left_out=() if compiled.flags == flags else ("AMX",),
    )
    (staged / "build.json").write_text(json.dumps(finished.to_json(), indent=1) + "\n")
    return staged


def _programs(*, quick: bool) -> tuple[str, ...]:
    return (*TARGETS, REPLAY) if quick else TARGETS


@dataclass(frozen=True)
class _Compiled:
    """A llama-server that has started once, and the version that it printed."""

    server: Path
    printed: tuple[str, ...]
    flags: tuple[str, ...]
    tried: bool = True
    """Whether it can start here."""


def _compile_sound(work: Work, flags: tuple[str, ...], *, quick: bool) -> _Compiled:
    """Compile; where the result crashes on quantized models, compile again without AMX. Raises BenchctlError.

    A compiler that is known to break AMX leaves it out at once.
    """
    spoilt = uses_amx(work.toolchain.cxx) and breaks_amx(work.toolchain.cxx)
    if spoilt:
        work.report("leaving AMX out, since this compiler breaks code for it", 0, 0)
        flags = without_amx(flags)
    compiled = _compile(work, flags, quick=quick)
    if not compiled.tried:
        return compiled
    crashes, also = _crashes(work, compiled.server), ""
    if crashes and not spoilt and uses_amx(work.toolchain.cxx):
        work.report("crashed with quantized models; building again without AMX", 0, 0)
        compiled = _compile(work, without_amx(flags), quick=quick)
        crashes, also = _crashes(work, compiled.server), ", also without AMX"
    if crashes:
        message = f"the llama-server that was built crashes with quantized models{also}"
        fix = f"Set CC and CXX to another compiler and install again; else report it to llama.cpp: {work.log_path}"
        raise EngineError(message, kind="install", where="llama.cpp", fix=fix, log_tail=crashes)
    return compiled


def _compile(work: Work, flags: tuple[str, ...], *, quick: bool) -> _Compiled:
    toolchain, build = work.toolchain, work.folder / "build"
    work.report("configuring", 0, 0)
    sooner = [f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={QUICK_BUILD}"] if quick else []
    folders = ("-S", str(work.folder / "source"), "-B", str(build))
    generator = ("-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={toolchain.ninja}")
    work.run("configure", toolchain.cmake, *folders, *generator, *sooner, *flags)

    def on_line(line: str) -> None:
        if step := re.match(r"\[\s*(\d+)/(\d+)\]", line):
            work.report("compiling", int(step[1]), int(step[2]))

    jobs, programs = ("--parallel", str(work.jobs)), _programs(quick=quick)
    work.run("compile", toolchain.cmake, "--build", str(build), *jobs, "--target", *programs, on_line=on_line)
    server = build / "bin" / "llama-server"
    work.report("trying the result", 0, 0)
    if work.backend == "cuda" and not _finds_driver(server):
        return _tried_without_driver(work, server, flags)
    return _Compiled(server, work.run("try", str(server), "--version"), flags)


_DRIVER = "libcuda.so.1"
"""NVIDIA's driver, which a build for CUDA loads when it starts; while an image is made there is none."""


_STUBS = ("lib64", "lib", "targets/*/lib", "lib/*-linux-gnu")


def _finds_driver(server: Path) -> bool:
    done = subprocess.run([server, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return done.returncode == 0 or _DRIVER not in done.stdout + done.stderr


def _tried_without_driver(work: Work, server: Path, flags: tuple[str, ...]) -> _Compiled:
    """Try the result with the toolkit's stub of the driver, which finds no device; without a stub it cannot start."""
    homes = (Path(work.toolchain.nvcc or "").resolve().parents[1], Path("/usr/local/cuda"))
    stubs = (stub for home in homes for place in _STUBS for stub in sorted(home.glob(f"{place}/stubs/libcuda.so")))
    stub = next(stubs, None)
    if stub is None:
        untried = "It was not tried: this machine has no NVIDIA driver, and the toolkit no stub of it."
        return _Compiled(server, (untried,), flags, tried=False)
    folder = work.folder / "driver"
    folder.mkdir(exist_ok=True)
    (folder / _DRIVER).unlink(missing_ok=True)
    (folder / _DRIVER).symlink_to(stub)
    os.environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("LD_LIBRARY_PATH"))))
    printed = work.run("try", str(server), "--version")
    return _Compiled(server, (*printed, "Tried without a device: this machine has no NVIDIA driver."), flags)


def _crashes(work: Work, server: Path) -> tuple[str, ...]:
    """Have the server answer with quantized models; return how it crashed. What failed is in the log, too."""
    done = itertools.count()
    failures = try_quantized(server, lambda case: work.report(f"trying it with {case}", next(done), 0))
    for case, error in failures.items():
        work.log.write(f"{case}: {error.what}\n" + "".join(f"  {line}\n" for line in error.log_tail))
    work.log.flush()
    return crashed(failures)


def explain(step: str, failure: CommandFailedError, log: Path) -> BenchctlError:
    """Return the error that a person can act on; `step` is `configure`, `compile` or `try`."""
    output = "\n".join(failure.lines)
    if "No space left on device" in output:
        return StorageError(f"{_STEP_FAILURES[step]}: the disk is full", where=str(log.parent), fix=FREE_SOME)
    if step == "try" and failure.status == -signal.SIGILL:  # which prints nothing
        output = "Illegal instruction"
    pairs = zip(_ADVICE[::2], _ADVICE[1::2], strict=True)
    advice = next((fix for pattern, fix in pairs if re.search(pattern, output, re.MULTILINE)), None)
    return EngineError(
        _STEP_FAILURES[step],
        kind="install",
        where="llama.cpp",
        fix=f"{advice or 'The lines above are the first that show an error.'} The whole log: {log}",
        log_tail=failure.tail(),
    )
