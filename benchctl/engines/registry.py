"""Making the engine that a recipe names, listing and installing engines, by the declared adapters."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, Protocol

from benchctl.engines.base import Engine
from benchctl.engines.common.programs import FoundBinary
from benchctl.errors import BenchctlError, EngineError, UsageError
from benchctl.paths import on_path
from benchctl.recipes.adapters import adapter_of, registered
from benchctl.recipes.engine_spec import EngineSpec


def make_engine(spec: EngineSpec, *, binary: str | None = None) -> Engine:
    """Return the engine of a recipe; `binary`, an option, outranks its own. Raises UsageError for an unknown kind."""
    engine: Engine = resolve_name(adapter_of(spec.kind).engine)(spec, binary=binary)
    return engine


@dataclass(frozen=True)
class FoundEngine:
    """An engine, or the fact that there is none of its kind (`found_in` is then `None`)."""

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
    engines = registered()
    inventory = [engine for adapter in engines.adapters.values() for engine in resolve_name(adapter.inventory)()]
    unusable = engines.broken.items()
    return inventory + [FoundEngine(kind, problem=reason, hint="Update or remove it.") for kind, reason in unusable]


@dataclass(frozen=True)
class Search:
    """Finds an engine's program: by the option, the recipe, the environment, PATH, then installed ones."""

    kind: str
    name: str
    """The engine's name in messages."""
    variable: str
    """The environment variable that may name it."""
    within: str
    """The program's path inside its folder, for the hint where a user names the folder."""
    install: str
    """Tells the user how to install it."""
    fallbacks: Callable[[], Sequence[FoundBinary]]
    """Returns the programs that run where nothing is named or on PATH, in order."""
    program: str | None = None
    """Looked up on PATH; a recipe that says just this names none in particular."""
    installs: str | None = None
    """The argument of `benchctl engines install` that installs it."""

    def find(self, recipe: str | None = None, option: str | None = None) -> FoundBinary:
        """Return the program to run. Raises UsageError for a wrong name, EngineError (`launch`) when there is none."""
        for value, found_in, where in ((option, "option", "--engine-binary "), (recipe, "recipe", "engine.binary: ")):
            optional = found_in == "recipe" and value == self.program
            if value is not None and (path := self._named(value, f"{where}{value}", optional=optional)):
                return FoundBinary(path, found_in)
        if programs := self.unnamed():
            return programs[0]
        raise EngineError(
            f"no {self.name} was found", kind="launch", where=self.kind, fix=self.install, installs=self.installs
        )

    def unnamed(self) -> list[FoundBinary]:
        """Return all that is found without a recipe or an option, the winner first. Raises UsageError."""
        programs = []
        if (named := os.environ.get(self.variable)) and (path := self._named(named, f"{self.variable}={named}")):
            programs.append(FoundBinary(path, "environment"))
        if self.program is not None and (located := on_path(self.program)):
            programs.append(FoundBinary(located, "PATH"))
        return [*programs, *self.fallbacks()]

    def inventory(self, describe: Callable[[FoundBinary, bool], FoundEngine], hint: str) -> list[FoundEngine]:
        """Return what is found; `describe` is called with each, and whether it runs; `hint`: what to do for one."""
        try:
            programs = self.unnamed()
        except BenchctlError as error:
            return [FoundEngine(self.kind, "environment", error.where, problem=error.what, hint=error.fix)]
        return [describe(program, number == 0) for number, program in enumerate(programs)] or [
            FoundEngine(self.kind, hint=hint)
        ]

    def _named(self, value: str, where: str, *, optional: bool = False) -> Path | None:
        """Return the program of a path, or of a name on PATH; `None` only if `optional`. Raises UsageError."""
        if os.sep not in value and not value.startswith("~"):
            if (program := on_path(value)) or optional:
                return program
            hint = f" To run the file in this folder, write ./{value}." if Path(value).is_file() else ""
            raise UsageError(f"there is no program called {value!r} on PATH", where=where, fix=f"{self.install}{hint}")
        path = Path(value).expanduser().absolute()
        if path.is_dir():
            raise UsageError("this is a folder, no program", where=where, fix=f"Did you mean {path / self.within}?")
        if not path.is_file():
            raise UsageError("there is no such program", where=where, fix="Correct the path, or leave it out.")
        if not os.access(path, os.X_OK):
            raise UsageError("this file may not be executed", where=where, fix=f"Run `chmod +x {path}` if it is one.")
        return path


Backend = Literal["cpu", "cuda", "metal", "vulkan", "rocm", "sycl"]
Report = Callable[[str, int, int], None]
"""Called with what is being done, steps done and steps in all; 0 and 0 when that is not known. A sentence, with its
full stop, stays on the screen."""


@dataclass(frozen=True)
class InstallOptions:
    """The options given; an installer refuses those that it does not support."""

    backend: Backend | None = None
    version: str | None = None
    sdist: Path | None = None
    jobs: int | None = None
    force: bool = False
    arch: str | None = None
    """What a build for CUDA is made for, as CMake's CUDA_ARCHITECTURES takes it; `None`: the cards of this machine."""

    def named(self, *names: str) -> list[str]:
        """Return those of the options called `names` that were given, as they stand on the command line."""
        return [f"--{name}" for name in names if getattr(self, name) is not None]


@dataclass(frozen=True)
class Installed:
    """The installed engine: a heading and lines for people, and facts for programs."""

    heading: str
    lines: tuple[str, ...]
    facts: Mapping[str, object] = field(default_factory=dict)


class Installer(Protocol):
    """Installs a kind of engine for this machine."""

    title: str
    """The engine's name in lines of progress."""

    def install(self, options: InstallOptions, report: Report) -> Installed:
        """Install, or find what was installed before. Raises BenchctlError; UsageError for options it cannot take."""
