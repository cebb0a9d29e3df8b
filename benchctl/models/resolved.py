"""Model files as they lie on this machine, after a recipe's source was resolved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ModelFile:
    """One file of a model and what identifies it."""

    path: Path
    size: int
    """Bytes."""
    sha256: str


@dataclass(frozen=True)
class ResolvedModel:
    """A model that an engine can be given: its source as written, and its files (all shards, first one first)."""

    source: str
    files: tuple[ModelFile, ...]
    unquantized: Path | None = None
    """What it was quantized from for this run, the file or the first shard; None where it was taken as it is."""

    @property
    def path(self) -> Path:
        """What the engine is pointed at: the file, or the first shard."""
        return self.files[0].path


@dataclass(frozen=True)
class ResolvedPair:
    """The target, and the draft where the recipe names one."""

    target: ResolvedModel
    draft: ResolvedModel | None
