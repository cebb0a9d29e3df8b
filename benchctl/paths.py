"""Where things lie: the per-user cache, and the recipes and prompt suites that benchctl ships."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def cache_folder() -> Path:
    """Return the per-user folder of what need not be made twice (absolute; it may not exist yet).

    Engine builds, source archives and quantized models lie there.

    `$BENCHCTL_CACHE`, else `$XDG_CACHE_HOME/benchctl`, else `~/Library/Caches/benchctl` on macOS and
    `~/.cache/benchctl` elsewhere.
    """
    own = os.environ.get("BENCHCTL_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and Path(shared).is_absolute():  # the XDG specification ignores relative paths
        return Path(shared) / "benchctl"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "benchctl"
    return Path.home() / ".cache" / "benchctl"


def shipped_folder(name: str) -> Path:
    """Return the folder `recipes` or `prompts`: the wheel's copy first, then the checkout's."""
    inside = _PACKAGE / "shipped" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
