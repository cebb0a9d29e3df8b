"""The architectures whose GGUF files can be expressed as Hugging Face folders: those of the bundled models.

A `Layout` an architecture: names of tensors and transforms of numbers. Forward is from Hugging Face to GGUF
(`training.export`), backward from GGUF to a Hugging Face folder (`folder.huggingface_folder`); both read the same list
of tensors, so that neither can drift.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[Any]]

LAYOUT_VERSION = 1
"""Raised when a derived folder would come out differently for the same source."""

Config = dict[str, Any]
"""`config.json` as plain JSON data."""


@dataclass(frozen=True)
class Transform:
    """A function of an array (float32, or integers as the file holds them) and its inverse."""

    forward: Callable[[Array], Array]
    """From Hugging Face to GGUF."""
    backward: Callable[[Array], Array]
    """From GGUF to Hugging Face."""
    tolerance: float = 0.0
    """Relative error of `forward`: above 0 only where it calls a function that differs between libraries."""


def _negative_exponential(logarithms: Array) -> Array:
    return np.asarray(-np.exp(logarithms))


def _logarithm_of_negative(values: Array) -> Array:
    return np.asarray(np.log(-values.astype(np.float64)).astype(np.float32))


SAME = Transform(lambda array: array, lambda array: array)

ONE_ADDED = Transform(lambda weight: weight + weight.dtype.type(1), lambda stored: stored - stored.dtype.type(1))
"""A norm whose weight counts from zero. A bfloat16 weight smaller than 2^-16 comes back rounded to a multiple of 2^-24
or 2^-23, and is stored the same again."""

COLUMN = Transform(lambda vector: vector.reshape(-1, 1), lambda column: column.reshape(-1))
"""(n,) to (n, 1)."""

CONVOLUTION = Transform(lambda kernel: kernel.reshape(kernel.shape[0], -1), lambda rows: rows[:, None, :])
"""A depthwise convolution's kernel, (channels, 1, width) to (channels, width)."""

NEGATIVE_EXPONENTIAL = Transform(_negative_exponential, _logarithm_of_negative, tolerance=1e-6)
"""The state decay, `A = -exp(A_log)`. Exponential functions of two libraries differ by some units in the last place of
float32, about 2e-7; a bfloat16 `A_log` above 2^-12 in size is farther from its neighbours and is found exactly."""


def in_turn(first: Transform, second: Transform) -> Transform:
    """Return `first`, then `second`; the inverse undoes `second` first."""
    return Transform(
        lambda array: second.forward(first.forward(array)),
        lambda array: first.backward(second.backward(array)),
        max(first.tolerance, second.tolerance),
    )


@dataclass(frozen=True)
class TensorPair:
    """A tensor under its two names.

    Backward, a float32 result is written as bfloat16 where that keeps every number, else as float32; int64 and bool
    results are written as they are.
    """

    huggingface: str
    gguf: str
    transform: Transform = SAME


@dataclass(frozen=True)
class Layout:
    """An architecture."""

    architecture: str
    """`general.architecture` of the GGUF file."""
    model_class: str
    """The first of `architectures` in `config.json`."""
    tensors: Callable[[Config], Iterable[TensorPair]]
    """Every tensor of the model that this `config.json` describes."""


_Names = tuple[tuple[str, str, Transform], ...]
"""Tensors of a block: as Hugging Face calls them, as llama.cpp does, and what happens to their numbers."""

_ATTENTION: _Names = (
    *((f"self_attn.{name}_proj.weight", f"attn_{name}.weight", SAME) for name in ("k", "q", "v")),
    ("self_attn.o_proj.weight", "attn_output.weight", SAME),
)
_MLP: _Names = tuple((f"mlp.{name}_proj.weight", f"ffn_{name}.weight", SAME) for name in ("down", "gate", "up"))


def _around(config: Config, norm: str, transform: Transform = SAME) -> Iterator[TensorPair]:
    """Yield the tensors before and after the blocks."""
    yield TensorPair("model.embed_tokens.weight", "token_embd.weight")
    yield TensorPair(norm, "output_norm.weight", transform)
    if not config["tie_word_embeddings"]:
        yield TensorPair("lm_head.weight", "output.weight")


def _block(prefix: str, number: int, names: Iterable[tuple[str, str, Transform]]) -> Iterator[TensorPair]:
    for ours, theirs, transform in names:
        yield TensorPair(f"{prefix}.{ours}", f"blk.{number}.{theirs}", transform)


# Qwen3: a plain transformer with grouped-query attention and a norm on every query and key head.

_QWEN3: _Names = (
    *(*_ATTENTION, *_MLP),
    ("input_layernorm.weight", "attn_norm.weight", SAME),
    ("post_attention_layernorm.weight", "ffn_norm.weight", SAME),
    ("self_attn.k_norm.weight", "attn_k_norm.weight", SAME),
    ("self_attn.q_norm.weight", "attn_q_norm.weight", SAME),
)


def _qwen3_tensors(config: Config) -> Iterator[TensorPair]:
    yield from _around(config, "model.norm.weight")
    for layer in range(config["num_hidden_layers"]):
        yield from _block(f"model.layers.{layer}", layer, _QWEN3)


# Falcon-H1: Mamba-2 and attention side by side in every layer. llama.cpp's converter multiplies the multipliers into
# the weights, so what comes from GGUF has multipliers of 1.

