"""The facts in a GGUF file that decide how its model runs: what `benchctl inspect` shows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchctl.models.gguf_facts import GgufFacts, facts_of
from benchctl.models.gguf_header import GgufHeader, read_header
from benchctl.models.sequence_memory import RecurrentState, kv_cache_bytes, recurrent_state
from benchctl.models.shards import all_shards
from benchctl.models.special_tokens import SpecialToken, special_tokens


@dataclass(frozen=True)
class Inspection:
    """A model by its files. What is not in them is None; every text is untrusted."""

    path: Path
    size: int
    """Bytes of all files."""
    facts: GgufFacts
    embedding_length: int | None
    vocabulary_sha256: str | None
    """Of the token texts in order: equal for two models exactly when token ids mean the same to both."""
    special: tuple[SpecialToken, ...]
    chat_template: str | None
    recurrent: RecurrentState | None
    """Of one sequence."""
    kv_bytes_per_token: int | None
    """In 16 bits."""
    sliding_window: int | None
    """Tokens; layers with such a window keep no more than that many in their cache."""

    @property
    def kv_bytes_at_context(self) -> int | None:
        """Bytes of KV cache when the whole context is filled; with a sliding window it takes less."""
        context = self.facts.context_length
        return None if context is None or self.kv_bytes_per_token is None else context * self.kv_bytes_per_token

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain JSON data."""
        return {
            "path": str(self.path),
            "size": self.size,
            **self.facts.as_dict(),
            "embedding_length": self.embedding_length,
            "vocabulary_sha256": self.vocabulary_sha256,
            "special_tokens": [asdict(token) for token in self.special],
            "chat_template": self.chat_template,
            "recurrent_state": None
            if self.recurrent is None
            else {**asdict(self.recurrent), "bytes_per_sequence": self.recurrent.total},
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_at_context": self.kv_bytes_at_context,
            "sliding_window": self.sliding_window,
        }


def inspect_model(path: Path) -> Inspection:
    """Read the facts of a model's file, or of all its shards from any of them. Raises UsageError."""
    return inspection_of([read_header(shard) for shard in all_shards(path)])


def inspection_of(headers: Sequence[GgufHeader]) -> Inspection:
    """Return the facts in the headers of a model, first one first."""
    first, facts = headers[0], facts_of(list(headers))
    return Inspection(
        path=first.path,
        size=sum(header.path.stat().st_size for header in headers),
        facts=facts,
        embedding_length=first.integer(f"{facts.architecture}.embedding_length"),
        vocabulary_sha256=_vocabulary_sha256(first),
        special=special_tokens(first),
        chat_template=first.text("tokenizer.chat_template"),
        recurrent=recurrent_state(first, facts.recurrent_layers),
        kv_bytes_per_token=kv_cache_bytes(first, facts.attention_layers),
        sliding_window=first.integer(f"{facts.architecture}.attention.sliding_window"),
    )


def _vocabulary_sha256(header: GgufHeader) -> str | None:
    tokens = header.strings("tokenizer.ggml.tokens")
    if tokens is None:
        return None
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(len(token).to_bytes(8, "little") + token)
    return digest.hexdigest()
