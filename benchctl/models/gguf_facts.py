"""A GGUF model in a file or several (`name-00001-of-00003.gguf`): its files, and the facts in their headers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchctl.errors import UsageError
from benchctl.models.gguf_header import GgufHeader, Tensor, file_types, read_header
from benchctl.text import one_line

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<total>\d{5})\.gguf\Z", re.IGNORECASE)


def shard_names(name: str) -> tuple[str, ...]:
    """Return the names of all shards, in order, of the model that the file `name` belongs to."""
    match = _SHARD.match(name)
    total = int(match["total"]) if match else 0
    if match is None or total == 0:
        return (name,)
    return tuple(f"{match['stem']}-{number:05d}-of-{match['total']}.gguf" for number in range(1, total + 1))


def model_name(path: Path) -> str:
    """Return what a model's file is called without its ending and without the number of its shard."""
    match = _SHARD.match(path.name)
    return match["stem"] if match else path.stem


def all_shards(path: Path) -> tuple[Path, ...]:
    """Return the files of a model in order, from any of them. Raises UsageError that names missing shards."""
    names = shard_names(path.name)
    if len(names) == 1:
        return (path,)
    paths = tuple(path.with_name(name) for name in names)
    missing = [shard.name for shard in paths if not shard.is_file()]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(paths)} shards of this model are missing: {one_line(', '.join(missing), 300)}",
            where=one_line(str(path)),
            fix="Download the missing shards into the same folder.",
        )
    return paths


def tensors_of(files: Iterable[Path]) -> list[Tensor]:
    """Return the tensors of a model from the headers of all its files. Raises UsageError."""
    return [tensor for file in files for tensor in read_header(file).tensors]


Memory = Literal["attention", "hybrid", "recurrent"]
"""How a model keeps what it has read: a KV cache, a recurrent state, or both."""

_BLOCK = re.compile(r"blk\.([0-9]{1,5})\.(.+)")
_RECURRENT = re.compile(r"(?:ssm_|time_mix_|shortconv\.)")
_ATTENTION = re.compile(r"attn_(?:q|k|v|qkv|kv_a_mqa|q_a|kv_b|k_b)\.")
_BOTH_AT_ONCE = frozenset({"falcon-h1"})
"""Families whose layers attend beside their recurrent state, from `create_memory` in llama.cpp's `src/llama-model.cpp`;
in all others such a layer's `attn_qkv` or `attn_q` is the projection of a delta net (Qwen3.5, Kimi Linear)."""


ROTARY_HEADS = "plamo2.attention.head_count"
"""The heads of every layer. llama.cpp (`load_hparams` in `src/llama-model.cpp`) takes all layers' rotary dimensions
from layer 0, which is a Mamba layer in PLaMo 2: 0 heads, nothing is rotated, and on a CPU the first evaluation never
ends."""


def rotates_nothing(header: GgufHeader) -> bool:
    """Whether llama.cpp would rotate no key, though the model has attention: PLaMo 2 as its converter writes it."""
    heads = header.integers(ROTARY_HEADS) or [1]
    return heads[0] == 0 and any(heads)


@dataclass(frozen=True)
class TensorGroup:
    """All tensors of a type."""

    count: int
    bytes: int


@dataclass(frozen=True)
class GgufFacts:
    """A model by its header. What is not in the header is None."""

    architecture: str | None
    name: str | None
    parameters: int
    active_parameters: int | None
    """Those that a token uses, of a mixture of experts; `None` for every other model."""
    experts: int | None
    """In a layer, the shared ones left out; `None` for a model without."""
    experts_used: int | None
    """How many experts of a layer a token uses."""
    file_type: str | None
    """The mix that its maker announced, such as `q4_k_m`; `tensor_types` is what is really there."""
    tensor_types: dict[str, TensorGroup]
    """The tensors by GGML type, most bytes first."""
    tensor_bytes: int
    bits_per_weight: float | None
    """8 · bytes / parameters over all tensors; None when a tensor's type is not known."""
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
    attention_layers: tuple[int, ...]
    """Layers with a KV cache, from 0, multi-token-prediction heads left out."""
    files: int
    version: int

    def as_dict(self) -> dict[str, Any]:
        """Return the facts as plain JSON data."""
        layers = {"recurrent_layers": list(self.recurrent_layers), "attention_layers": list(self.attention_layers)}
        return {**asdict(self), **layers}


