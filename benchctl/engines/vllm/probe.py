"""Probing an installed vLLM with its own Python."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchctl.engines.base import Capabilities
from benchctl.engines.common.package_probe import Question
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.vllm.find import python_of
from benchctl.engines.vllm.package import Package, own_settings, vllm_environment
from benchctl.engines.vllm.speculation import types_of
from benchctl.errors import EngineError

_SCRIPT = Path(__file__).with_name("ask_package.py")


@dataclass(frozen=True)
class Probe:
    """What probing found: the neutral capabilities, and what the adapter writes commands with."""

    capabilities: Capabilities
    package: Package


def probe_vllm(found: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """Probe what an installed vLLM can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    question = _question(found.path, added)
    facts = question.known() or question.ask(lambda what, tail: _no_vllm(found.path, what, tail))
    try:
        package = Package(
            version=str(facts["distributions"]["vllm"]["version"]),
            platform=str(facts["platform"]),
            device=str(facts["device"]),
            prefix=Path(facts["prefix"]),
            methods=tuple(facts["methods"]),
            deprecated_methods=tuple(facts["deprecated_methods"]),
            keys=tuple(facts["keys"]),
            options=facts["options"],
            arctic_inference=bool(facts["arctic_inference"]),
        )
    except (KeyError, TypeError) as error:
        raise _no_vllm(found.path, f"it does not report {error}", ()) from None
    question.keep(facts)
    records = {name: one["record_sha256"] for name, one in facts["distributions"].items() if one["record_sha256"]}
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
            "distributions": {name: one["version"] for name, one in facts["distributions"].items()},
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
    return Probe(capabilities, package)


def remembered_probe(found: FoundBinary) -> Probe | None:
    """Return what an earlier probe found, without a new one: for lists that must not take long."""
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
    env = vllm_environment(os.environ, settings, added)
    return Question("vllm", program, python, _SCRIPT, env, added)


def _no_vllm(program: Path, what: str, tail: tuple[str, ...]) -> EngineError:
    fix = "Point engine.binary, --engine-binary or BENCHCTL_VLLM at the program `vllm` of a working installation."
    return EngineError(f"This vLLM cannot be used: {what}", kind="launch", where=str(program), fix=fix, log_tail=tail)
