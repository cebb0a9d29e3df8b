"""The facts in a GGUF file that decide how its model runs (`benchctl models inspect`), and what differs in two."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.models.file_kind import check_kind
from benchctl.models.footprint import RecurrentState, kv_cache_bytes, recurrent_state
from benchctl.models.gguf_facts import GgufFacts, all_shards, experts_read, facts_of
from benchctl.models.gguf_header import ArrayPlace, GgufHeader, read_header
from benchctl.models.vocabulary import SpecialToken, differences, special_tokens

VERIFIED = (2, 5, 9)
"""Tokens of a verify, k + 1, for which `Inspection.experts_read` has a share."""


@dataclass(frozen=True)
class Inspection:
    """A model by its files. What is not in them is None; every text is untrusted."""

    path: Path
    size: int
    """Bytes of all files."""
    facts: GgufFacts
    refused_as: str | None
    """Why a run refuses these files: what they are in place of a model that generates text."""
    embedding_length: int | None
    vocabulary_sha256: str | None
    """The SHA-256 of the token texts in order. It is equal exactly where token ids mean the same."""
    special: tuple[SpecialToken, ...]
    chat_template: str | None
    recurrent: RecurrentState | None
    """The recurrent state of one sequence."""
    kv_bytes_per_token: int | None
    """In 16 bits."""
    sliding_window: int | None
    """Tokens; layers with such a window keep no more than that many in their cache."""

    @property
    def kv_bytes_at_context(self) -> int | None:
        """Bytes of KV cache when the whole context is filled; with a sliding window it takes less."""
        context = self.facts.context_length
        return None if context is None or self.kv_bytes_per_token is None else context * self.kv_bytes_per_token

    @property
    def experts_read(self) -> dict[str, float] | None:
        """Share of a layer's experts that a verify of so many tokens reads, chosen at random; `None` without any."""
        experts, used = self.facts.experts, self.facts.experts_used
        if not experts or not used:
            return None
        return {str(width): round(experts_read(used / experts, width), 4) for width in VERIFIED}

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        return {
            "path": str(self.path),
            "size": self.size,
            **self.facts.as_dict(),
            "refused_as": self.refused_as,
            "experts_read": self.experts_read,
            "embedding_length": self.embedding_length,
            "vocabulary_sha256": self.vocabulary_sha256,
            "special_tokens": [asdict(token) for token in self.special],
            "chat_template": self.chat_template,
            "recurrent_state": self.recurrent
            and {**asdict(self.recurrent), "bytes_per_sequence": self.recurrent.total},
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_at_context": self.kv_bytes_at_context,
            "sliding_window": self.sliding_window,
        }


def inspect_model(path: Path) -> Inspection:
    """Read the facts of a model's file, or of all its shards from any of them. Raises UsageError."""
    return inspection_of([read_header(shard) for shard in all_shards(path)])


def inspection_of(headers: Sequence[GgufHeader]) -> Inspection:
    """Return the facts in the headers of a model's files in order."""
    first, facts = headers[0], facts_of(list(headers))
    return Inspection(
        path=first.path,
        size=sum(header.path.stat().st_size for header in headers),
        facts=facts,
        refused_as=_refusal(headers),
        embedding_length=first.integer(f"{facts.architecture}.embedding_length"),
        vocabulary_sha256=_vocabulary_sha256(first),
        special=special_tokens(first),
        chat_template=first.text("tokenizer.chat_template"),
        recurrent=recurrent_state(first, facts.recurrent_layers),
        kv_bytes_per_token=kv_cache_bytes(first, facts.attention_layers),
        sliding_window=first.integer(f"{facts.architecture}.attention.sliding_window"),
    )


def _refusal(headers: Sequence[GgufHeader]) -> str | None:
    try:
        check_kind(headers)
    except UsageError as error:
        return error.what
    return None


def _vocabulary_sha256(header: GgufHeader) -> str | None:
    tokens = header.strings("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    return hashlib.sha256(b"".join(len(token).to_bytes(8, "little") + token for token in tokens)).hexdigest()


Changes = dict[str, tuple[str | None, str | None]]
"""By key or tensor, what the first model has and what the second; None on the side that lacks it. Texts are untrusted.
"""


@dataclass(frozen=True)
class Difference:
    """Everything that differs from the first model to the second."""

    first: Inspection
    second: Inspection
    metadata: Changes
    tensors: Changes
    """Type and shape, such as `bf16 256 × 776`; data is not compared."""
    vocabulary: tuple[str, ...]
    """Sentences; none when tokens and special tokens are the same."""

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        return {
            "one": self.first.as_dict(),
            "other": self.second.as_dict(),
            "same_vocabulary": not self.vocabulary,
            "vocabulary": list(self.vocabulary),
            "metadata": _as_list(self.metadata),
            "tensors": _as_list(self.tensors),
        }


def _as_list(changes: Changes) -> list[dict[str, str | None]]:
    return [{"name": name, "one": first, "other": second} for name, (first, second) in changes.items()]


def compare_models(first_model: Path, second_model: Path) -> Difference:
    """Compare two models by the headers of all their files. Raises UsageError."""
    first, second = ([read_header(shard) for shard in all_shards(path)] for path in (first_model, second_model))
    return Difference(
        first=inspection_of(first),
        second=inspection_of(second),
        metadata=_changes(_metadata(first[0]), _metadata(second[0])),
        tensors=_changes(_tensors(first), _tensors(second)),
        vocabulary=tuple(differences(first[0], second[0])),
    )


def _changes(first: Mapping[str, str], second: Mapping[str, str]) -> Changes:
    pairs = {name: (first.get(name), second.get(name)) for name in [*first, *second]}
    return {name: (ours, theirs) for name, (ours, theirs) in pairs.items() if ours != theirs}


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
    return {
        tensor.name: f"{tensor.type_name} {' × '.join(map(str, tensor.shape))}".rstrip()
        for header in headers
        for tensor in header.tensors
    }
