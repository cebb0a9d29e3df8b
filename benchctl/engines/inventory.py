"""Every engine that this machine has: what `benchctl engines list` and `benchctl doctor` show."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from dataclasses import asdict, dataclass
from typing import Any

from benchctl.engines.common.named_program import FoundBinary
from benchctl.engines.llama_cpp.find import candidates
from benchctl.errors import BenchctlError

_PACKAGES = {"transformers": "transformers"}
"""Engine kinds that are Python packages, and what their distribution is called."""


@dataclass(frozen=True)
class FoundEngine:
    """One engine, or the fact that there is none of its kind (`found_in` is then `None`)."""

    kind: str
    found_in: str | None = None
    where: str | None = None
    runs: bool = False
    """Whether it is the one of its kind that runs when the recipe names none."""
    version: str | None = None
    build: str | None = None
    commit: str | None = None
    speculation_types: tuple[str, ...] = ()
    problem: str | None = None
    """Why it cannot be used."""
    hint: str | None = None
    """What to do to have one."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def find_engines() -> list[FoundEngine]:
    """Return what is found of every engine kind, at least one entry each, the one that runs first."""
    return [
        *_llama_cpp(),
        *_vllm(),
        _sglang(),
        *(_package(kind, name) for kind, name in _PACKAGES.items()),
        _endpoint(),
    ]


def _llama_cpp() -> list[FoundEngine]:
    try:
        found = candidates()
    except BenchctlError as error:
        return [FoundEngine("llama.cpp", "environment", error.where, problem=error.what, hint=error.fix)]
    if not found:
        return [FoundEngine("llama.cpp", hint="build it with `benchctl engines install llama.cpp`")]
    return [_probed(binary, runs=index == 0) for index, binary in enumerate(found)]


def _probed(binary: FoundBinary, *, runs: bool) -> FoundEngine:
    from benchctl.engines.llama_cpp.probe import probe_server

    where = str(binary.path)
    try:
        able = probe_server(binary.path, binary.found_in).capabilities
    except BenchctlError as error:
        return FoundEngine("llama.cpp", binary.found_in, where, runs, problem=error.what, hint=error.fix)
    types = able.speculation_types
    return FoundEngine("llama.cpp", binary.found_in, where, runs, able.version, able.build, able.commit, types)


def _vllm() -> list[FoundEngine]:
    from benchctl.engines.vllm import find

    try:
        found = find.candidates()
    except BenchctlError as error:
        return [FoundEngine("vllm", "environment", error.where, problem=error.what, hint=error.fix)]
    if not found:
        return [FoundEngine("vllm", hint="for a CPU: `benchctl engines install vllm --cpu`; see docs/engines.md")]
    return [_remembered_vllm(program, runs=index == 0) for index, program in enumerate(found)]


def _remembered_vllm(program: FoundBinary, *, runs: bool) -> FoundEngine:
    """Say what is known of a vLLM: importing it takes 10 s and more, so that only what it told before is shown."""
    from benchctl.engines.vllm.probe import installed_version, remembered_probe

    where = str(program.path)
    try:
        version = installed_version(program.path)
    except BenchctlError as error:
        return FoundEngine("vllm", program.found_in, where, runs, problem=error.what, hint=error.fix)
    if (known := remembered_probe(program)) is None:
        hint = "which kinds of speculation it knows is asked when it first runs"
        return FoundEngine("vllm", program.found_in, where, runs, version, hint=hint)
    able = known.capabilities
    return FoundEngine(
        "vllm", program.found_in, where, runs, able.version, able.build, speculation_types=able.speculation_types
    )


def _sglang() -> FoundEngine:
    """Say where SGLang is; importing it takes as long as vLLM."""
    from benchctl.engines.sglang import probe

    named = os.environ.get(probe.VARIABLE)
    try:
        python, found_in = probe.find_python(None, None)
    except BenchctlError as error:
        if named:
            return FoundEngine("sglang", "environment", named, problem=error.what, hint=error.fix)
        return FoundEngine("sglang", hint=f"install it and name its Python: {probe.VARIABLE}; see docs/engines.md")
    version = None if named else _version("sglang")
    return FoundEngine("sglang", found_in, str(python), runs=True, version=version)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _package(kind: str, name: str) -> FoundEngine:
    version = _version(name)
    if version is None:
        if program := shutil.which(name):
            return FoundEngine(kind, "PATH", program, runs=True)
        return FoundEngine(kind, hint=f"install the package {name} in this Python environment")
    return FoundEngine(kind, "Python package", name, runs=True, version=version)


def _endpoint() -> FoundEngine:
    return FoundEngine("openai", hint="an endpoint that already runs: the recipe names it, nothing is installed")
