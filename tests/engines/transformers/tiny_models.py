"""Tiny models of random weights, one of every architecture that is declared and some that are not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

VOCABULARY = 256
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "head_dim": 16,
}
_SSM = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16}
_FALCON = {**_SSM, "mamba_d_ssm": 64, "head_dim": 16}
_GRANITE = {**_SSM, "mamba_expand": 1, "layer_types": ["linear_attention", "full_attention"] * 2}
_WINDOW = {"sliding_window": 8}
DECLARED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "falcon_h1": ("falcon_h1", _FALCON),
    "falcon_h1, gated norm": ("falcon_h1", {**_FALCON, "mamba_rms_norm": True}),
    "qwen3_5": ("qwen3_5_text", _LINEAR),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "llama": ("llama", {}),
}
"""By a name: the model type, and what of its configuration differs from `_SIZES`."""


def loaded(model_type: str, tokenizer: Any = None, seed: int = 0, **changed: Any) -> Any:
    """Return a model as the server has it, without a folder: `serving.loading.Loaded`."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **{**_SIZES, **changed})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = transformers.GenerationConfig()
    return SimpleNamespace(folder=Path(), model=model, tokenizer=tokenizer, ends=frozenset(), context=256)
