"""benchctl: does speculative decoding pay on your models, your engine and your machine, and is the output unchanged?

From Python: `benchctl.open_run(path)` reads a run, `benchctl.measure(recipe)` makes one; see docs/python.md.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "measure", "open_run"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever it is; and only then is anything heavy imported
    if name == "measure":
        return import_module("benchctl.measure")  # a package that can be called
    if name == "open_run":
        return import_module("benchctl.api").open_run
    raise AttributeError(f"module 'benchctl' has no attribute {name!r}")
