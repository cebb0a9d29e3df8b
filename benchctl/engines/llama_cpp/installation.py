"""Which llama-server runs, and installing it: the user's own always wins over what benchctl built.

In this order: the option `--engine-binary`, the recipe's `engine.binary`, `$BENCHCTL_LLAMA_SERVER`, `llama-server` on
PATH, the newest build of `benchctl engines install llama.cpp` that this machine can run. That is built from the pinned
source, once, in a temporary folder of the cache, under a lock; a rename makes it appear. An interrupted installation
leaves at most a `.building-*` folder: what is compiled there is not compiled again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.llama_cpp.build import Build, Host, builds_folder, installed_builds
from benchctl.engines.llama_cpp.compile import FREE_SOME, QUICK_BUILD, REPLAY_SOURCE, TARGETS, Work, make_build
from benchctl.engines.llama_cpp.source import KNOWN_SHA256, PINNED_VERSION, Sdist, fetch_sdist, read_sdist
from benchctl.engines.llama_cpp.toolchain import Toolchain, find_toolchain
from benchctl.engines.llama_cpp.trial import check_quantized
from benchctl.engines.registry import Backend, FoundEngine, Installed, InstallOptions, Report, Search
from benchctl.errors import BenchctlError, EngineError, StorageError, UsageError
from benchctl.machine import nvidia
from benchctl.machine.describe import usable_cores
from benchctl.machine.doctor import Check
from benchctl.models.files import file_sha256, unfinished
from benchctl.paths import on_path
from benchctl.text import one_line, plural, spoken

SERVER = "llama-server"
VARIABLE = "BENCHCTL_LLAMA_SERVER"
PERPLEXITY = "llama-perplexity"
QUANTIZE = "llama-quantize"
_MEASURING = frozenset({PERPLEXITY})
"""Programs that measure their own build: that of another build than the server's would not measure the server."""
_BACKEND = re.compile(r"(lib)?ggml-.*\.(so|dylib)$")
_INSTALL = "Build it with `benchctl engines install llama.cpp`, or name your own with --engine-binary."


def search(device: str = "auto") -> Search:
    """Return where llama-server is looked for; among builds of benchctl, a build for `device` comes first."""

    def bundled() -> list[FoundBinary]:
        builds = sorted(installed_builds(), key=lambda build: build.backend != device)  # newest first within each
        return [FoundBinary(build.binary(), "bundled") for build in builds]

    installs = "llama.cpp" if device in ("auto", "rpc") else f"llama.cpp --{device}"
    return Search("llama.cpp", SERVER, VARIABLE, SERVER, _INSTALL, bundled, program=SERVER, installs=installs)


def refuse_backends_here(server: FoundBinary) -> None:
    """Raise UsageError where the working folder holds backends that are not the binary's own.

    A llama.cpp with loadable backends (its published builds) looks for `libggml-*.so` beside itself and in the working
    folder, and runs what it finds there: a folder of somebody's recipe would bring code. benchctl's own builds load
    none.
    """
    folder = Path.cwd()
    if server.found_in == "bundled" or folder in (server.path.parent, server.path.resolve().parent):
        return
    with suppress(OSError):  # a folder that cannot be listed is searched by no engine
        for file in sorted(folder.iterdir()):
            if _BACKEND.match(file.name):
                raise UsageError(
                    f"{server.path.name} may load {one_line(file.name, 100)} of the working folder.",
                    where=one_line(str(folder), 400),
                    fix="Run benchctl from another folder.",
                )


def find_tool(name: str, server: Path) -> Path:
    """Return the program `name` beside `server`, or, unless it measures, any there is. Raises EngineError."""
    places, measures = [server.parent / name, server.resolve().parent / name], name in _MEASURING
    if not measures:  # Homebrew links only some into its bin folder
        places += [path] if (path := on_path(name)) else []
        places += [build.binary(name) for build in installed_builds()]
    for candidate in places:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    message, fix = f"no {name} was found beside {server}", _INSTALL
    if measures:
        message += ", and that of another build would measure another engine"
        fix = f"Build llama.cpp's target {name} there too; or `benchctl engines install llama.cpp`, and use that build."
    raise EngineError(message, kind="launch", where="llama.cpp", fix=fix)


