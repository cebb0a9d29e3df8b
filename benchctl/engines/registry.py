"""Making the engine that a recipe names, by the adapter that declares it."""

from __future__ import annotations

from benchctl.engines.base import Engine
from benchctl.recipes.adapters import adapter_of, load
from benchctl.recipes.engine_spec import EngineSpec


def make_engine(spec: EngineSpec, *, binary: str | None = None) -> Engine:
    """Return the engine of a recipe; `binary` is the command line's option, which the recipe outranks.

    Raises UsageError for a kind that no installed package brings.
    """
    engine: Engine = load(adapter_of(spec.kind).engine)(spec, binary=binary)
    return engine
