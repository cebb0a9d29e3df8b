"""What an engine that benchctl can install offers to `benchctl engines install`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

Backend = Literal["cpu", "cuda", "metal"]
Report = Callable[[str, int, int], None]
"""Called with what is being done, steps done and steps in all; 0 and 0 when that is not known."""


@dataclass(frozen=True)
class InstallOptions:
    """The options given; an installer refuses those that it does not support."""

    backend: Backend | None = None
    version: str | None = None
    sdist: Path | None = None
    jobs: int | None = None
    force: bool = False

    def named(self, *names: str) -> list[str]:
        """Return those of the options called `names` that were given, as they are written on the command line."""
        return [f"--{name}" for name in names if getattr(self, name) is not None]


@dataclass(frozen=True)
class Installed:
    """What is there now: a heading with lines below it for people, and the facts for programs."""

    heading: str
    lines: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)


class Installer(Protocol):
    """Installs one kind of engine for this machine."""

    title: str
    """The engine's name in lines of progress."""

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Install, or find what was installed before. Raises BenchctlError; UsageError for options it cannot take."""
        ...