def read_facts(path: Path) -> GgufFacts:
    """Read the facts of a model from its file, or of all shards from any of them. Raises UsageError."""
    headers = [read_header(shard) for shard in all_shards(path)]
    return facts_of(headers)


def experts_of(header: GgufHeader) -> tuple[int, int] | None:
    """Return (experts in a layer, those that a token uses) of a mixture of experts; `None` for another model."""
    architecture = header.text("general.architecture")
    experts, used = (header.integer(f"{architecture}.{key}") for key in ("expert_count", "expert_used_count"))
    return (experts, used) if experts and used and 0 < used <= experts else None


def experts_read(share: float, width: int) -> float:
    """Return which share of a layer's experts a pass over `width` tokens reads, each of which uses `share` of them.

    As many as where every token chose its own at random; tokens that follow each other choose alike, which saves some.
    """
    return 1 - (1 - share) ** width


def is_routed(tensor: Tensor) -> bool:
    """Whether a tensor holds experts of which a token uses some."""
    return "_exps." in tensor.name


def facts_of(headers: list[GgufHeader]) -> GgufFacts:
    """Return the facts of a model from the headers of its files in order."""
    first = headers[0]
    tensors = [tensor for header in headers for tensor in header.tensors]
    parameters = sum(tensor.elements for tensor in tensors)
    total = sum(tensor.nbytes or 0 for tensor in tensors)
    mixture, routed = experts_of(first), sum(tensor.elements for tensor in tensors if is_routed(tensor))
    complete = parameters > 0 and all(tensor.nbytes is not None for tensor in tensors)
    architecture = first.text("general.architecture")
    file_type = first.integer("general.file_type")
    layers = first.integer(f"{architecture}.block_count")
    heads = first.integer(f"{architecture}.nextn_predict_layers") or 0
    memory, recurrent, attending = _memory(
        tensors, None if layers is None else layers - heads, hybrid=architecture in _BOTH_AT_ONCE
    )
    return GgufFacts(
        architecture=architecture,
        name=first.text("general.name"),
        parameters=parameters,
        active_parameters=None if mixture is None else round(parameters - (1 - mixture[1] / mixture[0]) * routed),
        experts=None if mixture is None else mixture[0],
        experts_used=None if mixture is None else mixture[1],
        file_type=None if file_type is None else file_types().get(file_type, f"file type {file_type}"),
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
        layers=layers,
        mtp_layers=heads,
        memory=memory,
        recurrent_layers=recurrent,
        attention_layers=attending,
        files=len(headers),
        version=first.version,
    )


def _tensor_types(tensors: list[Tensor]) -> dict[str, TensorGroup]:
    counts = Counter(tensor.type_name for tensor in tensors)
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type_name] += tensor.nbytes or 0
    return {name: TensorGroup(counts[name], sizes[name]) for name in sorted(counts, key=lambda name: -sizes[name])}


def _memory(
    tensors: list[Tensor], layers: int | None, *, hybrid: bool
) -> tuple[Memory, tuple[int, ...], tuple[int, ...]]:
    """Find by the tensor names of the first `layers` blocks which carry a recurrent state, and which attend.

    State-space, RWKV and short-convolution blocks carry a state; `hybrid`: such a block may attend as well.
    """
    recurrent: set[int] = set()
    attending: set[int] = set()
    for tensor in tensors:
        match = _BLOCK.match(tensor.name)
        if match is None or (layers is not None and int(match[1]) >= layers):
            continue
        if _RECURRENT.match(match[2]):
            recurrent.add(int(match[1]))
        elif _ATTENTION.match(match[2]):
            attending.add(int(match[1]))
    if not hybrid:
        attending -= recurrent
    kind: Memory = "attention" if not recurrent else "hybrid" if attending else "recurrent"
    return kind, tuple(sorted(recurrent)), tuple(sorted(attending))
