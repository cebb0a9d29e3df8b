"""llama.cpp's own converter, for real: a folder of safetensors becomes a GGUF file with the same numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchctl.engines.common.programs import program
from benchctl.engines.llama_cpp.source import converter_script
from benchctl.models.convert import converted
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.models.huggingface.folder import write_weights

WIDTH, FEED_FORWARD = 64, 128
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": WIDTH,
    "intermediate_size": FEED_FORWARD,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "dtype": "float32",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A llama of one layer with random weights and a SentencePiece vocabulary."""
    import sentencepiece

    here = tmp_path / "tiny-llama"
    here.mkdir()
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"the {number} words of a line that says {number % 7}" for number in range(400)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(text),
        model_prefix=str(here / "tokenizer"),
        vocab_size=320,
        model_type="bpe",
        byte_fallback=True,
        minloglevel=2,
    )
    vocabulary = sentencepiece.SentencePieceProcessor(model_file=str(here / "tokenizer.model")).vocab_size()
    (here / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": vocabulary}))
    shapes = {
        **dict.fromkeys(("model.embed_tokens", "lm_head"), (vocabulary, WIDTH)),
        **dict.fromkeys(("model.norm", "model.layers.0.input_layernorm"), (WIDTH,)),
        "model.layers.0.post_attention_layernorm": (WIDTH,),
        **dict.fromkeys(("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.o_proj"), (WIDTH, WIDTH)),
        **{f"model.layers.0.self_attn.{part}_proj": (WIDTH // 2, WIDTH) for part in "kv"},
        **{f"model.layers.0.mlp.{part}_proj": (FEED_FORWARD, WIDTH) for part in ("gate", "up")},
        "model.layers.0.mlp.down_proj": (WIDTH, FEED_FORWARD),
    }
    random = np.random.default_rng(1)
    weights: dict[str, np.ndarray[Any, Any]] = {
        f"{name}.weight": random.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()
    }
    write_weights(here / "model.safetensors", weights)
    np.save(tmp_path / "down.npy", weights["model.layers.0.mlp.down_proj.weight"])
    return here


@pytest.mark.engine
@pytest.mark.torch
def test_the_real_converter_keeps_vocabulary_and_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = program(converter_script())  # the source distribution comes from the user's cache
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    file = converted(folder, tool)
    facts = read_facts(file)
    assert (facts.architecture, facts.layers, facts.context_length) == ("llama", 1, 256)
    assert (facts.tokenizer_model, facts.vocab_size) == ("llama", 320)
    header = read_header(file)
    (down,) = (tensor for tensor in header.tensors if tensor.name == "blk.0.ffn_down.weight")
    stored = np.fromfile(file, "<f4", down.elements, offset=header.data_start + down.offset)
    assert down.type_name == "f32"
    assert np.array_equal(stored.reshape(down.shape[::-1]), np.load(tmp_path / "down.npy"))
    assert [path.name for path in (tmp_path / "cache" / "converted").iterdir()] == [file.name]
