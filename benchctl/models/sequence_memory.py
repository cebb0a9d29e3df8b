"""What one sequence takes in memory while it is generated: a recurrent state of fixed size, a KV cache that grows.

From llama.cpp (commit 0c1e570): `llama_hparams::n_embd_r` and `n_embd_s` in `src/llama-hparams.cpp`, a row of each in
32 bits for every recurrent layer (`src/llama-memory-recurrent.cpp`); `n_embd_k_gqa` and `n_embd_v_gqa` for every layer
with a KV cache (`src/llama-kv-cache.cpp`), here in 16 bits, llama-server's default.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.models.gguf_header import GgufHeader

STATE_BYTES = 4
CACHE_BYTES = 2
_OTHER = frozenset({"qwen4exp", "deepseek4", "minimax-01"})
"""Families with further rows, or with keys of their own: their size is not computed."""
_OTHER_CACHES = ("kv_lora_rank", "shared_kv_layers", "key_length_swa", "value_length_swa")
"""Keys below `attention` whose models keep something else than one row of keys and values a layer."""


@dataclass(frozen=True)
class RecurrentState:
    """The state of one sequence, in bytes over all recurrent layers: last inputs of the convolution, and the rest."""

    convolution: int
    state: int
    layers: int
    formula: str
    """Numbers in a layer, by the keys of the header."""

    @property
    def total(self) -> int:
        """Bytes of one sequence."""
        return self.convolution + self.state


def recurrent_state(header: GgufHeader, layers: tuple[int, ...]) -> RecurrentState | None:
    """Return the recurrent state of a model whose layers `layers` carry one; None when it has none, or keys lack.

    Covers RWKV, short convolutions (LFM2), Kimi's delta attention, and every family with `ssm.*` keys (Mamba, Mamba 2,
    Falcon-H1, Jamba, PLaMo 2, Nemotron-H, Granite, Qwen3-Next, Qwen3.5).
    """
    if not layers or header.text("general.architecture") in _OTHER:
        return None
    sizes = _sizes(header)
    if sizes is None:
        return None
    convolution, state, formula = sizes
    count = len(layers)
    return RecurrentState(convolution * STATE_BYTES * count, state * STATE_BYTES * count, count, formula)


def _sizes(header: GgufHeader) -> tuple[int, int, str] | None:
    """Return how many numbers the convolution and the state of one layer hold."""

    def key(name: str) -> int | None:
        value = header.integer(f"{header.text('general.architecture')}.{name}")
        return value if value is not None and value >= 0 else None

    width = key("embedding_length")
    if (head := key("wkv.head_size")) and width:
        shifts = 2 if (count := key("token_shift_count")) is None else count
        return shifts * width, width * head, "token_shift_count·embedding_length + embedding_length·wkv.head_size"
    if (length := key("shortconv.l_cache")) and width:
        return (length - 1) * width, 0, "(shortconv.l_cache − 1)·embedding_length"
    kernel = key("ssm.conv_kernel")
    if (head := key("kda.head_dim")) and (heads := key("attention.head_count")):
        taps = kernel - 1 if kernel else 3
        formula = "3·(ssm.conv_kernel − 1)·head_count·kda.head_dim + head_count·kda.head_dim²"
        return 3 * taps * heads * head, head * head * heads, formula
    inner, state = key("ssm.inner_size"), key("ssm.state_size")
    if not kernel or not inner or not state:
        return None
    groups = key("ssm.group_count") or 0  # Mamba 1 has none, and its convolution sees the inner numbers alone
    formula = (
        "(ssm.conv_kernel − 1)·(ssm.inner_size + 2·ssm.group_count·ssm.state_size) + ssm.state_size·ssm.inner_size"
    )
    return (kernel - 1) * (inner + 2 * groups * state), state * inner, formula


def kv_cache_bytes(header: GgufHeader, layers: tuple[int, ...]) -> int | None:
    """Return the bytes of KV cache a token takes in 16 bits, over the attending layers; None when keys lack.

    A model whose cache is compressed (multi-head latent attention), shared between layers, or of another width in
    layers with a sliding window gives None, not a guess.
    Where layers attend within a sliding window, their part stops growing at the window.
    """
    if not layers:
        return 0
    prefix = f"{header.text('general.architecture')}.attention"
    if any(f"{prefix}.{name}" in header.metadata and header.integer(f"{prefix}.{name}") != 0 for name in _OTHER_CACHES):
        return None

    def each(name: str) -> list[int] | None:
        """Return a key's value for every layer: one number for all of them, or an array."""
        one = header.integer(f"{prefix}.{name}")
        return header.integers(f"{prefix}.{name}") if one is None else [one] * (layers[-1] + 1)

    heads, width = each("head_count"), header.integer(f"{header.text('general.architecture')}.embedding_length")
    groups = heads if f"{prefix}.head_count_kv" not in header.metadata else each("head_count_kv")
    keys, values = header.integer(f"{prefix}.key_length"), header.integer(f"{prefix}.value_length")
    if not heads or not groups or not width or len(heads) <= layers[-1] or len(groups) <= layers[-1]:
        return None
    if any(heads[layer] <= 0 or groups[layer] < 0 for layer in layers):
        return None
    total = 0
    for layer in layers:
        own = width // heads[layer]
        total += groups[layer] * ((own if keys is None else keys) + (own if values is None else values))
    return total * CACHE_BYTES
