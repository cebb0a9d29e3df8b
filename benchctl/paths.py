"""Where things lie: the user's cache and settings, programs on PATH, and what benchctl ships."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def cache_folder() -> Path:
    """Return the per-user folder of what need not be made twice (absolute; it may not exist yet).

    Engine builds, source archives and quantized models lie there.

    `$BENCHCTL_CACHE`, else `$XDG_CACHE_HOME/benchctl`, else `~/Library/Caches/benchctl` on macOS and
    `~/.cache/benchctl` elsewhere.
    """
    configured = os.environ.get("BENCHCTL_CACHE")
    if configured:
        return Path(configured).expanduser().absolute()
    shared = os.environ.get("XDG_CACHE_HOME")
    if shared and Path(shared).is_absolute():  # the XDG specification ignores relative paths
        return Path(shared) / "benchctl"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "benchctl"
    return Path.home() / ".cache" / "benchctl"


def config_folder() -> Path:
    """Return the per-user folder of what the user has allowed (absolute; it may not exist yet).

    `$XDG_CONFIG_HOME/benchctl`, else `~/Library/Application Support/benchctl` on macOS and `~/.config/benchctl`.
    """
    shared = os.environ.get("XDG_CONFIG_HOME")
    if shared and Path(shared).is_absolute():
        return Path(shared) / "benchctl"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "benchctl"
    return Path.home() / ".config" / "benchctl"


def on_path(name: str) -> Path | None:
    """Return the program of that bare name. Relative entries of PATH are passed over: they lead into any folder."""
    places = [folder for folder in os.environ.get("PATH", os.defpath).split(os.pathsep) if Path(folder).is_absolute()]
    program = None if os.sep in name else shutil.which(name, path=os.pathsep.join(places))
    return None if program is None else Path(program)


def prompts_file(name: str, recipe_folder: Path) -> Path | None:
    """Return the prompts that a recipe means: beside it, in the working directory, or shipped; None: there are none."""
    path = Path(name).expanduser()
    shipped = shipped_folder("prompts")
    places = [recipe_folder / path, Path.cwd() / path]
    if len(path.parts) == 1:
        places += [shipped / path, shipped / f"{path.name}.json"]
    # Unlike Path.is_file, this calls a name that is too long for a file none.
    return next((candidate for candidate in places if os.path.isfile(candidate)), None)  # noqa: PTH113


def shipped_folder(name: str) -> Path:
    """Return the folder `recipes`, `prompts` or `docs`: the wheel's copy first, then the checkout's."""
    inside = _PACKAGE / "shipped" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name
