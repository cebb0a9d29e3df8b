"""A file that is no model is said to be what its header says, before anything is planned."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.models.inspection import inspect_model
from benchctl.models.sources import ModelSearch
from benchctl.recipes.schema import ModelPair, ModelSpec
from benchctl.recipes.source import names_a_model


def refusal(path: Path, *, as_draft_of: Path | None = None) -> str:
    """Return the refusal of a file as the target, or as the draft of another."""
    spec = ModelSpec(source=str(path))
    pair = ModelPair(target=spec if as_draft_of is None else ModelSpec(source=str(as_draft_of)))
    pair = pair if as_draft_of is None else pair.model_copy(update={"draft": spec})
    with pytest.raises(UsageError) as caught:
        ModelSearch(path.parent).check(pair)
    return str(caught.value)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "LoRA": ({"texts": {"general.type": "adapter"}}, "by its header this is a LoRA adapter, not a model"),
    "mmproj": ({"texts": {"general.type": "mmproj"}, "architecture": "clip"}, "a projector for images (mmproj)"),
    "mmproj of an older converter": ({"architecture": "clip"}, "a projector for images (mmproj)"),
    "imatrix": ({"texts": {"general.type": "imatrix"}}, "an importance matrix"),
    "vocabulary": ({"tensors": ()}, "this file has a vocabulary alone, and no weights"),
    "encoder": ({"architecture": "bert"}, "this is an embedding model (bert)"),
    "embedding": ({"architecture": "qwen3", "numbers": {"qwen3.pooling_type": 3}}, "an embedding model (qwen3)"),
    "renamed shard": (
        {"numbers": {"split.count": 2, "split.no": 0}},
        "its header says that it is shard 1 of 2, and its name is that of no shard",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_no_model_is_said_by_its_header(case: str, make_gguf: Callable[..., Path]) -> None:
    made, said = CASES[case]
    target, other = make_gguf("target.gguf"), make_gguf("any.gguf", **made)
    assert said in refusal(other)
    assert refusal(other, as_draft_of=target).startswith(f"models.draft ({other}): {other}: ")
    ModelSearch(target.parent).check(ModelPair(target=ModelSpec(source=str(target))))
    assert said in str(inspect_model(other).refused_as)
    assert inspect_model(target).refused_as is None


def test_a_gguf_file_of_any_name_is_a_model_on_a_command_line(make_gguf: Callable[..., Path]) -> None:
    blob = make_gguf("sha256-0123456789")
    assert names_a_model(str(blob))
    blob.write_text("name: recipe")
    assert not names_a_model(str(blob))
    assert not names_a_model(str(blob.parent))


def test_shards_are_in_their_order_by_header_and_name(make_gguf: Callable[..., Path]) -> None:
    names = [f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
    files = [make_gguf(name, numbers={"split.count": 2, "split.no": index}) for index, name in enumerate(names)]
    ModelSearch(files[0].parent).check(ModelPair(target=ModelSpec(source=str(files[0]))))
    make_gguf(names[1], numbers={"split.count": 2, "split.no": 0})
    assert "says that it is shard 1 of 2, and its name that it is shard 2 of 2" in refusal(files[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"tjgg\x03", "this is a GGML file of the time before GGUF, not a GGUF file"),
        (b"<!doctype html>", "this is a web page: the download was refused"),
        (b"version https://git-lfs", "this is a pointer of Git LFS, without the file"),
        (b"PK\x03\x04", "this is a zip archive, such as PyTorch's weights"),
        (b"FROM ./x.gguf", "this is a Modelfile of Ollama"),
        (b"GGUF\x01\0\0\0", "of version 1; benchctl reads 2 and 3\nConvert the model again."),
    ],
)
def test_what_is_no_gguf_file_is_said_by_its_beginning(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(content + bytes(64))
    assert said in refusal(file)


def test_folders_of_other_programs_are_named(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "this folder has a LoRA adapter (PEFT), not a model" in refusal(tmp_path)
    (tmp_path / "config.json").write_text('{"quantization": {"bits": 4, "group_size": 64}}')
    assert "quantized by MLX, which no engine of benchctl loads" in refusal(tmp_path)


def test_a_folder_says_what_it_lacks(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert "has its weights in PyTorch's format alone (pytorch_model.bin)" in refusal(folder)
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"x")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert "1 of 2 shards of this model are missing: model-00002-of-00002.safetensors" in refusal(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    assert "the index of the safetensors cannot be read" in refusal(folder)
    (folder / "config.json").unlink()
    assert "has safetensors and no config.json" in refusal(folder)
    (folder / "q4.gguf").write_bytes(b"x")
    assert refusal(folder).endswith("Name the GGUF file in it: q4.gguf.")
