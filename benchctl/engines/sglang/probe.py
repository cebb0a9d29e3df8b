"""Which SGLang runs, and probing it with its own Python, in a process of its own.

The `binary` of SGLang is the Python that it is installed in: the option
`--engine-binary`, the recipe's `engine.binary`, `$BENCHCTL_SGLANG`, else the Python that runs benchctl.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchctl.engines.base import Capabilities
from benchctl.engines.common.package_probe import Question
from benchctl.engines.common.programs import FoundBinary, which
from benchctl.engines.registry import FoundEngine
from benchctl.engines.sglang.package import Option, Package, sglang_environment
from benchctl.engines.sglang.speculation import types_of
from benchctl.errors import BenchctlError, EngineError

VARIABLE = "BENCHCTL_SGLANG"
_SCRIPT = Path(__file__).with_name("ask_package.py")
_FIX = f"Name the Python that SGLang is installed in: engine.binary, --engine-binary, or {VARIABLE}."


@dataclass(frozen=True)
class Probe:
    """What probing found: the neutral capabilities, and what the adapter writes commands with."""

    capabilities: Capabilities
    package: Package
    python: Path


def find_python(recipe: str | None, option: str | None) -> FoundBinary:
    """Return the Python to run. Raises EngineError (`launch`) when there is none."""
    named = [(option, "option"), (recipe, "recipe"), (os.environ.get(VARIABLE), "environment")]
    for value, found_in in named:
        if not value:
            continue
        path = which(value)
        if path is None:
            raise EngineError("there is no such program", kind="launch", where=value, fix=_FIX)
        return FoundBinary(path, found_in)
    if importlib.util.find_spec("sglang") is None:
        raise EngineError("no SGLang was found", kind="launch", where="sglang", fix=_FIX)
    return FoundBinary(Path(sys.executable), "Python package")


def probe_sglang(python: Path, found_in: str, added: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """Probe what an installed SGLang can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    question = Question("sglang", python, python, _SCRIPT, sglang_environment(os.environ, added, cpu=False), added)
    facts = question.known() or question.ask(lambda what, tail: _no_sglang(python, what, tail))
    try:
        package = Package(
            version=str(facts["version"]),
            algorithms=tuple(facts["algorithms"]),
            options={
                name: Option(one["takes"] == 0, _choices(one["choices"])) for name, one in facts["options"].items()
            },
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise _no_sglang(python, f"it does not report {error}", ()) from None
    question.keep(facts)
    capabilities = Capabilities(
        kind="sglang",
        binary=python,
        found_in=found_in,
        version=f"SGLang {package.version}",
        build=package.version,
        commit=None,
        speculation_types=types_of(package.algorithms),
        option_names=tuple(map(tuple, facts.get("names") or ([name] for name in package.options))),
        details={
            "python": facts.get("python"),
            "algorithms": list(package.algorithms),
            "flags": sorted(package.options),
            # Of the list of files that were installed, which holds every file's hash.
            "sha256": facts.get("record_sha256"),
        },
    )
    return Probe(capabilities, package, python)


def _choices(value: object) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


def _no_sglang(python: Path, what: str, tail: tuple[str, ...]) -> EngineError:
    return EngineError(f"This SGLang cannot be used: {what}", kind="launch", where=str(python), fix=_FIX, log_tail=tail)


def inventory() -> list[FoundEngine]:
    """Return where SGLang is; importing it takes 10 s and more, so it is not probed."""
    named = os.environ.get(VARIABLE)
    try:
        found = find_python(None, None)
    except BenchctlError as error:
        if named:
            return [FoundEngine("sglang", "environment", named, problem=error.what, hint=error.fix)]
        return [FoundEngine("sglang", hint=f"install it and name its Python: {VARIABLE}; see docs/engines.md")]
    version = None
    if not named:
        with suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version("sglang")
    return [FoundEngine("sglang", found.found_in, str(found.path), runs=True, version=version)]
