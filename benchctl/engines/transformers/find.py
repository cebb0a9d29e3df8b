"""Which Python runs the server, what it has, and benchctl's own environment of torch and transformers.

In this order: the option `--engine-binary`, the recipe's `engine.binary`, `$BENCHCTL_TRANSFORMERS`, the Python that
runs benchctl where it has both packages, the environment of `benchctl engines install transformers`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchctl.engines.base import Capabilities
from benchctl.engines.common.process import engine_environment
from benchctl.engines.common.programs import FoundBinary, which
from benchctl.engines.common.python_environment import PythonEnvironment, Question
from benchctl.engines.registry import FoundEngine, Installed, InstallOptions, Report, Search
from benchctl.engines.transformers.methods import METHODS, registered
from benchctl.errors import EngineError, UsageError
from benchctl.paths import cache_folder

VARIABLE = "BENCHCTL_TRANSFORMERS"
INSTALL = (
    "`benchctl engines install transformers`, or name a Python that has torch and transformers: engine.binary, "
    f"--engine-binary, or {VARIABLE}."
)


def converting_python() -> Path | None:
    """Return the Python that the user named, else that of benchctl's own environment; `None` where there is neither."""
    return which(os.environ.get(VARIABLE, "")) or environment().installed()


def _others() -> list[FoundBinary]:
    found = []
    if all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
        found.append(FoundBinary(Path(sys.executable), "Python package"))
    if (python := environment().installed()) is not None:
        found.append(FoundBinary(python, "bundled"))
    return found


SEARCH = Search("transformers", "transformers", VARIABLE, "bin/python", INSTALL, _others, installs="transformers")


def inventory() -> list[FoundEngine]:
    """Return every Python that could run the server, in order of use; none is probed, which takes seconds."""
    return SEARCH.inventory(_listed, "install it with `benchctl engines install transformers`")


def _listed(python: FoundBinary, runs: bool) -> FoundEngine:
    types = tuple(registered())
    where, version = str(python.path), _version(python)
    return FoundEngine("transformers", python.found_in, where, runs, version, speculation_types=types)


def _version(found: FoundBinary) -> str | None:
    if found.found_in == "Python package":
        return importlib.metadata.version("transformers")
    return VERSION if found.found_in == "bundled" else None


VERSION = "5.19.0"
TORCH = "2.13.0"
"""As tested. Which build of it this is, for a CPU, for CUDA or for Metal, is what the package index has."""
_LOCK = Path(__file__).with_name("lock.txt")
_FREE_BYTES, _CUDA_BYTES = 2 * 10**9, 10 * 10**9
"""With a build of torch for the CPU or for Metal, and with a build that brings CUDA's libraries, as the public index
has for Linux."""
_TRIAL = "import torch, transformers; print(torch.__version__, transformers.__version__)"


class TransformersInstaller:
    """Installs what the package index has for this machine; see `benchctl.engines.registry.Installer`."""

    title = "transformers"

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Make the environment, where it is not there."""
        useless = options.named("version", "sdist", "jobs")
        if options.backend is not None:
            useless.append(f"--{options.backend}")
        if useless:
            raise UsageError(
                "transformers supports none of these",
                where=" ".join(useless),
                fix=f"It is {VERSION} with torch {TORCH}, as tested, built for what the package index has. For another "
                "build install them yourself and name their Python: engine.binary or BENCHCTL_TRANSFORMERS.",
            )
        python = environment().install(report, force=options.force)
        return Installed(
            heading=f"transformers {VERSION} with torch {TORCH}",
            lines=(str(python),),
            facts={"program": str(python), "version": VERSION, "torch": TORCH},
        )


def environment() -> PythonEnvironment:
    """Return benchctl's own environment, made or not."""
    return PythonEnvironment(
        engine="transformers",
        name="transformers",
        folder=cache_folder() / "engines" / "transformers" / f"{VERSION}-torch-{TORCH}",
        lock=_LOCK,
        torch=TORCH,
        free_bytes=_FREE_BYTES,
        cuda_bytes=_CUDA_BYTES,
        trial=("-c", _TRIAL),
        fix="Install torch and transformers yourself and name their Python: engine.binary, BENCHCTL_TRANSFORMERS.",
    )


_SCRIPT = Path(__file__).with_name("ask_package.py")
SERVER = Path(__file__).with_name("serving")
SETTINGS: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",  # models are resolved before; a name that is no folder must not be fetched
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}
"""What benchctl sets in the server's environment, beside what it sets for every engine."""


@dataclass(frozen=True)
class Probe:
    """What probing found."""

    capabilities: Capabilities
    python: Path
    devices: tuple[str, ...]
    """By the names of recipes."""
    drafters: tuple[str, ...] = ()
    """Types that other packages of this Python register."""


def probe_python(found: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """Probe a Python; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    env = engine_environment(os.environ, {**SETTINGS, **added})
    question = Question("transformers", found.path, found.path, _SCRIPT, env, added)
    facts = question.known() or question.ask(lambda what, tail: _unusable(found.path, what, tail))
    try:
        versions = {name: str(package["version"]) for name, package in facts["distributions"].items()}
        records = {name: package["record_sha256"] for name, package in facts["distributions"].items()}
        devices, drafters = (tuple(map(str, facts[name])) for name in ("devices", "drafters"))
        version = f"transformers {versions['transformers']}, torch {versions['torch']}"
    except (KeyError, TypeError, AttributeError) as error:
        raise _unusable(found.path, f"it does not report {error}", ()) from None
    question.keep(facts)
    records["benchctl's server"] = _server_sha256()
    capabilities = Capabilities(
        kind="transformers",
        binary=found.path,
        found_in=found.found_in,
        version=version,
        build=versions["transformers"],
        commit=None,
        speculation_types=(*METHODS, *drafters),
        request_fields=frozenset({"tools", "chat_template_kwargs"}),
        details={
            "python": facts.get("python"),
            "distributions": versions,
            "devices": [] if facts.get("accelerator") is None else [f"CUDA: {facts['accelerator']}"],
            # Of the lists of installed files, which hold every file's hash, and of the server's own code.
            "sha256": hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest(),
            "siblings": {name: value for name, value in records.items() if value},
        },
    )
    return Probe(capabilities, found.path, devices, drafters)


def _server_sha256() -> str:
    whole = hashlib.sha256()
    for file in sorted(SERVER.rglob("*.py")):
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def _unusable(python: Path, what: str, tail: tuple[str, ...]) -> EngineError:
    return EngineError(
        f"This Python cannot run transformers: {what}", kind="launch", where=str(python), fix=INSTALL, log_tail=tail
    )
