"""Build the llama-server of these benchmarks that is wrong inside where its arguments say so.

    python -m benchmarks.lossy_engines.build

One binary for every arm of a run: benchctl's own pinned build, compiled with the same flags, plus `faults.patch`, which
adds one argument, `--fault NAME[=NUMBER][,WHEN=N...]`. Without it the binary does what the unpatched one does. Sources
and object files stay in benchctl's cache, so that only what the patch changed is compiled again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchctl.engines.llama_cpp.build import Build, installed_builds
from benchctl.engines.llama_cpp.compile import QUICK_BUILD, REPLAY
from benchctl.engines.llama_cpp.installation import install
from benchctl.engines.llama_cpp.source import PINNED_VERSION, extract_llama_cpp, fetch_sdist
from benchctl.engines.llama_cpp.toolchain import find_toolchain
from benchctl.engines.registry import InstallOptions
from benchctl.paths import cache_folder

PATCH = Path(__file__).resolve().with_name("faults.patch")
_TARGETS = ("llama-server", REPLAY)


def build() -> Path:
    """Return the path of the patched llama-server, beside its llama-replay; what is older than its source is built."""
    pinned = (build for build in installed_builds() if (build.version, build.backend) == (PINNED_VERSION, "cpu"))
    sound = next(pinned, None) or install(InstallOptions(), _report)
    made_of = [sound.version, sound.flags, sound.compiler, sound.host.model_dump()]
    key = hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:8]
    folder = (cache_folder() / "benchmarks" / "lossy_engines" / key).resolve()  # CMake keeps absolute paths
    folder.mkdir(parents=True, exist_ok=True)
    applied = folder / PATCH.name
    binary = folder / "build" / "bin" / _TARGETS[0]
    source = _source(folder, sound)
    if not (applied.is_file() and applied.read_bytes() == PATCH.read_bytes()):
        _patch(source, applied)
    _compile(folder, sound)
    return binary


def _source(folder: Path, sound: Build) -> Path:
    """Unpack the source once: its files keep their times, which say what has to be compiled again."""
    source = folder / "source"
    if not source.is_dir():
        unpacking = folder / "unpacking"
        shutil.rmtree(unpacking, ignore_errors=True)
        extract_llama_cpp(fetch_sdist(sound.version, sys.stderr), unpacking)
        unpacking.rename(source)
    return source


def _patch(source: Path, applied: Path) -> None:
    """Take back the patch that was applied before, and apply today's; what that leaves as it was keeps its time."""
    before = {file: (file.read_bytes(), file.stat()) for file in _touched(source, applied)}
    if applied.is_file():
        _apply(source, applied, "--reverse")
        applied.unlink()
    _apply(source, PATCH)
    shutil.copyfile(PATCH, applied)
    for file, (content, status) in before.items():
        if file.is_file() and file.read_bytes() == content:
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _touched(source: Path, patch: Path) -> list[Path]:
    lines = patch.read_text(encoding="utf-8").splitlines() if patch.is_file() else []
    return [source / line.removeprefix("+++ b/") for line in lines if line.startswith("+++ b/")]


def _apply(source: Path, patch: Path, *options: str) -> None:
    # Git looks for a repository above the folder and would leave out what that one ignores.
    env = {**os.environ, "GIT_CEILING_DIRECTORIES": str(source.parent)}
    subprocess.run(["git", "apply", *options, str(patch)], cwd=source, env=env, check=True)


def _compile(folder: Path, sound: Build) -> None:
    tools = find_toolchain(sound.backend)
    quick = [f"-DCMAKE_PROJECT_llama.cpp_INCLUDE={QUICK_BUILD}"]
    tree = ["-S", str(folder / "source"), "-B", str(folder / "build")]
    subprocess.run(
        [tools.cmake, *tree, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools.ninja}", *quick, *sound.flags],
        stdout=sys.stderr,
        check=True,
    )
    make = [tools.cmake, "--build", str(folder / "build"), "--parallel", "--target", *_TARGETS]
    subprocess.run(make, stdout=sys.stderr, check=True)


def _report(step: str, done: int, total: int) -> None:
    print(f"{step} {done}/{total}" if total else step, file=sys.stderr)


if __name__ == "__main__":
    print(build())
