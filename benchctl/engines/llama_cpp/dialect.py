"""What a llama-server binary can do by its own help text: its flags, their aliases, and which were removed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from benchctl.recipes.speculation import SPECULATION_TYPES

Dialect = Literal["current", "legacy"]

_FLAG = re.compile(r"(--?[A-Za-z][\w.-]*)(?:,\s+(?=-))?")
_REMOVED = re.compile(r"the argument has been removed\.?\s*(?:use\s+(?P<instead>.+?))?(?:\s*\(env:.*)?$")
_DEFAULT = re.compile(r"\(default: (-?\d{1,15})\b")
_MOST_FLAGS = 4096
_LONGEST_LINE = 4096
_OWN_NAMES = {"draft": "draft-simple"}
"""How builds of spring 2026 called a type (upstream pull request 22964 renamed it)."""

SERVER_FLAGS = frozenset({"--model", "--ctx-size", "--port", "--parallel", "--batch-size"})
"""What every llama-server has, and nothing else together."""


@dataclass(frozen=True)
class Flag:
    """One option of the binary under all its names."""

    names: tuple[str, ...]
    metavar: str
    description: str

    @property
    def removed(self) -> bool:
        """Whether the help lists it only as removed."""
        return _REMOVED.search(self.description) is not None

    @property
    def replacement(self) -> str | None:
        """What the help names in place of a removed flag."""
        found = _REMOVED.search(self.description)
        return found["instead"] if found else None

    @property
    def default(self) -> int | None:
        """The whole-number default that the help states."""
        found = _DEFAULT.search(self.description)
        return int(found[1]) if found else None


def normalise(name: str) -> str:
    """Return a flag as the binary compares it: in long names an underscore is a dash."""
    return name.replace("_", "-") if name.startswith("--") else name


class Flags:
    """The options of a binary, found by any of their names."""

    def __init__(self, flags: tuple[Flag, ...]) -> None:
        self.all = flags
        self._by_name: Mapping[str, Flag] = {name: flag for flag in flags for name in flag.names}

    def get(self, name: str) -> Flag | None:
        """Return the option called `name`, a removed one too."""
        return self._by_name.get(normalise(name))

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
        return "current" if "--spec-draft-n-max" in self else "legacy"

    def speculation_names(self) -> dict[str, str]:
        """Return benchctl's name for every speculation type of the binary, and the binary's own name for it.

        Builds of the legacy dialect speculate as soon as they are given a draft model, and know nothing else.
        """
        if self.dialect == "legacy":
            return {"draft-simple": ""} if "--draft-max" in self and "--model-draft" in self else {}
        kind = self.get("--spec-type")
        if kind is None or kind.removed:
            return {"draft-simple": ""} if "--model-draft" in self else {}
        own_names = {_OWN_NAMES.get(name, name): name for name in re.findall(r"[a-z0-9][a-z0-9-]*", kind.metavar)}
        return {name: own_names[name] for name in SPECULATION_TYPES if name in own_names}


def parse_help(text: str) -> Flags:
    """Read the output of `llama-server --help`; text that is no such help gives no flags."""
    flags: list[Flag] = []
    for whole in text.splitlines():
        line = whole[:_LONGEST_LINE]
        if len(flags) >= _MOST_FLAGS:
            break
        if not line.startswith("-") or line.startswith("-----"):
            if flags and line.startswith("      "):
                last = flags[-1]
                if len(last.description) < _LONGEST_LINE:
                    flags[-1] = Flag(last.names, last.metavar, f"{last.description} {line.strip()}".strip())
            continue
        names: list[str] = []
        position = 0
        while found := _FLAG.match(line, position):
            names.append(normalise(found[1]))
            position = found.end()
            if not found[0].endswith((" ", ",")):
                break
        metavar, _, description = line[position:].strip().partition("  ")
        if line[position : position + 2] == "  ":  # Nothing between the name and its description.
            metavar, description = "", line[position:]
        if names:
            flags.append(Flag(tuple(names), metavar.strip(), description.strip()))
    return Flags(tuple(flags))
