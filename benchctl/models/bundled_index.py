"""The models that come with benchctl, as their index lists them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl.recipes.source import bundled_folder


@dataclass(frozen=True)
class BundledModel:
    """One entry of `index.json`."""

    name: str
    path: Path
    role: str
    """What it is for: `target`, `draft`, or a draft of one kind of speculation."""
    architecture: str
    """`general.architecture` of the file."""
    parameters: int
    size: int
    """Bytes."""
    sha256: str
    licence: str

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as plain JSON data."""
        return {**asdict(self), "path": str(self.path)}


def bundled_models() -> tuple[BundledModel, ...]:
    """Return the bundled models in the index's order; empty when this installation has none."""
    folder = bundled_folder()
    try:
        index: dict[str, dict[str, Any]] = json.loads((folder / "index.json").read_text("utf-8"))
    except FileNotFoundError:
        return ()
    return tuple(
        BundledModel(
            name=name,
            path=folder / entry["file"],
            role=entry["role"],
            architecture=entry["architecture"],
            parameters=entry["parameters"],
            size=entry["bytes"],
            sha256=entry["sha256"],
            licence=entry["licence"],
        )
        for name, entry in index.items()
    )
