"""Falcon-H1: Mamba-2 and attention side by side in every layer.

llama.cpp's converter multiplies the multipliers into the weights, so what comes from GGUF has multipliers of 1.
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
from benchctl.models.huggingface.transforms import COLUMN, CONVOLUTION, NEGATIVE_EXPONENTIAL, SAME, one_after_other

_MULTIPLIERS: Config = {
    "embedding_multiplier": 1.0,
    "lm_head_multiplier": 1.0,
    "key_multiplier": 1.0,
    "attention_in_multiplier": 1.0,
    "attention_out_multiplier": 1.0,
    "ssm_in_multiplier": 1.0,
    "ssm_out_multiplier": 1.0,
    "ssm_multipliers": [1.0] * 5,
    "mlp_multipliers": [1.0] * 2,
}
_LAYER = (
    ("feed_forward.down_proj.weight", "ffn_down.weight", SAME),
    ("feed_forward.gate_proj.weight", "ffn_gate.weight", SAME),
    ("feed_forward.up_proj.weight", "ffn_up.weight", SAME),
    ("input_layernorm.weight", "attn_norm.weight", SAME),
    ("mamba.A_log", "ssm_a", one_after_other(NEGATIVE_EXPONENTIAL, COLUMN)),
    ("mamba.D", "ssm_d", COLUMN),
    ("mamba.conv1d.bias", "ssm_conv1d.bias", SAME),
    ("mamba.conv1d.weight", "ssm_conv1d.weight", CONVOLUTION),
    ("mamba.dt_bias", "ssm_dt.bias", SAME),
    ("mamba.in_proj.weight", "ssm_in.weight", SAME),
    ("mamba.out_proj.weight", "ssm_out.weight", SAME),
    ("pre_ff_layernorm.weight", "ffn_norm", SAME),  # without `.weight`: so llama.cpp calls it
    ("self_attn.k_proj.weight", "attn_k.weight", SAME),
    ("self_attn.o_proj.weight", "attn_output.weight", SAME),
    ("self_attn.q_proj.weight", "attn_q.weight", SAME),
    ("self_attn.v_proj.weight", "attn_v.weight", SAME),
)
_FULL_PRECISION = {"ssm_a", "ssm_d", "ssm_conv1d.weight"}


def _config(model: ModelHeader) -> Config:
    vocabulary, hidden = model.shape("token_embd.weight")
    inner, scan_heads = model.integer("ssm.inner_size"), model.integer("ssm.time_step_rank")
    return {
        "model_type": "falcon_h1",
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
        "mamba_d_ssm": inner,
        "mamba_n_heads": scan_heads,
        "mamba_d_head": inner // scan_heads,
        "mamba_n_groups": model.integer("ssm.group_count"),
        "mamba_d_state": model.integer("ssm.state_size"),
        "mamba_d_conv": model.integer("ssm.conv_kernel"),
        "mamba_chunk_size": 64,  # how long the pieces of a scan are: no part of the model, and small for short prompts
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_rms_norm": False,
        "attention_bias": False,
        "mlp_bias": False,
        "projectors_bias": False,
        **_MULTIPLIERS,
    }


def _metadata(config: Config) -> Metadata:
    for key, expected in {**_MULTIPLIERS, "mamba_rms_norm": False}.items():
        if config.get(key, expected) != expected:
            raise UsageError(f"{key} is {config[key]}; only {expected} can be written", where="config.json")
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "block_count": config["num_hidden_layers"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["head_dim"],
        "rope.freq_base": rope_theta(config),
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "ssm.conv_kernel": config["mamba_d_conv"],
        "ssm.inner_size": config["mamba_d_ssm"],
        "ssm.state_size": config["mamba_d_state"],
        "ssm.time_step_rank": config["mamba_n_heads"],
        "ssm.group_count": config["mamba_n_groups"],
        "vocab_size": config["vocab_size"],
    }


def _tensors(config: Config) -> Iterator[TensorPair]:
    yield TensorPair("model.embed_tokens.weight", "token_embd.weight")
    yield TensorPair("model.final_layernorm.weight", "output_norm.weight")
    for layer in range(config["num_hidden_layers"]):
        for ours, theirs, transform in _LAYER:
            full = theirs in _FULL_PRECISION
            yield TensorPair(f"model.layers.{layer}.{ours}", f"blk.{layer}.{theirs}", transform, full_precision=full)
    if not config["tie_word_embeddings"]:
        yield TensorPair("lm_head.weight", "output.weight")


FALCON_H1 = Layout("falcon-h1", "FalconH1ForCausalLM", _config, _metadata, _tensors)
