"""Qwen3: a plain transformer with grouped-query attention and a norm on every query and key head."""

from __future__ import annotations

from collections.abc import Iterator

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

_LAYER = (
    ("input_layernorm.weight", "attn_norm.weight"),
    ("mlp.down_proj.weight", "ffn_down.weight"),
    ("mlp.gate_proj.weight", "ffn_gate.weight"),
    ("mlp.up_proj.weight", "ffn_up.weight"),
    ("post_attention_layernorm.weight", "ffn_norm.weight"),
    ("self_attn.k_norm.weight", "attn_k_norm.weight"),
    ("self_attn.k_proj.weight", "attn_k.weight"),
    ("self_attn.o_proj.weight", "attn_output.weight"),
    ("self_attn.q_norm.weight", "attn_q_norm.weight"),
    ("self_attn.q_proj.weight", "attn_q.weight"),
    ("self_attn.v_proj.weight", "attn_v.weight"),
)


def _config(model: ModelHeader) -> Config:
    vocabulary, hidden = model.shape("token_embd.weight")
    return {
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": model.integer("feed_forward_length"),
        "num_hidden_layers": model.integer("block_count"),
        "num_attention_heads": model.integer("attention.head_count"),
        "num_key_value_heads": model.integer("attention.head_count_kv"),
        "head_dim": model.integer("attention.key_length"),
        "hidden_act": "silu",
        "max_position_embeddings": model.integer("context_length"),
        "rms_norm_eps": model.number("attention.layer_norm_rms_epsilon"),
        **with_rope_theta(model.number("rope.freq_base")),
        "tie_word_embeddings": not model.has("output.weight"),
        "attention_bias": False,
        "use_sliding_window": False,
    }


def _metadata(config: Config) -> Metadata:
    if config.get("attention_bias") or config.get("use_sliding_window"):
        raise UsageError("attention with biases or a sliding window cannot be written", where="config.json")
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
        "vocab_size": config["vocab_size"],
    }


def _tensors(config: Config) -> Iterator[TensorPair]:
    yield TensorPair("model.embed_tokens.weight", "token_embd.weight")
    yield TensorPair("model.norm.weight", "output_norm.weight")
    for layer in range(config["num_hidden_layers"]):
        for ours, theirs in _LAYER:
            yield TensorPair(f"model.layers.{layer}.{ours}", f"blk.{layer}.{theirs}")
    if not config["tie_word_embeddings"]:
        yield TensorPair("lm_head.weight", "output.weight")


QWEN3 = Layout("qwen3", "Qwen3ForCausalLM", _config, _metadata, _tensors)
