"""Probing which torch and transformers a Python has."""

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
from benchctl.engines.common.process import engine_environment
from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.transformers.find import INSTALL
from benchctl.engines.transformers.methods import METHODS
from benchctl.errors import EngineError

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


def probe_python(found: FoundBinary, added: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """Probe a Python; `added` is the recipe's `engine.env`. Raises EngineError (`launch`)."""
    env = engine_environment(os.environ, {**SETTINGS, **added})
    question = Question("transformers", found.path, found.path, _SCRIPT, env, added)
    facts = question.known() or question.ask(lambda what, tail: _unusable(found.path, what, tail))
    try:
        versions = {name: str(one["version"]) for name, one in facts["distributions"].items()}
        records = {name: one["record_sha256"] for name, one in facts["distributions"].items()}
        devices = tuple(map(str, facts["devices"]))
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
        speculation_types=tuple(METHODS),
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
    return Probe(capabilities, found.path, devices)


def _server_sha256() -> str:
    whole = hashlib.sha256()
    for file in sorted(SERVER.rglob("*.py")):
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


def _unusable(python: Path, what: str, tail: tuple[str, ...]) -> EngineError:
    return EngineError(
        f"This Python cannot run transformers: {what}", kind="launch", where=str(python), fix=INSTALL, log_tail=tail
    )
