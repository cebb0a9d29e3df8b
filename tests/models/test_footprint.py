"""What a model takes and reads, held against the files themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from safetensors.numpy import save_file

from benchctl.errors import UsageError
from benchctl.models.footprint import Footprint, footprint_by_hand, footprint_of_folder, footprint_of_gguf
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header


def test_a_gguf_file_takes_what_its_tensors_take(tiny_target: Path) -> None:
    found = footprint_of_gguf(tiny_target)
    tensors = read_header(tiny_target).tensors
    assert found.weights == sum(tensor.nbytes or 0 for tensor in tensors)
    assert found.weights_per_step == found.weights, "its embeddings are its output matrix, too"
    assert found.cache_per_token and found.state, "a hybrid has a cache and a state"
    assert found.at(100) == found.weights + 100 * found.cache_per_token + found.state
    assert found.read_per_step(100) == found.weights + 100 * found.cache_per_token + 2 * found.state


@pytest.mark.parametrize(
    ("text", "weights"), [("8B", 16e9), ("8b@4.5", 4.5e9), ("135M", 270e6), ("1.5B@8", 1.5e9), ("0B", 0)]
)
def test_sizes_by_hand(text: str, weights: float) -> None:
    assert footprint_by_hand(text) == Footprint(text, round(weights), round(weights), None, None)


@pytest.mark.parametrize("text", ["8", "B", "model.gguf", "8B@", "8B@x", "-8B", "8G", "８B"])
def test_other_text_is_no_size(text: str) -> None:
    assert footprint_by_hand(text) is None


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="no weights"):
        footprint_of_folder(tmp_path)


def test_a_mixture_has_the_experts_of_its_config(tmp_path: Path) -> None:
    """Mixtral's shape, 1/64 as wide: 8 experts of three matrices in each of two layers, two of them used by a token."""
    config = {"hidden_size": 64, "intermediate_size": 224, "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"num_key_value_heads": 2, "vocab_size": 500, "num_local_experts": 8, "num_experts_per_tok": 2}
    (tmp_path / "config.json").write_text(json.dumps(config))
    experts = 2 * 8 * 3 * 64 * 224
    weights = {"embed": np.zeros((500, 64), np.float16), "head": np.zeros((500, 64), np.float16)}
    save_file({**weights, "experts": np.zeros(experts, np.float16)}, tmp_path / "model.safetensors")
    found = footprint_of_folder(tmp_path)
    assert found.parameters == 2 * 500 * 64 + experts
    assert found.active_parameters == 2 * 500 * 64 + experts // 4
    assert found.weights_per_step == 2 * (500 * 64 + experts // 4), "of the embeddings a row is read"
    assert found.cache_per_token == 2 * 2 * 2 * 16 * 2


def test_a_verify_reads_the_experts_of_all_its_tokens(tmp_path: Path) -> None:
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
    found, facts = footprint_of_gguf(path), read_facts(path)
    assert (facts.experts, facts.experts_used) == (4, 1)
    assert (facts.parameters, facts.active_parameters) == (336, 80 + 64)
    assert found.weights_per_step == 4 * (80 + 64)
    read = [found.weights_per_step + found.further_per_verify(width) for width in (1, 2, 1000)]
    assert read == [pytest.approx(4 * 144), pytest.approx(4 * (80 + 256 * (1 - 0.75**2))), pytest.approx(4 * 336)]


def test_a_model_without_experts_reads_all_of_it_whatever_it_verifies(tiny_target: Path) -> None:
    found = footprint_of_gguf(tiny_target)
    assert (found.active_parameters, found.further_per_verify(9)) == (None, 0.0)
