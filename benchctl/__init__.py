"""benchctl: does speculative decoding pay on your models, your engine and your machine, and is the output unchanged?

From Python: `benchctl.open_run(path)` reads a run, `benchctl.open_runs(folder)` many, `benchctl.measure(recipe)` makes
one; see docs/python.md.
"""

TYPE_CHECKING = False  # the name that type checkers know; `typing` itself is not imported before it is needed
if TYPE_CHECKING:
    from benchctl.api import measure, open_run, open_runs

__version__ = "0.1.0"
__all__ = ["__version__", "measure", "open_run", "open_runs"]


def __getattr__(name: str) -> object:
    """Import the functions of benchctl.api when they are first used: `benchctl --help` needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module 'benchctl' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module("benchctl.api"), name)
