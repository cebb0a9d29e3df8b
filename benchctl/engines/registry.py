"""Making the engine that a recipe names, listing and installing engines, by the declared adapters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from benchctl.engines.base import Engine
from benchctl.offers import load
from benchctl.recipes.adapters import adapter_of, registered
from benchctl.recipes.engine_spec import EngineSpec


def make_engine(spec: EngineSpec, *, binary: str | None = None) -> Engine:
    """Return the engine of a recipe; `binary` is the command line's option, which outranks the recipe's.

    Raises UsageError for a kind that no installed package brings.
    """
    engine: Engine = load(adapter_of(spec.kind).engine)(spec, binary=binary)
    return engine


@dataclass(frozen=True)
class FoundEngine:
    """One engine, or the fact that there is none of its kind (`found_in` is then `None`)."""

    kind: str
    found_in: str | None = None
    where: str | None = None
    runs: bool = False
    """Whether it is the engine of its kind that runs when the recipe names none."""
    version: str | None = None
    build: str | None = None
    commit: str | None = None
    speculation_types: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    """Accelerators, as its program lists them."""
    problem: str | None = None
    """Why it cannot be used."""
    hint: str | None = None
    """What to do to have it."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def find_engines() -> list[FoundEngine]:
    """Return what is found of every engine that an installed package brings, an entry each at least."""
    known = registered()
    found = [engine for adapter in known.adapters.values() for engine in load(adapter.inventory)()]
    return found + [FoundEngine(kind, problem=why, hint="Update or remove it.") for kind, why in known.broken.items()]


Backend = Literal["cpu", "cuda", "metal", "vulkan", "rocm", "sycl"]
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
        """Return those of the options called `names` that were given, as they stand on the command line."""
        return [f"--{name}" for name in names if getattr(self, name) is not None]


@dataclass(frozen=True)
class Installed:
    """What is there now: a heading with lines below it for people, and the facts for programs."""

    heading: str
    lines: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)


class Installer(Protocol):
    """Installs a kind of engine for this machine."""

    title: str
    """The engine's name in lines of progress."""

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Install, or find what was installed before. Raises BenchctlError; UsageError for options it cannot take."""
