"""The model files in the package are the ones that the index names, small, and readable."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader

FOLDER = Path(__file__).parents[2] / "benchctl" / "models" / "bundled"
INDEX: dict[str, dict[str, Any]] = json.loads((FOLDER / "index.json").read_text("utf-8"))
LIMIT = 30 * 1024 * 1024


def field(reader: GGUFReader, name: str) -> Any:
    result = reader.get_field(name)
    assert result is not None, name
    return result.contents()


def test_the_index_names_every_file() -> None:
    assert {entry["file"] for entry in INDEX.values()} == {path.name for path in FOLDER.glob("*.gguf")}
    assert {"tiny-hybrid", "tiny-hybrid-draft", "tiny-transformer"} <= INDEX.keys()


def test_all_files_together_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= LIMIT


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_file_is_the_one_in_the_index(name: str) -> None:
    data = (FOLDER / INDEX[name]["file"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == INDEX[name]["sha256"]
    assert len(data) == INDEX[name]["bytes"]


@pytest.mark.parametrize("name", sorted(INDEX))
def test_a_file_says_what_it_is(name: str) -> None:
    entry = INDEX[name]
    reader = GGUFReader(FOLDER / entry["file"])
    assert field(reader, "general.name") == name
    assert field(reader, "general.architecture") == entry["architecture"]
    assert field(reader, "general.license").lower() == entry["licence"].lower()
    assert sum(int(tensor.n_elements) for tensor in reader.tensors) == entry["parameters"]


@pytest.mark.parametrize("name", sorted(INDEX))
def test_tokenizer_and_chat_template(name: str) -> None:
    reader = GGUFReader(FOLDER / INDEX[name]["file"])
    assert field(reader, "tokenizer.ggml.model") == "gpt2"
    assert field(reader, "tokenizer.ggml.pre") == "gpt-2"
    assert len(field(reader, "tokenizer.ggml.tokens")) == 4096
    assert field(reader, "tokenizer.ggml.tokens")[field(reader, "tokenizer.ggml.eos_token_id")] == "<|im_end|>"
    assert "<|im_start|>" in field(reader, "tokenizer.chat_template")


@pytest.mark.parametrize("name", sorted(INDEX.keys() - {"tiny-hybrid"}))
def test_all_share_one_tokenizer(name: str) -> None:
    first, second = (GGUFReader(FOLDER / INDEX[model]["file"]) for model in ("tiny-hybrid", name))
    for key in ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.chat_template"):
        assert field(first, key) == field(second, key)


@pytest.mark.parametrize(
    ("name", "divisor"), [("tiny-hybrid", 256), ("tiny-hybrid-draft", 32), ("tiny-transformer", 256)]
)
def test_matrices_are_bfloat16_with_rows_that_quantize(name: str, divisor: int) -> None:
    kinds = {"F32", "BF16"}
    for tensor in GGUFReader(FOLDER / INDEX[name]["file"]).tensors:
        assert tensor.tensor_type.name in kinds
        if tensor.tensor_type.name == "BF16":
            assert int(tensor.shape[0]) % divisor == 0, tensor.name
