"""Model files with other bytes: GGUF headers, and the configuration, tokenizer and safetensors of a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchctl.engines.llama_cpp.trial import write_trial_model
from benchctl.models.folder_facts import folder_facts, vocabulary_differences
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.models.vocabulary import compare, end_tokens, special_tokens, token_bytes
from tests.fuzz import fuzzed, mistaken, outcome, spoilt, told

pytestmark = pytest.mark.usefixtures(told.__name__)


def read_gguf(file: Path, sound: Path) -> None:
    header = read_header(file)
    read_facts(file)
    special_tokens(header)
    end_tokens(header)
    token_bytes(file)
    compare(sound, file)
    compare(file, sound)


def test_a_gguf_is_read_or_refused(tmp_path: Path) -> None:
    sound, file = tmp_path / "sound.gguf", tmp_path / "model.gguf"
    write_trial_model(sound, "q4_0")
    content = sound.read_bytes()
    end = content.index(b"tokenizer.ggml.tokens") + 400
    head, tail = content[:end], content[end:]

    @fuzzed
    @given(st.data())
    def one(data: st.DataObject) -> None:
        if data.draw(st.booleans()):
            file.write_bytes(data.draw(spoilt(head)) + tail)
        else:
            file.write_bytes(head + data.draw(spoilt(tail[: 1 << 13])) + tail[1 << 13 :])
        outcome("gguf", lambda: read_gguf(file, sound))

    one()


CONFIG = {
    "architectures": ["ToyForCausalLM"],
    "model_type": "toy",
    "vocab_size": 3,
    "max_position_embeddings": 128,
    "num_hidden_layers": 1,
    "text_config": {"vocab_size": 3},
}
TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []},
    "added_tokens": [{"id": 2, "content": "<end>"}],
}


def read_folder(folder: Path, sound: Path) -> None:
    json.dumps(folder_facts(folder))
    vocabulary_differences(sound, folder)
    vocabulary_differences(folder, sound)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """A folder to spoil, and one like it."""
    import numpy as np
    from safetensors.numpy import save_file

    folders = (tmp_path / "model", tmp_path / "sound")
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        save_file({"model.layers.0.self_attn.weight": np.zeros((2, 2), np.float32)}, folder / "model.safetensors")
    return folders


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_folder_is_read_or_refused(name: str, folders: tuple[Path, Path]) -> None:
    folder, sound = folders
    content = (sound / name).read_bytes()
    document: Any = None if name.endswith(".safetensors") else json.loads(content)

    @fuzzed
    @given(spoilt(content) if document is None else st.one_of(spoilt(content), mistaken(document)))
    def one(changed: bytes) -> None:
        (folder / name).write_bytes(changed)
        outcome(name, lambda: read_folder(folder, sound))

    one()
