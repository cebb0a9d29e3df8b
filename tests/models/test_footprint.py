"""What a model takes and reads, held against the files themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from benchctl.cli.app import app
from benchctl.errors import UsageError
from benchctl.models.files import ModelFile, ResolvedModel
from benchctl.models.footprint import (
    Footprint,
    footprint_by_hand,
    footprint_of_folder,
    footprint_of_gguf,
    read_share,
)
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.models.inspection import inspect_model
from tests.cli.calls import answer

QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
"""Qwen2.5-Coder-0.5B-Instruct as published: 494 M parameters."""


def test_a_gguf_file_takes_what_its_tensors_take(tiny_target: Path) -> None:
    result = footprint_of_gguf(tiny_target)
    tensors = read_header(tiny_target).tensors
    assert result.weights == sum(tensor.nbytes or 0 for tensor in tensors)
    assert result.weights_per_step == result.weights, "its embeddings are its output matrix, too"
    assert result.cache_per_token and result.state, "a hybrid has a cache and a state"
    assert result.at(100) == result.weights + 100 * result.cache_per_token + result.state
    assert result.read_per_step(100) == result.weights + 100 * result.cache_per_token + 2 * result.state


@pytest.mark.parametrize(
    ("text", "weights"), [("8B", 16e9), ("8b@4.5", 4.5e9), ("135M", 270e6), ("1.5B@8", 1.5e9), ("0B", 0)]
)
def test_sizes_by_hand(text: str, weights: float) -> None:
    assert footprint_by_hand(text) == Footprint(text, round(weights), round(weights), None, None)


@pytest.mark.parametrize("text", ["8", "B", "model.gguf", "8B@", "8B@x", "-8B", "8G", "８B"])
def test_other_text_is_no_size(text: str) -> None:
    assert footprint_by_hand(text) is None


def test_a_config_alone_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN))
    result = footprint_of_folder(file)
    assert result.weights / 2 == pytest.approx(494e6, rel=0.001)
    assert result.cache_per_token == 2 * 24 * 2 * 64 * 2
    assert result.state == 0


def test_an_untied_embedding_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**QWEN, "tie_word_embeddings": False}))
    result = footprint_of_folder(file)
    assert result.weights - result.weights_per_step == 151936 * 896 * 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "cannot be read"),
        ("[]", "expected a JSON object"),
        (json.dumps({**QWEN, "model_type": "mamba9"}), "mamba9 model cannot be counted"),
        (json.dumps({**QWEN, "hidden_size": "big"}), "cannot be counted"),
    ],
)
def test_a_config_that_does_not_say_is_refused(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(content)
    with pytest.raises(UsageError, match=said):
        footprint_of_folder(file)


MIXTRAL = {
    **{"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "torch_dtype": "bfloat16"},
    **{"num_local_experts": 8, "num_experts_per_tok": 2},
}
QWEN3_MOE = {
    **{"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768},
    **{"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128},
    **{"vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8, "torch_dtype": "bfloat16"},
}
QWEN15_MOE = {
    **{"model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "moe_intermediate_size": 1408},
    **{"shared_expert_intermediate_size": 5632, "num_hidden_layers": 24, "num_attention_heads": 16},
    **{"num_key_value_heads": 16, "vocab_size": 151936, "num_experts": 60, "num_experts_per_tok": 4},
}


@pytest.mark.parametrize(
    ("config", "all_of_them", "active"),
    [(MIXTRAL, 46.7e9, 12.9e9), (QWEN3_MOE, 30.5e9, 3.3e9), (QWEN15_MOE, 14.3e9, 2.7e9)],
)
def test_a_mixture_has_the_parameters_that_its_makers_name(
    tmp_path: Path, config: dict[str, object], all_of_them: float, active: float
) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    result = footprint_of_folder(file)
    assert result.parameters == pytest.approx(all_of_them, rel=0.005)
    assert result.active_parameters == pytest.approx(active, rel=0.02)
    assert result.weights_per_step < result.weights / 2


@pytest.fixture
def mixture(tmp_path: Path) -> Path:
    """A layer of four experts, of which a token uses one."""
    path = tmp_path / "moe.gguf"
    writer = GGUFWriter(path, "qwen3moe")
    writer.add_block_count(1)
    writer.add_expert_count(4)
    writer.add_expert_used_count(1)
    writer.add_tensor("token_embd.weight", np.zeros((10, 8), np.float32))
    writer.add_tensor("blk.0.ffn_up_exps.weight", np.zeros((4, 8, 8), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        step()
    writer.close()
    return path


def test_a_verify_reads_the_experts_of_all_its_tokens(mixture: Path) -> None:
    footprint, facts = footprint_of_gguf(mixture), read_facts(mixture)
    assert (facts.experts, facts.experts_used) == (4, 1)
    assert (facts.parameters, facts.active_parameters) == (336, 80 + 64)
    assert footprint.weights_per_step == 4 * (80 + 64)
    assert read_share(ResolvedModel(str(mixture), (ModelFile(mixture, 1, ""),))) == pytest.approx(144 / 336)
    read = [footprint.weights_per_step + footprint.further_per_verify(width) for width in (1, 2, 1000)]
    assert read == [pytest.approx(4 * 144), pytest.approx(4 * (80 + 256 * (1 - 0.75**2))), pytest.approx(4 * 336)]


def test_packed_weights_of_a_mixture_are_read_in_part(tmp_path: Path) -> None:
    """Eight numbers of 4 bits in one of 32: fewer numbers than its experts have, so a step was said to read nothing."""
    config = {
        **{"model_type": "qwen3_moe", "hidden_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_experts": 16, "num_experts_per_tok": 1, "vocab_size": 1000, "layer_types": 3, "mlp_only_layers": 4},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    packed = np.zeros(2 * 16 * 3 * 64 * 64 // 8, np.int32)
    save_file({"experts": packed, "embed": np.zeros((1000, 64), np.float16)}, tmp_path / "model.safetensors")
    assert footprint_of_folder(tmp_path).weights == packed.nbytes + 2 * 1000 * 64
    assert read_share(ResolvedModel("", (), folder=tmp_path)) == pytest.approx(1 / 16)


def test_inspect_tells_what_a_token_uses_and_what_a_verify_reads(mixture: Path, tiny_target: Path) -> None:
    shown = " ".join(answer(app, "models", "inspect", str(mixture)).split())
    assert "1 of 4 in a layer, 144 parameters" in shown
    assert "of them for 2, 76" in shown
    result = json.loads(answer(app, "models", "inspect", str(mixture), "--json"))
    assert result["active_parameters"] == 144
    assert result["experts_read"] == {"2": 0.4375, "5": 0.7627, "9": 0.9249}
    assert inspect_model(tiny_target).experts_read is None


def test_a_model_without_experts_reads_all_of_it_whatever_it_verifies(tiny_target: Path) -> None:
    result = footprint_of_gguf(tiny_target)
    assert (result.active_parameters, result.further_per_verify(9)) == (None, 0.0)
