"""What an installed SGLang can do, as it said when it was probed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """One option of SGLang's argument parser."""

    flag: bool
    """Whether it takes no value."""
    choices: tuple[str, ...] | None


@dataclass(frozen=True)
class Package:
    """What the installed package says of itself."""

    version: str
    algorithms: tuple[str, ...]
    options: Mapping[str, Option]
