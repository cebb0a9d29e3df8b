"""Checkpoints and GGUF files that were never trained."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchctl.models.huggingface.folder import huggingface_folder, write_weights
from training.export import write_gguf
from training.gguf_metadata import layout_of_class

WIDTH, FEED_FORWARD, LAYERS, VOCABULARY = 32, 64, 2, 4096
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
}
CONFIGS: dict[str, dict[str, Any]] = {
    "falcon-h1": {
        **_COMMON,
        "architectures": ["FalconH1ForCausalLM"],
        "tie_word_embeddings": True,
        "mamba_d_ssm": 32,
        "mamba_n_heads": 4,
        "mamba_n_groups": 1,
        "mamba_d_state": 8,
        "mamba_d_conv": 4,
    },
    "qwen3": {**_COMMON, "architectures": ["Qwen3ForCausalLM"], "tie_word_embeddings": False},
}
_SHAPES: dict[str, tuple[int, ...]] = {
    **{"embed_tokens.weight": (VOCABULARY, WIDTH), "lm_head.weight": (VOCABULARY, WIDTH)},
    **{"q_proj.weight": (32, WIDTH), "k_proj.weight": (16, WIDTH), "v_proj.weight": (16, WIDTH)},
    **{"o_proj.weight": (WIDTH, 32), "q_norm.weight": (16,), "k_norm.weight": (16,)},
    **{"gate_proj.weight": (FEED_FORWARD, WIDTH), "up_proj.weight": (FEED_FORWARD, WIDTH)},
    **{"down_proj.weight": (WIDTH, FEED_FORWARD), "mamba.A_log": (4,), "mamba.D": (4,), "mamba.dt_bias": (4,)},
    **{
        "conv1d.weight": (48, 1, 4),
        "conv1d.bias": (48,),
        "in_proj.weight": (84, WIDTH),
        "out_proj.weight": (WIDTH, 32),
    },
}

Weights = dict[str, np.ndarray[Any, Any]]
MakeModel = Callable[..., tuple[Weights, Path]]


@pytest.fixture
def make_model(tmp_path: Path, tiny_target: Path) -> MakeModel:
    """Make random weights and a GGUF file of them, with the bundled models' tokenizer."""

    def make(architecture: str, **changes: Any) -> tuple[Weights, Path]:
        config = CONFIGS[architecture] | changes
        random = np.random.default_rng(1)
        pairs = layout_of_class(config["architectures"][0]).tensors(config)
        weights = {
            pair.huggingface: random.uniform(0.1, 2.0, _shape(pair.huggingface)).astype(np.float32) for pair in pairs
        }
        checkpoint = tmp_path / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        (checkpoint / "config.json").write_text(json.dumps(config))
        write_weights(checkpoint / "model.safetensors", weights)
        file = tmp_path / f"{architecture}.gguf"
        write_gguf(checkpoint, huggingface_folder(tiny_target), "random", "random weights", file)
        return weights, file

    return make


def _shape(name: str) -> tuple[int, ...]:
    return next((shape for end, shape in _SHAPES.items() if name.endswith(end)), (WIDTH,))


def floats(weights: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, list[Any]]:
    """Plain numbers, which compare with a readable difference."""
    return {name: array.tolist() for name, array in sorted(weights.items())}
