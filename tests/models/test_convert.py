"""A safetensors folder becomes a GGUF file once, by a converter that is handed in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchctl.errors import EngineError, UsageError
from benchctl.models.convert import converted, is_safetensors_folder
from benchctl.models.huggingface.folder import write_weights
from benchctl.models.quantize import OnLine, Program
from benchctl.models.sources import ModelSearch
from benchctl.recipes.schema import ModelPair, ModelSpec

MakeGguf = Callable[..., Path]


def store(folder: Path, number: float, kind: type[np.floating[Any]] = np.float32) -> None:
    write_weights(folder / "model.safetensors", {"lm_head.weight": np.full((2, 2), number, dtype=kind)})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder."""
    model_folder = tmp_path / "hf"
    model_folder.mkdir()
    (model_folder / "config.json").write_text("{}")
    (model_folder / "tokenizer.json").write_text("{}")
    store(model_folder, 1.0)
    return model_folder


def converter(made: Path | None, *, status: int = 0, build: str = "1", precision: str = "f32") -> Program:
    """A converter that writes the file `made`, or fails."""

    def run(argv: Sequence[str], log: Path, on_line: OnLine | None) -> int:
        assert argv[1:4] == ["--outtype", precision, "--outfile"]
        log.write_text("Model architecture FooForCausalLM is not supported\n")
        if made is not None:
            shutil.copy(made, argv[4])
        return status

    return Program(("convert.py",), build, run)


def test_it_is_converted_once_for_the_same_content_and_converter(
    folder: Path, make_gguf: MakeGguf, cache: Path
) -> None:
    model = make_gguf()
    notices: list[str] = []
    first = converted(folder, converter(model), notice=notices.append)
    assert converted(folder, converter(None), notice=notices.append) == first
    assert notices == ["Converting hf to GGUF"]
    assert first.read_bytes() == model.read_bytes()
    assert converted(folder, converter(model, build="2")) != first
    store(folder, 2.0)
    assert converted(folder, converter(model)) != first
    assert len(list((cache / "converted").iterdir())) == 3


def test_it_keeps_the_precision_that_most_weights_have(folder: Path, make_gguf: MakeGguf) -> None:
    store(folder, 1.0, np.float16)
    write_weights(folder / "norms.safetensors", {"norm.weight": np.ones(3, dtype=np.float32)})
    converted(folder, converter(make_gguf(), precision="f16"))


def test_weights_that_are_cut_off_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{")
    with pytest.raises(UsageError, match="truncated or damaged"):
        converted(folder, converter(None))


def test_a_source_may_be_such_a_folder(folder: Path, make_gguf: MakeGguf, tmp_path: Path) -> None:
    assert is_safetensors_folder(folder)
    tool = converter(make_gguf())
    (file,) = ModelSearch(tmp_path, find_tool=lambda name: tool).files(str(folder))
    assert file.suffix == ".gguf"
    with pytest.raises(UsageError, match="not a GGUF file"):
        ModelSearch(tmp_path).files(str(folder))


def test_a_failing_converter_leaves_nothing_and_its_words_are_kept(folder: Path, cache: Path) -> None:
    with pytest.raises(EngineError) as caught:
        converted(folder, converter(None, status=1))
    assert caught.value.log_tail == ("Model architecture FooForCausalLM is not supported",)
    assert list((cache / "converted").iterdir()) == []


def test_half_a_model_is_no_model(folder: Path, make_gguf: MakeGguf, cache: Path) -> None:
    half = make_gguf()
    half.write_bytes(half.read_bytes()[:-100])
    with pytest.raises(EngineError, match="truncated"):
        converted(folder, converter(half))
    assert list((cache / "converted").iterdir()) == []


def test_a_head_without_a_tokenizer_is_converted_with_its_target(
    folder: Path, make_gguf: MakeGguf, tmp_path: Path
) -> None:
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    store(head, 3.0)
    model, arguments = make_gguf(), []

    def run(argv: Sequence[str], log: Path, on_line: OnLine | None) -> int:
        arguments.append(argv[5:])
        log.write_text("")
        shutil.copy(model, argv[4])
        return 0

    def resolved(target: Path) -> None:
        pair = ModelPair(target=ModelSpec(source=str(target)), draft=ModelSpec(source=str(head)))
        ModelSearch(tmp_path, find_tool=lambda name: Program(("convert.py",), "1", run)).pair(pair)

    resolved(folder)
    assert arguments == [[str(folder)], ["--target-model-dir", str(folder), str(head)]]
    (folder / "tokenizer.json").write_text('{"other": 1}')
    resolved(folder)
    assert len(arguments) == 4, "the head's file holds its target's tokenizer, so another one makes another file"
    with pytest.raises(UsageError, match="its target's"):
        resolved(model)
