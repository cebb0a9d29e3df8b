"""The builds of llama.cpp that `benchctl engines install` made, as they lie in the cache.

Layout: `<cache>/engines/llama.cpp/<version>-<backend>-<key>/{build.json, bin/}`. A folder gets that name only when it
is complete, so whatever else lies there (`.building-*`, `logs`) is never taken for a build.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchctl.engines.registry import Backend
from benchctl.machine.describe import cpu_identity
from benchctl.paths import cache_folder

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
