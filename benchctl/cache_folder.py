"""Where benchctl keeps what it need not make twice: engine builds, source archives, quantized models."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """Return the per-user cache folder (absolute; it may not exist yet).

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
