"""Qwen3.5 with its multi-token head, and the EAGLE-3 draft: weights come back as they were."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchctl.errors import UsageError
from benchctl.models.huggingface.architectures import LAYOUTS, Config
from benchctl.models.huggingface.folder import (
    from_bfloat16,
    huggingface_folder,
    to_bfloat16,
    write_weights,
)
from tests.models.huggingface.conftest import Weights, floats
from training.export import read_weights, write_gguf
from training.gguf_metadata import metadata_of

WIDTH, INNER, VOCABULARY = 32, 64, 4096
COMMON: Config = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
}
CONFIGS: dict[str, Config] = {
    "qwen35": {
        **COMMON,
        "architectures": ["Qwen3_5ForCausalLM"],
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "full_attention_interval": 2,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 50000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    },
    "eagle3": {
        **COMMON,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": VOCABULARY,
        "target_hidden_size": WIDTH,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        "norm_before_residual": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
    },
}
SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "qwen35": {
        "embed_tokens.weight": (VOCABULARY, WIDTH),
        "lm_head.weight": (VOCABULARY, WIDTH),
        "q_proj.weight": (2 * 32, WIDTH),
        "k_proj.weight": (16, WIDTH),
        "v_proj.weight": (16, WIDTH),
        "q_norm.weight": (16,),
        "k_norm.weight": (16,),
        "linear_attn.norm.weight": (8,),
        "A_log": (4,),
        "dt_bias": (4,),
        "in_proj_a.weight": (4, WIDTH),
        "in_proj_b.weight": (4, WIDTH),
        "in_proj_qkv.weight": (96, WIDTH),
        "conv1d.weight": (96, 1, 4),
        "fc.weight": (WIDTH, 2 * WIDTH),
    },
    "eagle3": {
        "q_proj.weight": (32, 2 * WIDTH),
        "k_proj.weight": (16, 2 * WIDTH),
        "v_proj.weight": (16, 2 * WIDTH),
        "fc.weight": (WIDTH, 3 * WIDTH),
    },
}
COMMON_SHAPES: dict[str, tuple[int, ...]] = {
    "gate_proj.weight": (INNER, WIDTH),
    "up_proj.weight": (INNER, WIDTH),
    "down_proj.weight": (WIDTH, INNER),
    "_proj.weight": (WIDTH, 32),
    "in_proj_z.weight": (32, WIDTH),
}


def random_weights(architecture: str, config: Config) -> Weights:
    random = np.random.default_rng(1)
    shapes = SHAPES[architecture] | COMMON_SHAPES
    return {
        pair.huggingface: random.uniform(
            0.1, 2.0, next((shapes[end] for end in shapes if pair.huggingface.endswith(end)), (WIDTH,))
        ).astype(np.float32)
        for pair in LAYOUTS[architecture].tensors(config)
    }


def made(architecture: str, folder: Path, tokenizer: Path, **changes: Any) -> tuple[Weights, Path]:
    config = CONFIGS[architecture] | changes
    weights = random_weights(architecture, config)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_weights(folder / "model.safetensors", weights)
    write_gguf(folder, huggingface_folder(tokenizer), "random", "random weights", folder / "model.gguf")
    return weights, folder / "model.gguf"


@pytest.mark.parametrize("architecture", sorted(CONFIGS))
def test_weights_come_back(architecture: str, tmp_path: Path, tiny_target: Path) -> None:
    weights, file = made(architecture, tmp_path / "made", tiny_target)
    folder = huggingface_folder(file, config=CONFIGS[architecture])
    result = read_weights(folder / "model.safetensors")
    # A norm's weight counts from 0 in the one place and from 1 in the other: what 1 + w loses is not in the bfloat16.
    assert floats(result) == floats({name: from_bfloat16(to_bfloat16(array)) for name, array in weights.items()})


def test_without_a_head_there_is_none_in_the_file(tmp_path: Path, tiny_target: Path) -> None:
    changes = {"mtp_num_hidden_layers": 0, "tie_word_embeddings": False}
    weights, file = made("qwen35", tmp_path / "made", tiny_target, **changes)
    result = read_weights(huggingface_folder(file, config=CONFIGS["qwen35"] | changes) / "model.safetensors")
    assert result.keys() == weights.keys()
    assert not any(name.startswith("mtp.") for name in weights)


def test_llama_cpp_knows_every_tensor_name() -> None:
    """By gguf's own table of names; the published gguf has none for EAGLE-3, whose file the real server loads."""
    by_hand = {
        "dt_bias": gguf.MODEL_TENSOR.SSM_DT,
        "mtp.fc.weight": gguf.MODEL_TENSOR.NEXTN_EH_PROJ,
        "mtp.norm.weight": gguf.MODEL_TENSOR.NEXTN_SHARED_HEAD_NORM,
        "mtp.pre_fc_norm_embedding.weight": gguf.MODEL_TENSOR.NEXTN_ENORM,
        "mtp.pre_fc_norm_hidden.weight": gguf.MODEL_TENSOR.NEXTN_HNORM,
    }
    tensor_names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN35, 4)
    for pair in LAYOUTS["qwen35"].tensors(CONFIGS["qwen35"]):
        special = next((kind for end, kind in by_hand.items() if pair.huggingface.endswith(end)), None)
        if special is None:
            name = pair.huggingface.replace("mtp.layers.0.", "model.layers.3.")  # so the converter renames it
            expected = tensor_names.get_name(name, try_suffixes=(".weight", ".bias"))
        else:
            expected = gguf.TENSOR_NAMES[special].format(bid=pair.gguf.split(".")[1])
        assert expected is not None, pair.huggingface
        assert pair.gguf in {expected, f"{expected}.weight", f"{expected}.bias"}


def test_rotary_pairs_are_those_of_the_same_head() -> None:
    """Element i and i + half of a head (Hugging Face) stand side by side in llama.cpp's Llama."""
    pairs = {pair.huggingface: pair for pair in LAYOUTS["eagle3"].tensors(CONFIGS["eagle3"])}
    rows = np.arange(32, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    stored = pairs["midlayer.self_attn.q_proj.weight"].transform.forward(rows)
    assert stored[:, 0].tolist() == [head * 16 + i + half for head in range(2) for i in range(8) for half in (0, 8)]


@pytest.mark.parametrize(
    ("architecture", "change", "message"),
    [
        ("qwen35", {"linear_num_value_heads": 8}, "more value heads than key heads"),
        ("qwen35", {"attention_bias": True}, "attention with biases"),
        ("eagle3", {"mlp_bias": True}, "layers with biases"),
    ],
)
def test_what_cannot_be_written_is_refused(architecture: str, change: Config, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        metadata_of(architecture, CONFIGS[architecture] | change)


def test_a_draft_with_tensors_of_its_own_is_refused(tmp_path: Path, tiny_target: Path) -> None:
    folder = tmp_path / "made"
    weights, _ = made("eagle3", folder, tiny_target)
    write_weights(folder / "model.safetensors", {**weights, "lm_head.weight": np.ones((8, WIDTH), np.float32)})
    with pytest.raises(ValueError, match=r"lm_head.weight"):
        write_gguf(folder, folder / "tokenizer", "random", "random weights", folder / "again.gguf")
