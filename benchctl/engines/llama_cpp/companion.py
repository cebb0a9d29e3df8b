"""llama-replay for a llama-server: beside it, or built once for its own libraries from the pinned source's headers.

What reads an answer again must compute what the server does. A program linked to the server's own libraries does; their
commit must be the pinned one, whose headers and server it follows. A server that is linked statically has none.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path

from benchctl.engines.common.programs import CommandFailedError, run_logged, sibling_hashes
from benchctl.engines.llama_cpp.build import Build, builds_folder
from benchctl.engines.llama_cpp.compile import REPLAY, REPLAY_SOURCE
from benchctl.engines.llama_cpp.source import PINNED_COMMIT, PINNED_VERSION, extract_llama_cpp, fetch_sdist
from benchctl.engines.llama_cpp.toolchain import find_toolchain
from benchctl.errors import EngineError
from benchctl.models.files import file_sha256, finish, unfinished

_HEADERS = ("include", "common", "ggml/include", "vendor")
_LINKED = ("libllama-common", "libllama", "libggml", "libggml-base")


def companion_beside(server: Path) -> Path | None:
    """Return the companion that lies beside the server, or beside what a link to it names."""
    places = (server.with_name(REPLAY), server.resolve().with_name(REPLAY))
    return next((path for path in places if path.is_file()), None)


def libraries_beside(server: Path) -> dict[str, Path]:
    """Return the server's shared libraries by the names that programs load them by; empty unless all are there."""
    home = server.resolve().parent
    libraries: dict[str, Path] = {}
    for folder in (home.parent / "lib", home):
        libraries |= {path.name: path for path in sorted(folder.glob("lib*")) if _is_library(path)}
    return libraries if all(_named(stem, libraries) for stem in _LINKED) else {}


def _is_library(path: Path) -> bool:
    return path.is_file() and (".so" in path.suffixes or path.suffix == ".dylib")


def _named(stem: str, libraries: dict[str, Path]) -> str | None:
    """Return the shortest name of a library, such as `libllama.so` or `libllama.so.0`."""
    return min((name for name in libraries if name.partition(".")[0] == stem), key=len, default=None)


def build_companion(server: Path) -> Path:
    """Return the companion for the shared libraries of `server`, built where it is not yet. Raises EngineError."""
    libraries, compiler = libraries_beside(server), find_toolchain("cpu")
    parts = [
        file_sha256(REPLAY_SOURCE),
        sibling_hashes(server),
        compiler.compiler,
        sorted(map(str, libraries.values())),
    ]
    folder = builds_folder() / "replay" / hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
    target = folder / REPLAY
    if target.is_file():
        return target
    with unfinished(target) as part, (folder / "log").open("w", buffering=1) as log:
        if target.is_file():  # made by the process that we waited for
            return target
        for name, path in libraries.items():  # it loads them, and the backends among them, from its own folder
            link = folder / name
            link.unlink(missing_ok=True)
            link.symlink_to(path.resolve())
        with tempfile.TemporaryDirectory() as temporary:
            source = Path(temporary) / "source"
            extract_llama_cpp(fetch_sdist(PINNED_VERSION, log), source)
            includes = [f"-I{source / name}" for name in _HEADERS]
            linked = [str(folder / library) for stem in _LINKED if (library := _named(stem, libraries))]
            origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
            options = ["-std=c++17", "-O2", *includes, str(REPLAY_SOURCE), "-o", str(part), *linked]
            options += ["-pthread", f"-Wl,-rpath,{origin}"]
            if sys.platform != "darwin":  # what the libraries need themselves, such as CUDA's, may be elsewhere
                options.append("-Wl,--allow-shlib-undefined")
            try:
                run_logged([compiler.cxx, *options], log=log)
            except CommandFailedError as failure:
                raise EngineError(
                    f"{REPLAY} could not be built for the libraries of {server}",
                    kind="install",
                    where="llama.cpp",
                    fix=f"The whole log: {folder / 'log'}",
                    log_tail=failure.tail(),
                ) from failure
        part.chmod(0o755)
        finish(part, target)
    return target


def no_companion(server: Path, commit: str | None) -> str | None:
    """Return why no companion can read for this server, as the end of a sentence; `None` where one can."""
    if companion_beside(server):
        return None
    if Build.read(server.resolve().parent.parent):
        return (
            f"This build of llama.cpp has no {REPLAY}; `benchctl engines install llama.cpp` builds the tested version."
        )
    if not commit or not PINNED_COMMIT.startswith(commit):
        return f"this llama-server is of commit {commit or 'unknown'}, and {REPLAY} is made for {PINNED_COMMIT[:7]}"
    if not libraries_beside(server):
        return "this llama-server's libraries (libllama, libllama-common, libggml) do not lie beside it as shared ones"
    try:
        find_toolchain("cpu")
    except EngineError as error:
        return f"{REPLAY} cannot be built for this llama-server: {error.what}"
    return None
