"""What a GGUF file says of its model: the facts that a report names and an engine adapter asks for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchctl.models.ggml_types import FILE_TYPES
from benchctl.models.gguf_header import GgufHeader, Tensor, read_header
from benchctl.models.shards import all_shards

Memory = Literal["attention", "hybrid", "recurrent"]
"""How a model keeps what it has read: a KV cache, a recurrent state, or both."""

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_RECURRENT = re.compile(r"(?:ssm_|time_mix_|shortconv\.)")
_ATTENTION = re.compile(r"attn_(?:q|k|v|qkv|kv_a_mqa|q_a|kv_b|k_b)\.")


@dataclass(frozen=True)
class TensorGroup:
    """All tensors of one type."""

    count: int
    bytes: int


@dataclass(frozen=True)
class GgufFacts:
    """A model by its header. What the header does not say is None."""

    architecture: str | None
    name: str | None
    parameters: int
    file_type: str | None
    """The mix that its maker announced, such as `q4_k_m`; `tensor_types` is what is really there."""
    tensor_types: dict[str, TensorGroup]
    """By GGML type, most bytes first."""
    tensor_bytes: int
    bits_per_weight: float | None
    """Of all tensors, 8 · bytes / parameters; None when a tensor's type is not known."""
    context_length: int | None
    vocab_size: int | None
    tokenizer_model: str | None
    tokenizer_pre: str | None
    bos_token_id: int | None
    eos_token_id: int | None
    has_chat_template: bool
    layers: int | None
    mtp_layers: int
    """Multi-token-prediction heads inside this file, for `draft-mtp`."""
    memory: Memory
    recurrent_layers: tuple[int, ...]
    """Layers that carry a recurrent state, from 0; in some architectures they attend as well."""
    files: int
    version: int

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain JSON data."""
        return {**asdict(self), "recurrent_layers": list(self.recurrent_layers)}


def read_facts(path: Path) -> GgufFacts:
    """Read the facts of a model from its file, or of all shards from any of them. Raises UsageError."""
    headers = [read_header(shard) for shard in all_shards(path)]
    return facts_of(headers)


def facts_of(headers: list[GgufHeader]) -> GgufFacts:
    """Return the facts of a model from the headers of its files, first one first."""
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    parameters = sum(tensor.elements for tensor in tensors)
    total = sum(tensor.nbytes or 0 for tensor in tensors)
    complete = parameters > 0 and all(tensor.nbytes is not None for tensor in tensors)
    architecture = first.text("general.architecture")
    file_type = first.integer("general.file_type")
    memory, recurrent = _memory(tensors)
    return GgufFacts(
        architecture=architecture,
        name=first.text("general.name"),
        parameters=parameters,
        file_type=None if file_type is None else FILE_TYPES.get(file_type, f"file type {file_type}"),
        tensor_types=_tensor_types(tensors),
        tensor_bytes=total,
        bits_per_weight=round(8 * total / parameters, 3) if complete else None,
        context_length=first.integer(f"{architecture}.context_length"),
        vocab_size=first.count("tokenizer.ggml.tokens"),
        tokenizer_model=first.text("tokenizer.ggml.model"),
        tokenizer_pre=first.text("tokenizer.ggml.pre"),
        bos_token_id=first.integer("tokenizer.ggml.bos_token_id"),
        eos_token_id=first.integer("tokenizer.ggml.eos_token_id"),
        has_chat_template=bool(first.text("tokenizer.chat_template")),
        layers=first.integer(f"{architecture}.block_count"),
        mtp_layers=first.integer(f"{architecture}.nextn_predict_layers") or 0,
        memory=memory,
        recurrent_layers=recurrent,
        files=len(headers),
        version=first.version,
    )


def _tensor_types(tensors: list[Tensor]) -> dict[str, TensorGroup]:
    counts = Counter(tensor.type_name for tensor in tensors)
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type_name] += tensor.nbytes or 0
    return {name: TensorGroup(counts[name], sizes[name]) for name in sorted(counts, key=lambda name: -sizes[name])}


def _memory(tensors: list[Tensor]) -> tuple[Memory, tuple[int, ...]]:
    """Tell from tensor names: state-space, RWKV and short-convolution blocks carry a recurrent state."""
    recurrent: set[int] = set()
    attending: set[int] = set()
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match and _RECURRENT.match(match[2]):
            recurrent.add(int(match[1]))
        elif match and _ATTENTION.match(match[2]):
            attending.add(int(match[1]))
    if not recurrent:
        return "attention", ()
    return ("hybrid" if attending else "recurrent"), tuple(sorted(recurrent))
