"""Probing a binary: `--help`, `--version`, `--list-devices`, and the hashes of its files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchctl.engines.base import Capabilities
from benchctl.engines.common.log import clean
from benchctl.engines.common.process import engine_environment
from benchctl.engines.common.programs import sibling_hashes
from benchctl.engines.common.short_run import NoAnswerError, short_run
from benchctl.engines.llama_cpp.dialect import SERVER_FLAGS, Flags, parse_help
from benchctl.errors import EngineError
from benchctl.models.hashes import file_sha256

PROBE_TIMEOUT_S = 60.0
_LINE_CHARACTERS = 600
_MOST_DEVICES = 256
_VERSION = re.compile(
    r"version: (?:(?P<name>\S+) \(build (?P<b1>\d+), commit (?P<c1>\w+)\)|(?P<b2>\d+) \((?P<c2>\w+)\))"
)
_DEVICE = re.compile(r"^\s+(\w+): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Probe:
    """What probing found: the neutral capabilities, and the flags that the adapter writes commands with."""

    binary: Path
    capabilities: Capabilities
    flags: Flags


def probe_server(binary: Path, found_in: str, added: Mapping[str, str] = MappingProxyType({})) -> Probe:
    """Probe what `binary` can do, in the environment that it will run in; `added` is the recipe's `engine.env`.

    Raises EngineError (`launch`) when it is no llama-server that runs here.
    """
    environment = engine_environment(os.environ, added)
    flags = parse_help(_run(binary, "--help", environment))
    missing = sorted(name for name in SERVER_FLAGS if name not in flags)
    if missing:
        raise EngineError(
            f"This is not llama-server: its --help lacks {', '.join(missing)}.",
            kind="launch",
            where=str(binary),
            fix="Point engine.binary, --engine-binary or BENCHCTL_LLAMA_SERVER at llama.cpp's llama-server.",
        )
    output = _run(binary, "--version", environment)
    found = _VERSION.search(output)
    line = found[0] if found else next((line for line in output.splitlines() if line.strip()), None)
    line = line and line[:_LINE_CHARACTERS]
    speculation = flags.speculation_names()
    capabilities = Capabilities(
        kind="llama.cpp",
        binary=binary,
        found_in=found_in,
        version=line,
        build=(found["b1"] or found["b2"]) if found else None,
        commit=(found["c1"] or found["c2"]) if found else None,
        speculation_types=tuple(speculation),
        option_names=tuple(flag.names for flag in flags.all),
        request_fields=frozenset({"tools", "response_format", "chat_template_kwargs"}),
        details={
            "dialect": flags.dialect,
            "has_synthetic": "--spec-synth-len" in flags,
            "devices": _devices(binary, flags, environment),
            "flags": flags.names(),
            "sha256": file_sha256(binary),
            "siblings": sibling_hashes(binary),
        },
    )
    return Probe(binary, capabilities, flags)


def _run(binary: Path, question: str, environment: Mapping[str, str]) -> str:
    """Run the binary with one option; return what it prints on both streams."""
    fix = "Check that the file is a llama-server built for this machine and that it is executable (chmod +x)."
    try:
        answer = short_run([str(binary), question], environment, timeout_s=PROBE_TIMEOUT_S, one_stream=True)
    except NoAnswerError as error:
        raise EngineError(
            f"It did not answer {question}: {error}.", kind="launch", where=str(binary), fix=fix
        ) from error
    except OSError as error:
        raise EngineError(f"It cannot be run: {error.strerror}.", kind="launch", where=str(binary), fix=fix) from error
    text = clean(answer.output.decode("utf-8", "replace"))
    if answer.status != 0:
        last = tuple(line[:_LINE_CHARACTERS] for line in text.splitlines() if line.strip())[-5:]
        raise EngineError(
            f"It ended with status {answer.status} on {question}.",
            kind="launch",
            where=str(binary),
            fix=fix,
            log_tail=last,
        )
    return text


def _devices(binary: Path, flags: Flags, environment: Mapping[str, str]) -> list[str] | None:
    """Return the accelerators that the binary sees, as `CUDA0: NVIDIA …`; `None` when it cannot list them."""
    if "--list-devices" not in flags:
        return None
    output = _run(binary, "--list-devices", environment)
    found = _DEVICE.findall(output.partition("Available devices:")[2])[:_MOST_DEVICES]
    return [f"{name}: {text}"[:_LINE_CHARACTERS] for name, text in found]