def inventory() -> list[FoundEngine]:
    """Return every llama-server that is found, what runs first, with its version."""
    return search().inventory(_probed, "build it with `benchctl engines install llama.cpp`")


def _probed(binary: FoundBinary, runs: bool) -> FoundEngine:
    from benchctl.engines.llama_cpp.probe import probe_server

    where = str(binary.path)
    try:
        refuse_backends_here(binary)
        able = probe_server(binary.path, binary.found_in).capabilities
    except BenchctlError as error:
        return FoundEngine("llama.cpp", binary.found_in, where, runs, problem=error.what, hint=error.fix)
    listed = able.details["devices"]
    devices = tuple(map(str, listed)) if isinstance(listed, list) else ()
    facts = (able.version, able.build, able.commit, able.speculation_types, devices)
    return FoundEngine("llama.cpp", binary.found_in, where, runs, *facts)


_ALWAYS = """
-DCMAKE_BUILD_TYPE=Release -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF
-DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_ALL_WARNINGS=OFF -DGGML_ALL_WARNINGS=OFF
"""
"""A prebuilt UI would be downloaded while configuring; benchctl talks to it on loopback and fetches models itself."""
_BACKEND_FLAGS: dict[Backend, tuple[str, ...]] = {
    "cpu": ("-DGGML_CUDA=OFF", "-DGGML_METAL=OFF"),
    "cuda": ("-DGGML_CUDA=ON", "-DGGML_METAL=OFF"),
    "metal": ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"),
    "vulkan": ("-DGGML_VULKAN=ON", "-DGGML_METAL=OFF"),
    "rocm": ("-DGGML_HIP=ON",),
    "sycl": ("-DGGML_SYCL=ON", "-DCMAKE_C_COMPILER=icx", "-DCMAKE_CXX_COMPILER=icpx"),
}
"""As docs/build.md of llama.cpp has them; those of rocm and sycl were never tried here."""
_LAST_FLAGS = ("-DBUILD_SHARED_LIBS=OFF",)  # the programs are moved after they are linked
_COMPILER_SETTINGS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CUDAFLAGS", "LDFLAGS")
_FREE_GB = {"cpu": 0.7, "metal": 0.7, "vulkan": 2.0, "cuda": 4.0, "rocm": 4.0, "sycl": 4.0}
"""Measured for cpu: 80 MB archive, 180 MB source, 110 MB objects and programs; with a margin."""
_BYTES_A_JOB = 1.5e9
"""Memory that compiling the largest source files takes."""


