"""A model's `config.json` as GGUF metadata."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchctl.errors import UsageError
from benchctl.models.huggingface.architectures import LAYOUTS, LINEAR, Config, Layout

Metadata = Mapping[str, "int | float | bool | str | Sequence[int] | Sequence[bool]"]
"""GGUF metadata of one architecture, its name left out: `attention.head_count`, not `qwen3.attention.head_count`.

An int is written as u32, a float as f32, sequences as arrays, in the order of the mapping.
"""

FULL_PRECISION = {"ssm_a", "ssm_d", "ssm_conv1d.weight"}
"""Matrices of a block that llama.cpp expects in float32."""


FALCON_H1_MULTIPLIERS: Config = {
    **{f"{name}_multiplier": 1.0 for name in ("embedding", "lm_head", "key", "attention_in", "attention_out")},
    **{"ssm_in_multiplier": 1.0, "ssm_out_multiplier": 1.0},
    **{"ssm_multipliers": [1.0] * 5, "mlp_multipliers": [1.0] * 2},
}


def layout_of_class(model_class: str) -> Layout:
    """Return the layout of a transformers model class. Raises UsageError for an unknown one."""
    layouts = {layout.model_class: layout for layout in LAYOUTS.values()}
    if model_class not in layouts:
        raise UsageError(f"no layout writes {model_class} as GGUF", fix=f"Known: {', '.join(layouts)}.")
    return layouts[model_class]


def rope_theta(config: Config) -> float:
    """Return the base of the rotary embedding. Raises UsageError for a scaled one, which the layouts do not write."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind != "default":
        raise UsageError(f"a rotary embedding of type {kind} cannot be written", where="config.json")
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    return float(theta)


def _qwen3(config: Config) -> Metadata:
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


def _falcon_h1(config: Config) -> Metadata:
    for key, expected in {**FALCON_H1_MULTIPLIERS, "mamba_rms_norm": False}.items():
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


def _qwen3_5(config: Config) -> Metadata:
    if config["linear_num_key_heads"] != config["linear_num_value_heads"]:  # llama.cpp keeps them in another order
        raise UsageError("delta nets with more value heads than key heads cannot be converted")
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
        "attention.recurrent_layers": [kind == LINEAR for kind in config["layer_types"]] + [False] * ahead,
        "full_attention_interval": config.get("full_attention_interval", 4),
        "rope.dimension_count": int(config["head_dim"] * rope["partial_rotary_factor"]),
        "vocab_size": config["vocab_size"],
    }


def _eagle3(config: Config) -> Metadata:
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


_BY_ARCHITECTURE: Mapping[str, Callable[[Config], Metadata]] = {
    "falcon-h1": _falcon_h1,
    "qwen3": _qwen3,
    "qwen35": _qwen3_5,
    "eagle3": _eagle3,
}


def metadata_of(architecture: str, config: Config) -> Metadata:
    """Return the hyperparameters of a complete `config.json`. Raises UsageError for what GGUF cannot express."""
    return _BY_ARCHITECTURE[architecture](config)
