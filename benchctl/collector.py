"""Keeping Python's garbage collector out of what is timed.

All streams of a cell share one event loop. A full collection walks every object of the process, and while it does no
arrival is noticed: with benchctl's libraries loaded that is tens of milliseconds, which would be read as an engine's.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def short_collections() -> Iterator[None]:
    """Leave all that exists out of collections meanwhile: they walk what is new alone. It costs nothing itself."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
