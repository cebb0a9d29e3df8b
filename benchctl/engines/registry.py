"""Which adapter runs which `engine.kind`."""

from __future__ import annotations

from collections.abc import Callable

from benchctl.engines.base import Engine
from benchctl.errors import UsageError
from benchctl.recipes.schema import EngineSpec


def _llama_cpp(spec: EngineSpec, binary: str | None) -> Engine:
    # Imported when an engine is made: it brings httpx.
    from benchctl.engines.llama_cpp.engine import LlamaCppEngine

    return LlamaCppEngine(spec, binary=binary)


_ADAPTERS: dict[str, Callable[[EngineSpec, str | None], Engine]] = {"llama.cpp": _llama_cpp}


def make_engine(spec: EngineSpec, *, binary: str | None = None) -> Engine:
    """Return the adapter for a recipe's engine; `binary` is the command line's option, which the recipe outranks.

    Raises UsageError for a kind that this version does not run.
    """
    adapter = _ADAPTERS.get(spec.kind)
    if adapter is None:
        raise UsageError(
            f"This version of benchctl does not run the engine `{spec.kind}`.",
            where="engine.kind",
            fix=f"It runs: {', '.join(sorted(_ADAPTERS))}.",
        )
    return adapter(spec, binary)
