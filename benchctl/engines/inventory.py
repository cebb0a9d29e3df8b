"""Every engine that this machine has: what `benchctl engines list` and `benchctl doctor` show."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchctl.recipes.adapters import load, registered


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
    found = [one for adapter in known.adapters.values() for one in load(adapter.inventory)()]
    return found + [FoundEngine(kind, problem=why, hint="Update or remove it.") for kind, why in known.broken.items()]
