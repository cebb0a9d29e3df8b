"""What a model takes in memory and what a decode step reads of it: from a file's header, a config, or a size by hand.

Good enough to answer "does the pair fit, and can it pay" before a download: weights, KV cache and recurrent state, no
compute buffers. Decoding a token reads every weight it uses once (of a mixture only the experts that are active, of
an embedding table that is not the output matrix, too, a row), and the whole cache: at batch 1 that, not arithmetic,
is what a step waits for on most machines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchctl.errors import UsageError
from benchctl.models.files import ResolvedModel
from benchctl.models.folder_facts import folder_facts, text_config
from benchctl.models.gguf_facts import all_shards, experts_of, experts_read, facts_of, is_routed
from benchctl.models.gguf_header import GgufHeader, Tensor, read_header
from benchctl.text import one_line

STATE_BYTES = 4
CACHE_BYTES = 2
_OTHER = frozenset({"qwen4exp", "deepseek4", "minimax-01"})
"""Families with further rows, or with keys of their own: their size is not computed."""
_OTHER_CACHES = ("kv_lora_rank", "shared_kv_layers", "key_length_swa", "value_length_swa")
"""Keys below `attention` whose models keep something else than a row of keys and values a layer."""


@dataclass(frozen=True)
class RecurrentState:
    """The state of a sequence, in bytes over all recurrent layers: last inputs of the convolution, and the rest."""

    convolution: int
    state: int
    layers: int

    @property
    def total(self) -> int:
        """Bytes of a sequence."""
        return self.convolution + self.state


def recurrent_state(header: GgufHeader, layers: tuple[int, ...]) -> RecurrentState | None:
    """Return the recurrent state of a model whose layers `layers` carry it; None when it has none, or keys lack.

    Covers RWKV, short convolutions (LFM2), Kimi's delta attention, and every family with `ssm.*` keys (Mamba, Mamba 2,
    Falcon-H1, Jamba, PLaMo 2, Nemotron-H, Granite, Qwen3-Next, Qwen3.5). From llama.cpp (commit 0c1e570):
    `llama_hparams::n_embd_r` and `n_embd_s` in `src/llama-hparams.cpp`, a row of each in 32 bits a recurrent layer.
    """
    if not layers or header.text("general.architecture") in _OTHER:
        return None
    sizes = _state_sizes(header)
    if sizes is None:
        return None
    convolution, state = sizes
    count = len(layers)
    return RecurrentState(convolution * STATE_BYTES * count, state * STATE_BYTES * count, count)


def _state_sizes(header: GgufHeader) -> tuple[int, int] | None:
    """Return how many numbers the convolution and the state of a layer hold."""

    def key(name: str) -> int | None:
        value = header.integer(f"{header.text('general.architecture')}.{name}")
        return value if value is not None and value >= 0 else None

    width = key("embedding_length")
    if (head := key("wkv.head_size")) and width:
        shifts = 2 if (count := key("token_shift_count")) is None else count
        return shifts * width, width * head
    if (length := key("shortconv.l_cache")) and width:
        return (length - 1) * width, 0
    kernel = key("ssm.conv_kernel")
    if (head := key("kda.head_dim")) and (heads := key("attention.head_count")):
        taps = kernel - 1 if kernel else 3
        return 3 * taps * heads * head, head * head * heads
    inner, state = key("ssm.inner_size"), key("ssm.state_size")
    if not kernel or not inner or not state:
        return None
    groups = key("ssm.group_count") or 0  # Mamba 1 has none, and its convolution sees the inner numbers alone
    return (kernel - 1) * (inner + 2 * groups * state), state * inner


def kv_cache_bytes(header: GgufHeader, layers: tuple[int, ...]) -> int | None:
    """Return the bytes of KV cache a token takes in 16 bits, over the attending layers; None when keys lack.

    A model whose cache is compressed (multi-head latent attention), shared between layers, or of another width in
    layers with a sliding window gives None, not a guess.
    Where layers attend within a sliding window, their part stops growing at the window. From llama.cpp's
    `n_embd_k_gqa` and `n_embd_v_gqa` (`src/llama-kv-cache.cpp`), in 16 bits, llama-server's default.
    """
    if not layers:
        return 0
    prefix = f"{header.text('general.architecture')}.attention"
    if any(f"{prefix}.{name}" in header.metadata and header.integer(f"{prefix}.{name}") != 0 for name in _OTHER_CACHES):
        return None

    def each(name: str) -> list[int] | None:
        """Return a key's value for every layer: a number for all of them, or an array."""
        shared = header.integer(f"{prefix}.{name}")
        return header.integers(f"{prefix}.{name}") if shared is None else [shared] * (layers[-1] + 1)

    heads, width = each("head_count"), header.integer(f"{header.text('general.architecture')}.embedding_length")
    groups = heads if f"{prefix}.head_count_kv" not in header.metadata else each("head_count_kv")
    keys, values = header.integer(f"{prefix}.key_length"), header.integer(f"{prefix}.value_length")
    if not heads or not groups or not width or len(heads) <= layers[-1] or len(groups) <= layers[-1]:
        return None
    if any(heads[layer] <= 0 or groups[layer] < 0 for layer in layers):
        return None
    total = 0
    for layer in layers:
        head_width = width // heads[layer]
        total += groups[layer] * ((head_width if keys is None else keys) + (head_width if values is None else values))
    return total * CACHE_BYTES