def install(options: InstallOptions, report: Report) -> Build:
    """Return the build, with further arguments of `$CMAKE_ARGS`, from the cache when it is there."""
    # The default backend works on every machine of its system.
    backend: Backend = options.backend or ("metal" if sys.platform == "darwin" else "cpu")
    if backend == "metal" and sys.platform != "darwin":
        raise UsageError("Metal exists on macOS only", where="--metal", fix="Build with --cuda or --cpu.")
    try:
        further = shlex.split(os.environ.get("CMAKE_ARGS", ""))
    except ValueError as error:
        raise UsageError(f"this cannot be split into arguments: {error}", where="CMAKE_ARGS") from error
    version, sdist = _source(options)
    toolchain, folder = find_toolchain(backend), builds_folder()
    cards = _cards(options, backend, further)
    flags = (*_ALWAYS.split(), *_BACKEND_FLAGS[backend], *cards, *further, *_LAST_FLAGS)
    key = _key(version, sdist.sha256 if sdist else KNOWN_SHA256.get(version), flags, toolchain)
    final = folder / f"{version}-{backend}-{key}"
    if not options.force and (build := Build.read(final)):
        return build
    try:
        with unfinished(folder / "llama.cpp", lambda text: report(text, 0, 0)):
            if not options.force and (build := Build.read(final)):  # made by the process that we waited for
                return build
            within = folder / f".building-{final.name}"
            _clear_away_leftovers(folder, backend, within)
            log_path = folder / "logs" / f"{final.name}.log"
            log_path.parent.mkdir(exist_ok=True)
            with _kept_when_interrupted(within), log_path.open("w", buffering=1) as log:
                jobs = options.jobs or _jobs()
                if backend == "cuda":
                    report(_told_first(cards, jobs), 0, 0)
                report("fetching the source", 0, 0)
                work = Work(within, toolchain, backend, flags, jobs, log, log_path, report)
                finished = make_build(work, sdist or fetch_sdist(version, log), key)
                if final.exists():  # --force, or a folder that somebody damaged
                    final.rename(finished.parent / "replaced")
                finished.rename(final)
    except OSError as error:
        fix = FREE_SOME if error.errno == errno.ENOSPC else "Set BENCHCTL_CACHE to a folder that can be written to."
        message = f"the build could not be written: {error.strerror or error}"
        raise StorageError(message, where=str(error.filename or folder), fix=fix) from error
    installed = Build.read(final)
    assert installed is not None
    return installed


ARCHITECTURES = "-DCMAKE_CUDA_ARCHITECTURES="
_MAJOR = "all-major"
"""What CMake compiles for every kind of card of this toolkit."""
_CARD = re.compile(r"\d{2,3}[a-z]?(-real|-virtual)?|native|all|all-major")
CORE_MINUTES = 120
"""Of compiling for one kind of card: two cores took an hour for 90 with nvcc 13.0."""


def _cards(options: InstallOptions, backend: Backend, further: Sequence[str]) -> tuple[str, ...]:
    """Return the flag for the cards that a build is for. Raises UsageError."""
    if options.arch is not None and backend != "cuda":
        raise UsageError("Only a build for CUDA has card architectures.", where="--arch", fix="Add --cuda.")
    if backend != "cuda" or any(argument.startswith("-DCMAKE_CUDA_ARCHITECTURES") for argument in further):
        return ()
    if options.arch is not None and not all(map(_CARD.fullmatch, options.arch.split(","))):
        fix = "90 (H100), 89 (RTX 40, L4), 86 (RTX 30), 120 (RTX 50), with commas between several."
        raise UsageError("Expected card architectures.", where="--arch", fix=fix)
    named = options.arch or ",".join(nvidia.compute_capabilities()) or _MAJOR
    return (f"{ARCHITECTURES}{named.replace(',', ';')}",)


def _told_first(flags: Sequence[str], jobs: int) -> str:
    """Return what is built and about how long that takes."""
    names = "".join(flags).removeprefix(ARCHITECTURES).split(";")
    if names in ([_MAJOR], [""]):
        return f"no card is named or found here, so for every kind: hours with {jobs} jobs; --arch 90 takes one."
    minutes = CORE_MINUTES * len(names) / jobs
    return f"for CUDA {', '.join(names)}: about {spoken(60 * minutes)} with {jobs} {plural(jobs, 'job')}."