_FALCON_H1: _Names = (
    *_ATTENTION,
    *((f"feed_forward.{name}_proj.weight", f"ffn_{name}.weight", SAME) for name in ("down", "gate", "up")),
    ("input_layernorm.weight", "attn_norm.weight", SAME),
    ("mamba.A_log", "ssm_a", in_turn(NEGATIVE_EXPONENTIAL, COLUMN)),
    ("mamba.D", "ssm_d", COLUMN),
    ("mamba.conv1d.bias", "ssm_conv1d.bias", SAME),
    ("mamba.conv1d.weight", "ssm_conv1d.weight", CONVOLUTION),
    ("mamba.dt_bias", "ssm_dt.bias", SAME),
    ("mamba.in_proj.weight", "ssm_in.weight", SAME),
    ("mamba.out_proj.weight", "ssm_out.weight", SAME),
    ("pre_ff_layernorm.weight", "ffn_norm", SAME),  # without `.weight`: so llama.cpp calls it
)


def _falcon_h1_tensors(config: Config) -> Iterator[TensorPair]:
    yield from _around(config, "model.final_layernorm.weight")
    for layer in range(config["num_hidden_layers"]):
        yield from _block(f"model.layers.{layer}", layer, _FALCON_H1)


# Qwen3.5 without experts: gated delta nets and gated full attention in turn, and perhaps a multi-token head. llama.cpp
# counts the head as another block, and stores every norm but the delta net's own with 1 added.

LINEAR, FULL = "linear_attention", "full_attention"
_QWEN3_5: _Names = (
    *_MLP,
    ("input_layernorm.weight", "attn_norm.weight", ONE_ADDED),
    ("post_attention_layernorm.weight", "post_attention_norm.weight", ONE_ADDED),
)
_QWEN3_5_KINDS: dict[str, _Names] = {
    FULL: (
        *_ATTENTION,
        ("self_attn.k_norm.weight", "attn_k_norm.weight", ONE_ADDED),
        ("self_attn.q_norm.weight", "attn_q_norm.weight", ONE_ADDED),
    ),
    LINEAR: (
        ("linear_attn.A_log", "ssm_a", NEGATIVE_EXPONENTIAL),
        ("linear_attn.conv1d.weight", "ssm_conv1d.weight", CONVOLUTION),
        ("linear_attn.dt_bias", "ssm_dt.bias", SAME),
        ("linear_attn.in_proj_a.weight", "ssm_alpha.weight", SAME),
        ("linear_attn.in_proj_b.weight", "ssm_beta.weight", SAME),
        ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", SAME),
        ("linear_attn.in_proj_z.weight", "attn_gate.weight", SAME),
        ("linear_attn.norm.weight", "ssm_norm.weight", SAME),
        ("linear_attn.out_proj.weight", "ssm_out.weight", SAME),
    ),
}
_QWEN3_5_HEAD: _Names = (
    ("fc.weight", "nextn.eh_proj.weight", SAME),
    ("norm.weight", "nextn.shared_head_norm.weight", ONE_ADDED),
    ("pre_fc_norm_embedding.weight", "nextn.enorm.weight", ONE_ADDED),
    ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight", ONE_ADDED),
)


def _qwen3_5_tensors(config: Config) -> Iterator[TensorPair]:
    yield from _around(config, "model.norm.weight", ONE_ADDED)
    for layer, kind in enumerate(config["layer_types"]):
        yield from _block(f"model.layers.{layer}", layer, (*_QWEN3_5, *_QWEN3_5_KINDS[kind]))
    for head in range(config.get("mtp_num_hidden_layers", 0)):
        block = config["num_hidden_layers"] + head
        yield from _block(f"mtp.layers.{head}", block, (*_QWEN3_5, *_QWEN3_5_KINDS[FULL]))
        yield from _block("mtp", block, _QWEN3_5_HEAD)


# An EAGLE-3 draft: a Llama layer on the hidden states of three of its target's layers. Only drafts that use their
# target's embeddings, output projection and vocabulary; what brings its own has tensors that are not listed.

_EAGLE3: _Names = (
    *(*_ATTENTION, *_MLP),
    ("hidden_norm.weight", "attn_norm_2.weight", SAME),
    ("input_layernorm.weight", "attn_norm.weight", SAME),
    ("post_attention_layernorm.weight", "ffn_norm.weight", SAME),
)


def _paired(heads: int) -> Transform:
    """The rows of every head, rotary halves apart (Hugging Face) or their elements in pairs (llama.cpp's Llama)."""

    def swapped(rows: Array, apart: int) -> Array:
        return rows.reshape(heads, apart, rows.shape[0] // heads // apart, -1).swapaxes(1, 2).reshape(rows.shape)

    return Transform(lambda rows: swapped(rows, 2), lambda rows: swapped(rows, rows.shape[0] // heads // 2))


def _eagle3_tensors(config: Config) -> Iterator[TensorPair]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    yield TensorPair("fc.weight", "fc.weight")
    yield TensorPair("norm.weight", "output_norm.weight")
    for ours, theirs, transform in _EAGLE3:
        count = heads.get(ours.split(".")[-2])
        yield TensorPair(f"midlayer.{ours}", f"blk.0.{theirs}", transform if count is None else _paired(count))


LAYOUTS: dict[str, Layout] = {
    layout.architecture: layout
    for layout in (
        Layout("falcon-h1", "FalconH1ForCausalLM", _falcon_h1_tensors),
        Layout("qwen3", "Qwen3ForCausalLM", _qwen3_tensors),
        Layout("qwen35", "Qwen3_5ForCausalLM", _qwen3_5_tensors),
        Layout("eagle3", "LlamaForCausalLMEagle3", _eagle3_tensors),
    )
}
"""By `general.architecture`."""