_BY_HAND = re.compile(
    r"(?P<count>[0-9]+(?:\.[0-9]+)?)(?P<unit>[MB])(?:@(?P<bits>[0-9]+(?:\.[0-9]+)?))?\Z", re.IGNORECASE
)
_UNITS = {"m": 1e6, "b": 1e9}
_DEFAULT_BITS = 16.0
_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Model types whose weights can be counted from the config alone."""
_MIXTURES = frozenset({"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"})
"""Likewise, of mixtures of experts."""
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_DTYPE_BITS = {
    **dict.fromkeys(("float32", "f32", "i32", "u32"), 32.0),  # integers: several weights packed into one
    **dict.fromkeys(("bfloat16", "bf16", "float16", "f16", "i16", "u16"), 16.0),
    **dict.fromkeys(("f64", "i64", "u64"), 64.0),
}


@dataclass(frozen=True)
class Footprint:
    """Bytes. `None`: not known from what was given."""

    name: str
    weights: int
    weights_per_step: int
    """Bytes of weights that a decode step reads."""
    cache_per_token: int | None
    """KV cache of 16 bits."""
    state: int | None
    """Recurrent state of a sequence; 0 for a model without."""
    expert_weights: int = 0
    """Bytes of the experts' weights."""
    expert_share: float = 1.0
    """Share of a layer's experts that a token uses."""
    parameters: int | None = None
    active_parameters: int | None = None
    """Those that a token uses, of a mixture of experts."""

    def further_per_verify(self, width: int) -> float:
        """Return the bytes of weights that a pass over `width` tokens reads beyond those of a decode step."""
        return self.expert_weights * (experts_read(self.expert_share, width) - self.expert_share)

    def at(self, context: int) -> int:
        """Return the bytes with `context` tokens in the cache, without what is not known."""
        return self.weights + context * (self.cache_per_token or 0) + (self.state or 0)

    def read_per_step(self, context: int) -> int:
        """Return the bytes that a decode step reads with `context` tokens in the cache; the state is also written."""
        return self.weights_per_step + context * (self.cache_per_token or 0) + 2 * (self.state or 0)


def footprint_by_hand(text: str) -> Footprint | None:
    """Return the footprint of a size such as `8B`, `1.5B@4.5` (bits a weight) or `135M`; `None` for other text."""
    match = _BY_HAND.match(text)
    if match is None:
        return None
    parameters = float(match["count"]) * _UNITS[match["unit"].lower()]
    weights = round(parameters * float(match["bits"] or _DEFAULT_BITS) / 8)
    return Footprint(text, weights, weights, None, None)


