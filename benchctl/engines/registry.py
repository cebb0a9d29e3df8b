"""Making the engine that a recipe names, by the adapter that declares it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

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
    """Whether it is the one of its kind that runs when the recipe names none."""
    version: str | None = None
    build: str | None = None
    commit: str | None = None
    speculation_types: tuple[str, ...] = ()
    problem: str | None = None
    """Why it cannot be used."""
    hint: str | None = None
    """What to do to have one."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def find_engines() -> list[FoundEngine]:
    """Return what is found of every engine that an installed package brings, at least one entry each."""
    known = registered()
    found = [engine for adapter in known.adapters.values() for engine in load(adapter.inventory)()]
    return found + [FoundEngine(kind, problem=why, hint="Update or remove it.") for kind, why in known.broken.items()]
