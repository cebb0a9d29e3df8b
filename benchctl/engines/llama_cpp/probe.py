"""Probes a llama-server by its `--help`, `--version` and `--list-devices`, and hashes its files."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from benchctl.engines.base import Capabilities
from benchctl.engines.common.launched_server import Probe
from benchctl.engines.common.log import clean
from benchctl.engines.common.process import engine_environment
from benchctl.engines.common.programs import NoAnswerError, short_run, sibling_hashes
from benchctl.engines.llama_cpp.requests import REQUEST_FIELDS
from benchctl.errors import EngineError
from benchctl.models.files import file_sha256
from benchctl.recipes.speculation import NEEDS_DRAFT_MODEL, SPECULATION_TYPES

Dialect = Literal["current", "legacy", "ik"]
"""The dialect of options: llama.cpp's since April 2026, its older one, and ik_llama.cpp's. The flag of a recipe's key
is looked up in the help, not by the dialect: builds in between have some flags of each."""

_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*)(?:,\s+(?=-))?")
_REMOVED = re.compile(r"the argument has been removed\.?\s*(?:use\s+(?P<instead>.+?))?(?:\s*\(env:.*)?$")
_DEFAULT = re.compile(r"\(default: (-?\d{1,15})\b")
_MOST_FLAGS = 4096
_LONGEST_LINE = 4096
OWN_NAMES = {
    "draft": "draft-simple",
    **{name: f"draft-{name}" for name in ("mtp", "eagle3", "dflash", "dspark")},
}
"""Names by which builds of spring 2026 (upstream pull request 22964) and ik_llama.cpp call types of benchctl's."""
_TYPE_NAME = re.compile(r"(?<![\w-])[a-z][a-z0-9-]*[a-z0-9](?![\w-])")
_LISTED = re.compile(rf"{_TYPE_NAME.pattern}(?:\s*[,|]\s*{_TYPE_NAME.pattern}){{2,}}")
_SPACED = re.compile(r"(?<=\w) - (?=\w)")
_FLAG_INDENT = 12
"""ik_llama.cpp's help indents options by 2 or 9 spaces; what is indented further goes on with a description."""
MTP_SWITCH = "--multi-token-prediction"
"""A flag of older ik_llama.cpp, which has no type for it: turns on the heads inside the target."""

SERVER_FLAGS = frozenset({"--model", "--ctx-size", "--port", "--parallel", "--batch-size"})
"""Every llama-server has all of these flags, and no other program does."""


@dataclass(frozen=True)
class Flag:
    """An option of the binary under all its names."""

    names: tuple[str, ...]
    metavar: str
    description: str

    @property
    def removed(self) -> bool:
        """Whether the help lists it only as removed."""
        return _REMOVED.search(self.description) is not None

    @property
    def replacement(self) -> str | None:
        """The flag that the help names in place of a removed one."""
        match = _REMOVED.search(self.description)
        return match["instead"] if match else None

    @property
    def default(self) -> int | None:
        """The whole-number default that the help states."""
        match = _DEFAULT.search(self.description)
        return int(match[1]) if match else None


def normalise(name: str) -> str:
    """Return a flag as the binary compares it: in long names an underscore is a dash."""
    return name.replace("_", "-") if name.startswith("--") else name


class Flags:
    """The options of a binary, found by any of their names."""

    def __init__(self, flags: tuple[Flag, ...]) -> None:
        self.all = flags
        self._by_name: Mapping[str, Flag] = {name: flag for flag in flags for name in flag.names}

    def get(self, name: str) -> Flag | None:
        """Return the option called `name`, also a removed option."""
        return self._by_name.get(normalise(name))

    def all_names(self, name: str) -> tuple[str, ...]:
        """Return all names of an option; none where the binary lacks it."""
        return flag.names if (flag := self.get(name)) else ()

    def __contains__(self, name: str) -> bool:
        flag = self.get(name)
        return flag is not None and not flag.removed

    def first(self, *names: str) -> str | None:
        """Return the first of `names` that the binary knows."""
        return next((name for name in names if name in self), None)

    def names(self) -> list[str]:
        """Return every name that works, sorted."""
        return sorted(name for flag in self.all if not flag.removed for name in flag.names)

    @property
    def dialect(self) -> Dialect:
        """`current` has `--spec-draft-n-max`; the help of those builds lists `--draft-max` too, as removed."""
        if self.first("--run-time-repack", "--spec-autotune"):  # which only ik_llama.cpp has
            return "ik"
        return "current" if "--spec-draft-n-max" in self else "legacy"

    @property
    def types_take_keys(self) -> bool:
        """Whether `--spec-type` takes a type's settings with it: `mtp:n_max=3,p_min=0.0`, as ik_llama.cpp's does."""
        kind = self.get("--spec-type")
        return kind is not None and _TYPE_WITH_KEYS.search(f"{kind.metavar} {kind.description}") is not None

    @property
    def takes_several_types(self) -> bool:
        """Whether `--spec-type` takes a list."""
        kind = self.get("--spec-type")
        return kind is not None and "comma-separated list" in kind.description

    def speculation_names(self) -> dict[str, str]:
        """Return every speculation type of the binary, and the binary's own name for it: none where a switch or the
        draft model alone turns it on.

        By benchctl's name where it has one, those first; of the others, which it need not know, as the help lists them.
        """
        kind = self.get("--spec-type")
        listed = [] if kind is None or kind.removed else [name for name in _type_names(kind) if name != "none"]
        own_names = {OWN_NAMES.get(name, name): name for name in listed}
        drafts = "--model-draft" in self and self.first("--draft-max", "--spec-draft-n-max") is not None
        if drafts and NEEDS_DRAFT_MODEL.isdisjoint(own_names):
            own_names["draft-simple"] = ""  # these builds speculate as soon as they are given a draft model
        if MTP_SWITCH in self:
            own_names.setdefault("draft-mtp", "")
        order = [*SPECULATION_TYPES, *own_names]
        return {name: own_names[name] for name in dict.fromkeys(order) if name in own_names}


