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
    """A model that an engine can be given: its source as written, and its files (all shards in order).

    A served model has no files here; its `source` is `served:NAME`.
    """

    source: str
    files: tuple[ModelFile, ...]
    unquantized: Path | None = None
    """What it was quantized from for this run, the file or the first shard; None where it was taken as it is."""

    folder: Path | None = None
    """Of a Hugging Face model; `files` are then all files in it."""

    @property
    def path(self) -> Path:
        """What the engine is pointed at: the folder, the file, or the first shard."""
        return self.folder or self.files[0].path


@dataclass(frozen=True)
class ResolvedPair:
    """The target, and the draft where the recipe names it."""

    target: ResolvedModel
    draft: ResolvedModel | None
