"""The expanded recipe as a manifest keeps it, those of older versions included."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchctl.recipes.adapters import adapter_of
from benchctl.recipes.schema import Recipe

_WRITTEN_FOR_EVERY_ENGINE: Mapping[str, object] = {
    "binary": None,
    "url": None,
    "api_key_env": None,
    "device": "auto",
    "dtype": "auto",
    "threads": None,
    "args": [],
    "env": {},
    "health_timeout_s": 300.0,
}
"""Keys of `engine` and their defaults, from when all engines had the same ones: they say nothing there."""


def stored_recipe(document: Mapping[str, Any]) -> Recipe:
    """Return the recipe that a manifest holds. Raises ValidationError, UsageError (no such engine here)."""
    engine = document.get("engine")
    if isinstance(engine, Mapping) and isinstance(engine.get("kind"), str):
        own = adapter_of(engine["kind"]).spec.model_fields
        former = {key for key, value in _WRITTEN_FOR_EVERY_ENGINE.items() if key in engine and engine[key] == value}
        document = {**document, "engine": {key: engine[key] for key in engine if key in own or key not in former}}
    return Recipe.model_validate(document)
