"""Which adapter runs which `engine.kind`: the table is in `benchctl.adapters`."""

from __future__ import annotations

import importlib

from benchctl.adapters import ADAPTERS, runnable
from benchctl.engines.base import Engine
from benchctl.errors import UsageError
from benchctl.recipes.schema import EngineSpec


def make_engine(spec: EngineSpec, *, binary: str | None = None) -> Engine:
    """Return the adapter for a recipe's engine; `binary` is the command line's option, which the recipe outranks.

    Raises UsageError for a kind that this version does not run.
    """
    place = ADAPTERS.get(spec.kind)
    if not place:
        raise UsageError(
            f"This version of benchctl does not run the engine `{spec.kind}`.",
            where="engine.kind",
            fix=f"It runs: {', '.join(runnable())}.",
        )
    module, _, name = place.partition(":")
    # Imported when an engine is made: it brings httpx.
    engine: Engine = getattr(importlib.import_module(module), name)(spec, binary=binary)
    return engine
