"""What a model takes and reads, held against the files themselves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.models.footprint import Footprint, footprint_by_hand, footprint_of_folder, footprint_of_gguf
from benchctl.models.gguf_header import read_header

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


def test_a_config_alone_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(QWEN))
    found = footprint_of_folder(file)
    assert found.weights / 2 == pytest.approx(494e6, rel=0.001)
    assert found.cache_per_token == 2 * 24 * 2 * 64 * 2
    assert found.state == 0


def test_an_untied_embedding_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**QWEN, "tie_word_embeddings": False}))
    found = footprint_of_folder(file)
    assert found.weights - found.weights_per_step == 151936 * 896 * 2


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
