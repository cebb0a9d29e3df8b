"""An EAGLE-3 draft: one Llama layer on the hidden states of three of its target's layers.

Only drafts that use their target's embeddings, output projection and vocabulary; one that brings its own has tensors
that are not listed here, and is refused for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchctl.errors import UsageError
from benchctl.models.huggingface.layout import (
    Config,
    Layout,
    Metadata,
    ModelHeader,
    TensorPair,
    rope_theta,
    with_rope_theta,
)
from benchctl.models.huggingface.transforms import SAME, Transform

if TYPE_CHECKING:
    from benchctl.models.huggingface.transforms import Array

_LAYER = (
    ("hidden_norm.weight", "attn_norm_2.weight"),
    ("input_layernorm.weight", "attn_norm.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
)


def _paired(heads: int) -> Transform:
    """The rows of every head, rotary halves apart (Hugging Face) or their elements in pairs (llama.cpp's Llama)."""

    def swapped(rows: Array, apart: int) -> Array:
        return rows.reshape(heads, apart, rows.shape[0] // heads // apart, -1).swapaxes(1, 2).reshape(rows.shape)

    return Transform(lambda rows: swapped(rows, 2), lambda rows: swapped(rows, rows.shape[0] // heads // 2))


def _config(model: ModelHeader) -> Config:
    layers = model.integers("target_layers")
    vocabulary = model.integer("vocab_size")
    return {
        "model_type": "llama",
        "vocab_size": vocabulary,
        "draft_vocab_size": vocabulary,
        "hidden_size": model.integer("embedding_length"),
        "target_hidden_size": model.integer("target_hidden_size"),
        "intermediate_size": model.integer("feed_forward_length"),
        "num_hidden_layers": 1,
        "num_attention_heads": model.integer("attention.head_count"),
        "num_key_value_heads": model.integer("attention.head_count_kv"),
        "head_dim": model.integer("attention.key_length"),
        "hidden_act": "silu",
        "max_position_embeddings": model.integer("context_length"),
        "rms_norm_eps": model.number("attention.layer_norm_rms_epsilon"),
        **with_rope_theta(model.number("rope.freq_base")),
        "norm_before_residual": model.flag("norm_before_residual", False),
        "eagle_aux_hidden_state_layer_ids": layers,  # where llama.cpp's converter looks
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layers},  # where vLLM looks
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
    }


def _metadata(config: Config) -> Metadata:
    if config.get("attention_bias") or config.get("mlp_bias"):
        raise UsageError("layers with biases cannot be written", where="config.json")
    return {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "rope.freq_base": rope_theta(config),
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
        "target_layers": config["eagle_aux_hidden_state_layer_ids"],
        "target_hidden_size": config["target_hidden_size"],
        "norm_before_residual": config.get("norm_before_residual", False),
        "vocab_size": config["vocab_size"],
    }


def _tensors(config: Config) -> Iterator[TensorPair]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    yield TensorPair("fc.weight", "fc.weight")
    yield TensorPair("norm.weight", "output_norm.weight")
    for ours, theirs in _LAYER:
        count = heads.get(ours.split(".")[-2])
        yield TensorPair(f"midlayer.{ours}", f"blk.0.{theirs}", SAME if count is None else _paired(count))


EAGLE3 = Layout("eagle3", "LlamaForCausalLMEagle3", _config, _metadata, _tensors)
