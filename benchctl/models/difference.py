"""What differs between two GGUF files: metadata, tensors, vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.models.gguf_header import ArrayPlace, GgufHeader, Tensor, read_header
from benchctl.models.inspection import Inspection, inspection_of
from benchctl.models.shards import all_shards
from benchctl.models.vocabulary import differences


@dataclass(frozen=True)
class Change:
    """One key or tensor; None on the side that lacks it. Texts are untrusted."""

    name: str
    one: str | None
    other: str | None


@dataclass(frozen=True)
class Difference:
    """Everything that differs from the first model to the second."""

    one: Inspection
    other: Inspection
    metadata: tuple[Change, ...]
    tensors: tuple[Change, ...]
    """Type and shape, such as `bf16 256 × 776`; data is not compared."""
    vocabulary: tuple[str, ...]
    """Sentences; none when tokens and special tokens are the same."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        changes = {"metadata": self.metadata, "tensors": self.tensors}
        return {
            "one": self.one.as_dict(),
            "other": self.other.as_dict(),
            "same_vocabulary": not self.vocabulary,
            "vocabulary": list(self.vocabulary),
            **{
                kind: [{"name": change.name, "one": change.one, "other": change.other} for change in found]
                for kind, found in changes.items()
            },
        }


def compare_models(one: Path, other: Path) -> Difference:
    """Compare two models by the headers of all their files. Raises UsageError."""
    first, second = ([read_header(shard) for shard in all_shards(path)] for path in (one, other))
    return Difference(
        one=inspection_of(first),
        other=inspection_of(second),
        metadata=_changes(_metadata(first[0]), _metadata(second[0])),
        tensors=_changes(_tensors(first), _tensors(second)),
        vocabulary=tuple(differences(first[0], second[0])),
    )


def _changes(one: Mapping[str, str], other: Mapping[str, str]) -> tuple[Change, ...]:
    names = dict.fromkeys([*one, *other])
    return tuple(Change(name, one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name))


def _metadata(header: GgufHeader) -> dict[str, str]:
    """Return every value as text; arrays, which may be long, by their length and content's hash."""
    return {
        key: f"{value.count} values, SHA-256 {header.array_sha256(key)[:12]}"
        if isinstance(value, ArrayPlace)
        else str(value)
        for key, value in header.metadata.items()
        if not key.startswith("split.")
    }


def _tensors(headers: Sequence[GgufHeader]) -> dict[str, str]:
    return {tensor.name: _described(tensor) for header in headers for tensor in header.tensors}


def _described(tensor: Tensor) -> str:
    return f"{tensor.type_name} {' × '.join(map(str, tensor.shape))}".rstrip()
