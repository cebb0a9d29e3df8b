"""Run a benchmark recipe: launch its engines, measure every prompt, and store the records."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """For scripts `benchctl.measure(recipe)` is a function, and this package has its name: `benchctl.api.measure`."""

    def __call__(self, *arguments: object, **options: object) -> Any:  # noqa: ANN401 - a benchctl.api.Run
        return import_module("benchctl.api").measure(*arguments, **options)


sys.modules[__name__].__class__ = _CallablePackage
