"""Asking an installed vLLM what it is, with its own Python; the answer is kept as long as the installation stays."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchctl.cache_folder import cache_folder
from benchctl.engines.base import Capabilities
from benchctl.engines.log_tail import clean
from benchctl.engines.named_program import FoundBinary
from benchctl.engines.vllm.environment import own_settings, vllm_environment
from benchctl.engines.vllm.find import python_of
from benchctl.engines.vllm.speculation import words_of
from benchctl.errors import EngineError
from benchctl.models.unfinished import finish, unfinished

PROBE_TIMEOUT_S = 300.0
"""Importing vLLM takes 10 s, and minutes on a busy machine."""
_SCRIPT = Path(__file__).with_name("ask_package.py")


@dataclass(frozen=True)
class Package:
    """What the installed package says of itself."""

    version: str
    platform: str
    """`cpu`, `cuda`, …"""
    device: str
    prefix: Path
    methods: tuple[str, ...]
    deprecated_methods: tuple[str, ...]
    """Names that it takes with a warning, and turns into `mtp`."""
    keys: tuple[str, ...]
    """Of `--speculative-config`."""
    options: Mapping[str, int | None] | None
    """Of `vllm serve`, and how many values each takes (`None`: at least one); `None` where they cannot be had."""
    arctic_inference: bool

    @property
    def cpu(self) -> bool:
        """Whether it runs on the CPU."""
        return self.platform == "cpu"


@dataclass(frozen=True)
class Probe:
    """What probing found: the neutral capabilities, and what the adapter writes commands with."""

    capabilities: Capabilities
    package: Package


def probe_vllm(found: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """Ask an installed vLLM what it can do; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    python = python_of(found.path)
    remembered = _remembered(found.path, python, added)
    facts = _read(remembered) or _asked(found.path, python, added)
    _write(remembered, facts)
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
        raise _no_vllm(found.path, f"it does not tell {error}", ()) from None
    records = {name: one["record_sha256"] for name, one in facts["distributions"].items() if one["record_sha256"]}
    capabilities = Capabilities(
        kind="vllm",
        binary=found.path,
        found_in=found.found_in,
        version=f"vLLM {package.version} on {package.platform}",
        build=package.version,
        commit=None,
        speculation_types=words_of(package.methods),
        details={
            "platform": package.platform,
            "devices": [] if package.cpu else [f"{package.platform.upper()}: {package.device}"],
            "distributions": {name: one["version"] for name, one in facts["distributions"].items()},
            "python": facts["python"],
            "methods": list(package.methods),
            "deprecated_methods": list(package.deprecated_methods),
            "speculation_keys": list(package.keys),
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
    """Return what an earlier probe found, without asking: for lists that must not take long."""
    try:
        known = _read(_remembered(found.path, python_of(found.path), {}))
        return probe_vllm(found) if known else None
    except EngineError:
        return None


def installed_version(program: Path) -> str | None:
    """Return the version that the installation is filed under, without asking it. Raises EngineError."""
    home = python_of(program).parent.parent / "lib"
    found = sorted(entry.name for entry in home.glob("python3*/site-packages/vllm-*.dist-info"))
    return found[-1].removeprefix("vllm-").removesuffix(".dist-info") if found else None


def _asked(program: Path, python: Path, added: Mapping[str, str]) -> dict[str, Any]:
    settings = own_settings(cpu=False, prefix=python.parent.parent, threads=None)
    try:
        answer = subprocess.run(
            [str(python), "-c", _SCRIPT.read_text("utf-8")],
            env=vllm_environment(os.environ, settings, added),
            cwd="/",  # nothing in the user's folder can stand in for a package
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _no_vllm(program, f"it did not answer within {PROBE_TIMEOUT_S:.0f} s", ()) from None
    except OSError as error:
        raise _no_vllm(program, f"its Python cannot be run: {error.strerror}", ()) from None
    lines = clean(answer.stderr.decode("utf-8", "replace")).splitlines()
    if answer.returncode:
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        raise _no_vllm(program, f"vLLM cannot be imported: {last[:300]}", tuple(lines[-12:]))
    try:
        facts: dict[str, Any] = json.loads(answer.stdout.decode("utf-8", "replace").strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise _no_vllm(program, "its answer cannot be read", tuple(lines[-12:])) from None
    return facts


def _no_vllm(program: Path, what: str, tail: tuple[str, ...]) -> EngineError:
    fix = "Point engine.binary, --engine-binary or BENCHCTL_VLLM at the program `vllm` of a working installation."
    return EngineError(f"This vLLM cannot be used: {what}", kind="launch", where=str(program), fix=fix, log_tail=tail)


def _remembered(program: Path, python: Path, added: Mapping[str, str]) -> Path:
    """Return the file that keeps the answer of this very installation: another package or program, another file."""
    stamps: list[object] = [str(program), str(python), _SCRIPT.read_text("utf-8"), sorted(added.items())]
    for packages in sorted((python.parent.parent / "lib").glob("python3*/site-packages")):
        stamps += [(entry.name, entry.stat().st_mtime_ns) for entry in sorted(packages.glob("*.dist-info"))]
    key = hashlib.sha256(json.dumps(stamps).encode()).hexdigest()[:16]
    return cache_folder() / "probes" / f"vllm-{key}.json"


def _read(file: Path) -> dict[str, Any] | None:
    try:
        facts = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _write(file: Path, facts: Mapping[str, Any]) -> None:
    """Keep the answer; where that cannot be, the next probe asks again."""
    if file.exists():
        return
    try:
        with unfinished(file) as part:
            part.write_text(json.dumps(facts), "utf-8")
            finish(part, file)
    except OSError:
        return
