"""A build of llama.cpp, and those that are installed.

Builds lie in `<cache>/engines/llama.cpp/<version>-<backend>-<key>/{build.json, bin/}`. A folder gets that name only
when it is complete, so whatever else lies there (`.building-*`, `logs`) is never taken for a build.
"""

from __future__ import annotations

import json
import platform
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from benchctl.engines.registry import Backend
from benchctl.machine.describe import cpu_identity
from benchctl.paths import cache_folder

BUILD_SCHEMA = 1


class Host(BaseModel, frozen=True):
    """The machine that a build was made on and for: native code may not run on another."""

    system: str
    machine: str
    cpu: str

    @classmethod
    def here(cls) -> Host:
        """Return this machine."""
        return cls(system=platform.system(), machine=platform.machine(), cpu=cpu_identity())


class Build(BaseModel, frozen=True):
    """A finished build; `build.json` holds these fields without `folder`."""

    folder: Path
    version: str
    """The version of llama-cpp-python, whose source distribution carries this llama.cpp."""
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
    """The output of `llama-server --version`, which shows that the binary starts here."""
    files: dict[str, str] = {}
    """SHA-256 of every file below `bin`."""
    left_out: tuple[str, ...] = ()
    """Instructions of this processor that it does without, because with them it crashed: `AMX`."""

    def binary(self, name: str = "llama-server") -> Path:
        """Return where the program `name` lies."""
        return self.folder / "bin" / name

    def to_json(self) -> dict[str, Any]:
        """Return what `build.json` holds."""
        return {"schema": BUILD_SCHEMA, **self.model_dump(mode="json", exclude={"folder"})}

    @classmethod
    def read(cls, folder: Path) -> Build | None:
        """Return the build in `folder`; `None` where there is none that is whole and that this benchctl can read."""
        try:
            facts = json.loads((folder / "build.json").read_text())
            build = cls.model_validate({**facts, "folder": folder})
        except (OSError, ValueError, TypeError):
            return None
        return build if facts.get("schema") == BUILD_SCHEMA and build.binary().is_file() else None


def builds_folder() -> Path:
    """Return the folder that holds the builds (it may not exist yet)."""
    return cache_folder() / "engines" / "llama.cpp"


def installed_builds() -> list[Build]:
    """Return every finished build that this machine can run, newest first."""
    builds, host = map(Build.read, builds_folder().glob("[!.]*")), Host.here()
    return sorted((build for build in builds if build and build.host == host), key=attrgetter("built_at"), reverse=True)
