"""Run as a script with the engine's Python (`python -I run.py --model …`), where benchctl is not installed.

Only the package `benchctl` is imported from the folder of this file. The packages beside it stay out of the engine's
environment.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def _find_benchctl() -> None:
    """Make `benchctl` importable from the folder above this file."""
    folder = Path(__file__).resolve().parents[3]
    spec = importlib.util.spec_from_file_location(
        "benchctl", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["benchctl"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    _find_benchctl()
    importlib.import_module("benchctl.engines.transformers.serving.main").main(sys.argv[1:])
