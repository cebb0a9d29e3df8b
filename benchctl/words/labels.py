"""Marks beside the name of an arm."""

from __future__ import annotations

from collections.abc import Sequence


def lossy_label(settings: Sequence[str]) -> str:
    """Return the suffix of an arm's name in tables: empty, or ` (lossy by design: …)`."""
    return f" (lossy by design: {', '.join(settings)})" if settings else ""
