"""Qwen3.5 without experts: gated delta nets and gated full attention in turn, and perhaps a multi-token head.

llama.cpp counts the head as one block more, and stores every norm but the delta net's own with 1 added.
"""

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
from benchctl.models.huggingface.transforms import CONVOLUTION, NEGATIVE_EXPONENTIAL, ONE_ADDED, SAME

_LINEAR, _FULL = "linear_attention", "full_attention"
_EVERY = (
    ("input_layernorm.weight", "attn_norm.weight", ONE_ADDED),
    ("mlp.down_proj.weight", "ffn_down.weight", SAME),
    ("mlp.gate_proj.weight", "ffn_gate.weight", SAME),
    ("mlp.up_proj.weight", "ffn_up.weight", SAME),
    ("post_attention_layernorm.weight", "post_attention_norm.weight", ONE_ADDED),
)
_KINDS = {
    _FULL: (
        ("self_attn.k_norm.weight", "attn_k_norm.weight", ONE_ADDED),
        ("self_attn.k_proj.weight", "attn_k.weight", SAME),
        ("self_attn.o_proj.weight", "attn_output.weight", SAME),
        ("self_attn.q_norm.weight", "attn_q_norm.weight", ONE_ADDED),
        ("self_attn.q_proj.weight", "attn_q.weight", SAME),
        ("self_attn.v_proj.weight", "attn_v.weight", SAME),
    ),
    _LINEAR: (
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
_HEAD = (
    ("fc.weight", "nextn.eh_proj.weight", SAME),
    ("norm.weight", "nextn.shared_head_norm.weight", ONE_ADDED),
    ("pre_fc_norm_embedding.weight", "nextn.enorm.weight", ONE_ADDED),
    ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight", ONE_ADDED),
)
_FULL_PRECISION = {"ssm_conv1d.weight"}


def _config(model: ModelHeader) -> Config:
    vocabulary, hidden = model.shape("token_embd.weight")
    heads_ahead = model.integer("nextn_predict_layers", 0)
    layers = model.integer("block_count") - heads_ahead
    interval = model.integer("full_attention_interval", 4)
    usual = [int((layer + 1) % interval != 0) for layer in range(layers)]
    recurrent = model.integers("attention.recurrent_layers", usual)
    heads, inner = model.integer("ssm.time_step_rank"), model.integer("ssm.inner_size")
    width, theta = model.integer("attention.key_length"), model.number("rope.freq_base")
    partial = {"partial_rotary_factor": model.integer("rope.dimension_count") / width}
    sections = model.integers("rope.dimension_sections")[:3]
    rope = with_rope_theta(theta)
    rope["rope_parameters"] |= {**partial, "mrope_section": sections, "mrope_interleaved": True}
    config: Config = {
        "model_type": "qwen3_5_text",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": model.integer("feed_forward_length"),
        "num_hidden_layers": layers,
        "layer_types": [_LINEAR if flag else _FULL for flag in recurrent[:layers]],
        "full_attention_interval": interval,
        "num_attention_heads": model.integer("attention.head_count"),
        "num_key_value_heads": model.integer("attention.head_count_kv"),
        "head_dim": width,
        "hidden_act": "silu",
        "max_position_embeddings": model.integer("context_length"),
        "rms_norm_eps": model.number("attention.layer_norm_rms_epsilon"),
        **rope,
        **partial,
        "tie_word_embeddings": not model.has("output.weight"),
        "attention_bias": False,
        "linear_conv_kernel_dim": model.integer("ssm.conv_kernel"),
        "linear_key_head_dim": model.integer("ssm.state_size"),
        "linear_value_head_dim": inner // heads,
        "linear_num_key_heads": model.integer("ssm.group_count"),
        "linear_num_value_heads": heads,
        "mtp_num_hidden_layers": heads_ahead,
    }
    _refuse_grouped(config)
    return config


def _metadata(config: Config) -> Metadata:
    _refuse_grouped(config)
    if config.get("attention_bias"):
        raise UsageError("attention with biases cannot be written", where="config.json")
    ahead = config.get("mtp_num_hidden_layers", 0)
    rope, heads = config["rope_parameters"], config["linear_num_value_heads"]
    return {
        "block_count": config["num_hidden_layers"] + ahead,
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "rope.dimension_sections": [*rope["mrope_section"], 0],
        "rope.freq_base": rope_theta(config),
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        **({"nextn_predict_layers": ahead} if ahead else {}),
        "ssm.conv_kernel": config["linear_conv_kernel_dim"],
        "ssm.state_size": config["linear_key_head_dim"],
        "ssm.group_count": config["linear_num_key_heads"],
        "ssm.time_step_rank": heads,
        "ssm.inner_size": config["linear_value_head_dim"] * heads,
        "attention.recurrent_layers": [kind == _LINEAR for kind in config["layer_types"]] + [False] * ahead,
        "full_attention_interval": config.get("full_attention_interval", 4),
        "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
        "vocab_size": config["vocab_size"],
    }


def _refuse_grouped(config: Config) -> None:
    """Raise UsageError for delta nets with more value than key heads, which llama.cpp keeps in another order."""
    if config["linear_num_key_heads"] != config["linear_num_value_heads"]:
        raise UsageError("delta nets with more value heads than key heads cannot be converted")


def _tensors(config: Config) -> Iterator[TensorPair]:
    yield TensorPair("model.embed_tokens.weight", "token_embd.weight")
    yield TensorPair("model.norm.weight", "output_norm.weight", ONE_ADDED)
    if not config["tie_word_embeddings"]:
        yield TensorPair("lm_head.weight", "output.weight")
    for layer, kind in enumerate(config["layer_types"]):
        yield from _block(f"model.layers.{layer}", layer, kind)
    for head in range(config.get("mtp_num_hidden_layers", 0)):
        block = config["num_hidden_layers"] + head
        yield from _block(f"mtp.layers.{head}", block, _FULL)
        for ours, theirs, transform in _HEAD:
            yield TensorPair(f"mtp.{ours}", f"blk.{block}.{theirs}", transform)


def _block(prefix: str, block: int, kind: str) -> Iterator[TensorPair]:
    for ours, theirs, transform in (*_EVERY, *_KINDS[kind]):
        full = theirs in _FULL_PRECISION
        yield TensorPair(f"{prefix}.{ours}", f"blk.{block}.{theirs}", transform, full_precision=full)


QWEN3_5 = Layout("qwen35", "Qwen3_5ForCausalLM", _config, _metadata, _tensors)