def footprint_of_gguf(first: Path) -> Footprint:
    """Return the footprint of a GGUF model, all its shards. Raises UsageError."""
    headers = [read_header(shard) for shard in all_shards(first)]
    facts = facts_of(headers)
    tensors = [tensor for header in headers for tensor in header.tensors]
    state = recurrent_state(headers[0], facts.recurrent_layers)
    return Footprint(
        name=one_line(facts.name or first.name, 80),
        weights=facts.tensor_bytes,
        weights_per_step=round(sum(share * (tensor.nbytes or 0) for tensor, share in _used(tensors, headers[0]))),
        cache_per_token=kv_cache_bytes(headers[0], facts.attention_layers),
        state=0 if not facts.recurrent_layers else None if state is None else state.total,
        expert_weights=sum(tensor.nbytes or 0 for tensor in tensors if is_routed(tensor)),
        expert_share=facts.experts_used / facts.experts if facts.experts and facts.experts_used else 1.0,
        parameters=facts.parameters,
        active_parameters=facts.active_parameters,
    )


def read_share(model: ResolvedModel) -> float:
    """Return the share of its weights that a step of a model reads: of a mixture of experts, not all of them.

    At least the share of the experts: of weights that are packed into other numbers no more is known.
    """
    footprint = footprint_of_gguf(model.path) if model.folder is None else footprint_of_folder(model.folder)
    if footprint.expert_share >= 1 or not footprint.weights:
        return 1.0
    return max(footprint.expert_share, footprint.weights_per_step / footprint.weights)


def step_flops(model: ResolvedModel) -> float | None:
    """Return about how many floating-point operations a decode step takes: two a weight that it multiplies with.

    What attention does with its cache and a recurrence with its state is left out. `None` where it is not known.
    """
    if model.folder is None:
        headers = [read_header(shard) for shard in all_shards(model.path)]
        tensors = [tensor for header in headers for tensor in header.tensors if len(tensor.shape) > 1]
        return 2.0 * sum(share * math.prod(tensor.shape) for tensor, share in _used(tensors, headers[0]))
    facts, config = folder_facts(model.folder), text_config(model.folder / "config.json")
    sizes = _sizes(config, "vocab_size", "hidden_size")
    if not facts["parameters"] or sizes is None:
        return None
    parameters: float = facts["parameters"]
    if (experts := _experts(config)) is not None:
        parameters -= (1 - experts.share) * experts.parameters
    return 2.0 * (parameters - (0 if config.get("tie_word_embeddings") else sizes[0] * sizes[1]))


def _used(tensors: list[Tensor], header: GgufHeader) -> Iterator[tuple[Tensor, float]]:
    """Yield the tensors that a decode step uses, and what share of each."""
    mixture = experts_of(header)
    share = 1.0 if mixture is None else mixture[1] / mixture[0]
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    for tensor in tensors:
        if tensor.name == "token_embd.weight" and not tied:
            continue  # a single row of it
        yield tensor, share if is_routed(tensor) else 1.0


def has_config(path: Path) -> bool:
    """Whether a path is what `footprint_of_folder` reads: a Hugging Face folder, or named as a `config.json`."""
    return (path / "config.json").is_file() or path.name == "config.json"


def footprint_of_folder(folder: Path) -> Footprint:
    """Return the footprint of a Hugging Face folder, or of a `config.json` alone. Raises UsageError."""
    config = text_config(folder if folder.is_file() else folder / "config.json")
    sizes: dict[str, int] = {} if folder.is_file() else folder_facts(folder)["parameters_by_dtype"]
    parameters = sum(sizes.values()) or _counted(config, folder if folder.is_file() else folder / "config.json")
    if sizes:
        weights = round(sum(count * _DTYPE_BITS.get(dtype, 8.0) / 8 for dtype, count in sizes.items()))
    else:
        weights = round(parameters * _bits(config) / 8)
    experts = _experts(config)
    routed = min(1.0, experts.parameters / parameters) if experts else 0.0
    share = experts.share if experts else 1.0
    dense = weights if config.get("tie_word_embeddings") else weights - _embedding(config)
    cache = _cache_of(config)
    kinds = [str(kind) for kind in _listed(config, "layer_types")]
    hybrid = any(key.startswith(("mamba", "linear_")) for key in config)
    hybrid = hybrid or any("attention" not in kind or "linear" in kind for kind in kinds)
    return Footprint(
        one_line(folder.name, 80),
        weights,
        max(round(dense - (1 - share) * routed * weights), 0),
        None if hybrid else cache,
        None if hybrid else 0,
        expert_weights=round(routed * weights),
        expert_share=share,
        parameters=parameters,
        active_parameters=round(parameters * (1 - (1 - share) * routed)) if experts else None,
    )