@contextmanager
def _kept_when_interrupted(folder: Path) -> Iterator[None]:
    """Make a folder for a build, and remove it afterwards; after Ctrl-C it stays, and the next build goes on there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = ("Interrupted. What was compiled is kept: the next build goes on there.",)
        raise
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _clear_away_leftovers(folder: Path, backend: Backend, keep: Path) -> None:
    """Remove what other builds left, but not `keep`. Raises StorageError where the disk is too full for a build."""
    for leftover in folder.glob(".building-*"):
        if leftover.is_symlink():
            leftover.unlink()
        elif leftover != keep:
            shutil.rmtree(leftover, ignore_errors=True)
    free, needed = shutil.disk_usage(folder).free / 1e9, _FREE_GB[backend]
    if free < needed:
        message = f"building llama.cpp needs {needed:.1f} GB of free disk, and there are {free:.1f} GB"
        raise StorageError(message, where=str(folder), fix=FREE_SOME)


def _source(options: InstallOptions) -> tuple[str, Sdist | None]:
    """Return the version, and its file where that is given. Raises UsageError, EngineError."""
    sdist = read_sdist(options.sdist) if options.sdist else None
    if sdist and options.version and sdist.version != options.version:
        raise UsageError(f"the file is version {sdist.version}, not {options.version}", where=f"--sdist {sdist.path}")
    version = sdist.version if sdist else options.version or PINNED_VERSION
    if not re.fullmatch(r"[0-9]+(\.[0-9A-Za-z]+)*", version):
        raise UsageError(f"{version!r} is no version", where="--version", fix=f"{PINNED_VERSION} is the tested one.")
    return version, sdist


def _key(version: str, sdist_sha256: str | None, flags: tuple[str, ...], toolchain: Toolchain) -> str:
    settings = [os.environ.get(name, "") for name in _COMPILER_SETTINGS]
    ours = [file_sha256(file) for file in (QUICK_BUILD, REPLAY_SOURCE)]
    parts = [version, sdist_sha256, TARGETS, flags, *ours, toolchain.compiler, settings]
    parts += Host.here().model_dump().values()
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]


def _jobs() -> int:
    import psutil

    by_memory = int(psutil.virtual_memory().available / _BYTES_A_JOB)
    return max(1, min(round(usable_cores()), by_memory))


class LlamaCppInstaller:
    """Builds llama-server and the programs beside it; see `benchctl.engines.registry.Installer`."""

    title = "llama.cpp"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Build."""
        build = install(options, report)
        return Installed(
            heading=f"llama.cpp for {build.backend}, from llama-cpp-python {build.version}",
            lines=(build.version_output, str(build.folder / "bin")),
            facts={"folder": str(build.folder), **build.to_json()},
        )


def check(engines: Sequence[FoundEngine], *, other_engines: bool) -> list[Check]:
    """Check the llama-server that runs when a recipe names none; `others`: another kind of engine can be measured."""
    name, reason = "engine.llama.cpp", "Without an engine nothing can be measured."
    first = engines[0]
    if first.problem:
        return [Check(name, "fail", f"{first.where}: {first.problem.rstrip('.')}.", reason, first.hint)]
    if not first.found_in:
        todo = "Run `benchctl engines install llama.cpp`."
        return [Check(name, "warn" if other_engines else "fail", "There is no llama-server.", reason, todo)]
    summary = f"{first.where} ({first.found_in}) is {first.version or 'of an unknown version'}."
    if not first.speculation_types:
        todo = "Use a newer build: `benchctl engines install llama.cpp` makes one."
        return [Check(name, "warn", f"{summary} It knows no speculation types.", reason, todo)]
    return [Check(name, "ok", summary, reason), check_quantized(Path(first.where or "")), *_check_faults(first)]


def _check_faults(engine: FoundEngine) -> list[Check]:
    """Name the faults that this build may have."""
    from benchctl.engines.llama_cpp.faults import ANY_TYPE, faults_of_build

    listed = [
        f"{'every type' if ANY_TYPE in fault.types else ', '.join(fault.types)} {fault.brief}"
        for fault in faults_of_build(engine.speculation_types, engine.build, engine.commit)
    ]
    if not listed:
        return []
    reason = "What asks for one of them measures or serves a broken engine."
    todo = "Avoid these; a run that asks for one is warned. docs/findings.md has the requests that show them."
    seen = f"Broken in this build: {'; '.join(listed)}."
    return [Check("engine.llama.cpp.faults", "warn", seen, reason, todo)]