_TYPE_WITH_KEYS = re.compile(r":\w+=")


def _type_names(kind: Flag) -> list[str]:
    """Return the words of an option's list of types: its values, else a list of three and more in its description."""
    values = _SPACED.sub("-", kind.metavar)  # ik_llama.cpp writes `ngram - map - k | ngram - mod`
    names = _TYPE_NAME.findall(values)
    if len(names) < 2:
        names = [name for listing in _LISTED.finditer(kind.description) for name in _TYPE_NAME.findall(listing[0])]
    return list(dict.fromkeys(names))


def parse_help(text: str) -> Flags:
    """Read the output of `llama-server --help`; text that is no such help gives no flags."""
    flags: list[Flag] = []
    for full_line in text.splitlines():
        line = full_line[:_LONGEST_LINE]
        if len(flags) >= _MOST_FLAGS:
            break
        indent = len(line) - len(line.lstrip(" "))
        line = line.lstrip(" ")
        if indent > _FLAG_INDENT or not line.startswith("-") or line.startswith("-----"):
            if flags and indent >= 6:
                last = flags[-1]
                if len(last.description) < _LONGEST_LINE:
                    flags[-1] = Flag(last.names, last.metavar, f"{last.description} {line.strip()}".strip())
            continue
        names: list[str] = []
        position = 0
        while match := _FLAG.match(line, position):
            names.append(normalise(match[1]))
            position = match.end()
            if not match[0].endswith((" ", ",")):
                break
        metavar, _, description = line[position:].strip().partition("  ")
        if line[position : position + 2] == "  ":  # Nothing between the name and its description.
            metavar, description = "", line[position:]
        if names:
            flags.append(Flag(tuple(names), metavar.strip(), description.strip()))
    return Flags(tuple(flags))


PROBE_TIMEOUT_S = 60.0
_LINE_CHARACTERS = 600
_MOST_DEVICES = 256
_VERSION = re.compile(
    r"version: (?:(?P<name>\S+) \(build (?P<b1>\d+), commit (?P<c1>\w+)\)|(?P<b2>\d+) \((?P<c2>\w+)\))"
)
_DEVICE = re.compile(r"^\s+(\w+): (.+)$", re.MULTILINE)


def probe_server(binary: Path, found_in: str, added: Mapping[str, str] = MappingProxyType({})) -> Probe[Flags]:
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
    version = _VERSION.search(output)
    line = version[0] if version else next((line for line in output.splitlines() if line.strip()), None)
    line = line and line[:_LINE_CHARACTERS]
    speculation = flags.speculation_names()
    capabilities = Capabilities(
        kind="llama.cpp",
        binary=binary,
        found_in=found_in,
        version=line,
        build=(version["b1"] or version["b2"]) if version else None,
        commit=(version["c1"] or version["c2"]) if version else None,
        speculation_types=tuple(speculation),
        request_fields=REQUEST_FIELDS,
        details={
            "dialect": flags.dialect,
            "has_synthetic": "--spec-synth-len" in flags,
            "devices": _devices(binary, flags, environment),
            "flags": flags.names(),
            "sha256": file_sha256(binary),
            "siblings": sibling_hashes(binary),
        },
    )
    return Probe(capabilities, flags)


def _run(binary: Path, question: str, environment: Mapping[str, str]) -> str:
    """Run the binary with an option; return what it prints on both streams."""
    text = ""
    try:
        answer = short_run([str(binary), question], environment, timeout_s=PROBE_TIMEOUT_S, one_stream=True)
        text = clean(answer.output.decode("utf-8", "replace"))
        message = f"It ended with status {answer.status} on {question}."
        # ik_llama.cpp's ends with 1 after its help.
        helped = answer.status == 1 and question == "--help" and all(name in parse_help(text) for name in SERVER_FLAGS)
        if answer.status == 0 or helped:
            return text
    except NoAnswerError as error:
        message = f"It did not answer {question}: {error}."
    except OSError as error:
        message = f"It cannot be run: {error.strerror}."
    fix = "Check that the file is a llama-server built for this machine and that it is executable (chmod +x)."
    last = tuple(line[:_LINE_CHARACTERS] for line in text.splitlines() if line.strip())[-5:]
    raise EngineError(message, kind="launch", where=str(binary), fix=fix, log_tail=last)


def _devices(binary: Path, flags: Flags, environment: Mapping[str, str]) -> list[str] | None:
    """Return the accelerators that the binary sees, as `CUDA0: NVIDIA …`; `None` when it cannot list them."""
    if "--list-devices" not in flags:
        return None
    output = _run(binary, "--list-devices", environment)
    devices = _DEVICE.findall(output.partition("Available devices:")[2])[:_MOST_DEVICES]
    return [f"{name}: {text}"[:_LINE_CHARACTERS] for name, text in devices]
