"""Which llama-server runs: the user's own always wins over what benchctl built.

In this order: the option `--engine-binary`, the recipe's `engine.binary`, `$BENCHCTL_LLAMA_SERVER`, `llama-server` on
PATH, the newest build of `benchctl engines install llama.cpp` that this machine can run. Builds lie in
`<cache>/engines/llama.cpp/<version>-<backend>-<key>/{build.json, bin/}`: a folder gets that name only when it is
complete, so whatever else lies there (`.building-*`, `logs`) is never taken for a build.
"""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.registry import Backend, FoundEngine, Search
from benchctl.errors import BenchctlError, EngineError, UsageError
from benchctl.machine.describe import cpu_identity
from benchctl.paths import cache_folder, on_path
from benchctl.text import one_line

BUILD_SCHEMA = 1


@dataclass(frozen=True)
class Host:
    """The machine that a build was made on and for: native code may not run on another."""

    system: str
    machine: str
    cpu: str

    @classmethod
    def here(cls) -> Host:
        """Return this machine."""
        return cls(platform.system(), platform.machine(), cpu_identity())


@dataclass(frozen=True)
class Build:
    """A finished build; `build.json` holds these fields without `folder`."""

    folder: Path
    version: str
    """Of llama-cpp-python, whose source distribution carries this llama.cpp."""
    backend: Backend
    key: str
    commit: str | None
    sdist_sha256: str
    flags: tuple[str, ...]
    compiler: str
    cmake: str
    host: Host
    built_at: str
    """ISO 8601, UTC."""
    build_s: float
    version_output: str
    """What `llama-server --version` printed: the proof that the binary starts here."""
    files: dict[str, str] = field(default_factory=dict)
    """SHA-256 of every file below `bin`."""
    left_out: tuple[str, ...] = ()
    """Instructions of this processor that it does without, because with them it crashed: `AMX`."""

    def binary(self, name: str = "llama-server") -> Path:
        """Return where the program `name` lies."""
        return self.folder / "bin" / name

    def to_json(self) -> dict[str, Any]:
        """Return what `build.json` holds."""
        return {"schema": BUILD_SCHEMA, **{key: value for key, value in asdict(self).items() if key != "folder"}}

    @classmethod
    def read(cls, folder: Path) -> Build | None:
        """Return the build in `folder`; `None` where there is none that is whole and that this benchctl can read."""
        try:
            facts = json.loads((folder / "build.json").read_text())
            if facts.pop("schema") != BUILD_SCHEMA or facts["flags"] is None:
                return None
            lists = {name: tuple(facts.get(name, ())) for name in ("flags", "left_out")}
            build = cls(folder=folder, **{**facts, "host": Host(**facts["host"]), **lists})
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return build if build.binary().is_file() else None


def builds_folder() -> Path:
    """Return the folder that holds the builds (it may not exist yet)."""
    return cache_folder() / "engines" / "llama.cpp"


def installed_builds() -> list[Build]:
    """Return every finished build that this machine can run, newest first."""
    try:
        folders = [entry for entry in builds_folder().iterdir() if not entry.name.startswith(".")]
    except OSError:
        return []
    here = Host.here()
    builds = [build for folder in folders if (build := Build.read(folder)) and build.host == here]
    return sorted(builds, key=lambda build: str(build.built_at), reverse=True)


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


def refuse_backends_here(found: FoundBinary) -> None:
    """Raise UsageError where the working folder holds backends that are not the binary's own.

    A llama.cpp with loadable backends (its published builds) looks for `libggml-*.so` beside itself and in the working
    folder, and runs what it finds there: a folder of somebody's recipe would bring code. benchctl's own builds load
    none.
    """
    here = Path.cwd()
    if found.found_in == "bundled" or here in (found.path.parent, found.path.resolve().parent):
        return
    with suppress(OSError):  # a folder that cannot be listed is searched by no engine
        for file in sorted(here.iterdir()):
            if _BACKEND.match(file.name):
                raise UsageError(
                    f"{found.path.name} may load {one_line(file.name, 100)} of the working folder.",
                    where=one_line(str(here), 400),
                    fix="Run benchctl from another folder.",
                )


def find_tool(name: str, server: Path) -> Path:
    """Return the program `name` (such as `llama-quantize`) that belongs to `server`: its sibling, else any there is.

    Of a program that measures only the sibling will do. Raises EngineError (`launch`).
    """
    places = [server.parent / name, server.resolve().parent / name]  # Homebrew links only some into its bin folder
    if name not in _MEASURING:
        places += [path] if (path := on_path(name)) else []
        places += [build.binary(name) for build in installed_builds()]
    for candidate in places:
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate
    if name in _MEASURING:
        raise EngineError(
            f"no {name} lies beside {server}, and that of another build would measure another engine",
            kind="launch",
            where="llama.cpp",
            fix=f"Build llama.cpp's target {name} there too; or `benchctl engines install llama.cpp`, which builds "
            "both, and use that build in place of your own llama-server.",
        )
    raise EngineError(f"no {name} was found beside {server}", kind="launch", where="llama.cpp", fix=_INSTALL)


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
    devices = able.details["devices"]
    return FoundEngine(
        "llama.cpp",
        binary.found_in,
        where,
        runs,
        able.version,
        able.build,
        able.commit,
        able.speculation_types,
        tuple(map(str, devices)) if isinstance(devices, list) else (),
    )