@dataclass(frozen=True)
class _Experts:
    """Of a mixture of experts, by its config: those of which a token uses some."""

    share: float
    parameters: int


def _experts(config: dict[str, Any]) -> _Experts | None:
    """Return the experts of a model, each three matrices; `None` without, or where the config does not tell."""
    count = next((n[0] for key in _EXPERT_KEYS if (n := _sizes(config, key))), None)
    sizes = _sizes(config, "hidden_size", "num_hidden_layers", "num_experts_per_tok")
    inner = _sizes(config, "moe_intermediate_size") or _sizes(config, "intermediate_size")
    if count is None or sizes is None or inner is None or sizes[2] > count:
        return None
    hidden, layers, used = sizes
    return _Experts(used / count, _sparse_layers(config, layers) * count * 3 * hidden * inner[0])


def _sparse_layers(config: dict[str, Any], layers: int) -> int:
    """Return how many layers have experts: all but the first (DeepSeek), or every so many (Qwen)."""
    first = _sizes(config, "first_k_dense_replace")
    if first:
        return max(0, layers - first[0])
    step, dense = (_sizes(config, "decoder_sparse_step") or [1])[0], _listed(config, "mlp_only_layers")
    return sum((layer + 1) % step == 0 and layer not in dense for layer in range(layers))


def _sizes(config: dict[str, Any], *keys: str) -> list[int] | None:
    values = [config.get(key) for key in keys]
    return [v for v in values if isinstance(v, int)] if all(isinstance(v, int) and v > 0 for v in values) else None


def _listed(config: dict[str, Any], key: str) -> list[Any]:
    values = config.get(key)
    return values if isinstance(values, list) else []


def _head_size(config: dict[str, Any]) -> int | None:
    size = config.get("head_dim")
    if isinstance(size, int) and size > 0:
        return size
    sizes = _sizes(config, "hidden_size", "num_attention_heads")
    return None if sizes is None else sizes[0] // sizes[1]


def _cache_of(config: dict[str, Any]) -> int | None:
    layers, head = _sizes(config, "num_hidden_layers"), _head_size(config)
    groups = _sizes(config, "num_key_value_heads") or _sizes(config, "num_attention_heads")
    return None if layers is None or head is None or groups is None else 2 * layers[0] * groups[0] * head * CACHE_BYTES


def _embedding(config: dict[str, Any]) -> int:
    sizes = _sizes(config, "vocab_size", "hidden_size")
    return 0 if sizes is None else round(sizes[0] * sizes[1] * _bits(config) / 8)


def _bits(config: dict[str, Any]) -> float:
    return _DTYPE_BITS.get(str(config.get("dtype") or config.get("torch_dtype")), _DEFAULT_BITS)


def _counted(config: dict[str, Any], file: Path) -> int:
    """Count the weights of a transformer whose layers are plain but for experts."""
    kind = config.get("model_type")
    sizes = _sizes(config, "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    head, experts = _head_size(config), _experts(config)
    countable = kind in _PLAIN or (kind in _MIXTURES and experts is not None)
    if not countable or sizes is None or head is None:
        raise UsageError(
            f"the weights of a {one_line(str(kind), 40)} model cannot be counted from its config alone",
            where=one_line(str(file)),
            fix="Name a folder with the weights, a GGUF file, or the size by hand, such as 8B@4.5.",
        )
    hidden, inner, layers, heads, vocabulary = sizes
    groups = (_sizes(config, "num_key_value_heads") or [heads])[0]
    layer = 2 * hidden * heads * head + 2 * hidden * groups * head + 2 * hidden
    sparse = _sparse_layers(config, layers) if kind in _MIXTURES else 0
    total = layers * layer + (layers - sparse) * 3 * hidden * inner
    if experts is not None and kind in _MIXTURES:
        count = next(n[0] for key in _EXPERT_KEYS if (n := _sizes(config, key)))
        shared = (_sizes(config, "shared_expert_intermediate_size") or [0])[0]
        total += experts.parameters + sparse * hidden * (count + 3 * shared + bool(shared))
    embedding = vocabulary * hidden
    return total + hidden + embedding * (1 if config.get("tie_word_embeddings", False) else 2)
