"""The Hugging Face folder of a GGUF file: exact, made once, whole or not there."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from benchctl.errors import StorageError, UsageError
from benchctl.models.files import ORIGIN
from benchctl.models.gguf_header import ArrayPlace, read_header
from benchctl.models.huggingface import folder as folder_module
from benchctl.models.huggingface.architectures import LAYOUT_VERSION
from benchctl.models.huggingface.folder import bundled_config, huggingface_folder
from benchctl.models.shipped import BundledModel, bundled_models
from tests.models.huggingface.conftest import CONFIGS, MakeModel
from training.export import read_weights, write_gguf

BUNDLED = pytest.mark.parametrize("model", bundled_models(), ids=lambda model: model.name)


def contents(file: Path) -> tuple[dict[str, Any], dict[str, tuple[str, tuple[int, ...], bytes]]]:
    """Metadata and tensors, their order and places in the file left out."""
    header, data = read_header(file), file.read_bytes()
    fields = {
        key: (header.strings(key) or header.numbers(key)) if isinstance(value, ArrayPlace) else value
        for key, value in header.metadata.items()
    }
    tensors: dict[str, tuple[str, tuple[int, ...], bytes]] = {}
    for tensor in header.tensors:
        start = header.data_start + tensor.offset
        assert tensor.nbytes is not None
        tensors[tensor.name] = (tensor.type_name, tensor.shape, data[start : start + tensor.nbytes])
    return fields, tensors


@BUNDLED
def test_a_bundled_model_survives_the_round_trip_bit_by_bit(model: BundledModel, tmp_path: Path) -> None:
    folder = huggingface_folder(model.path)
    roundtrip = tmp_path / "again.gguf"
    description = read_header(model.path).text("general.description")
    assert description is not None
    assert write_gguf(folder, folder, model.name, description, roundtrip) == model.parameters
    fields, tensors = contents(model.path)
    assert len(tensors) > 10
    assert None not in fields.values()
    assert contents(roundtrip) == (fields, tensors)


@BUNDLED
def test_the_folder_says_what_it_was_derived_from(model: BundledModel, cache: Path) -> None:
    folder = huggingface_folder(model.path)
    assert folder == cache / "huggingface" / f"v{LAYOUT_VERSION}" / model.sha256
    origin = json.loads((folder / ORIGIN).read_text("utf-8"))
    files = origin.pop("files")
    assert origin == {"sha256": model.sha256}
    assert files == {path.name: path.stat().st_size for path in folder.iterdir() if path.name != ORIGIN}
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json"} <= files.keys()
    assert {"tokenizer_config.json", "chat_template.jinja"} <= files.keys()
    assert json.loads((folder / "config.json").read_text("utf-8"))["dtype"] == "bfloat16"
    assert json.loads((folder / "generation_config.json").read_text("utf-8"))["eos_token_id"] == [2, 0]
    assert list(folder.parent.iterdir()) == [folder]


def test_the_folder_is_made_once(tiny_draft: Path) -> None:
    derived = huggingface_folder(tiny_draft)
    times = {path: path.stat().st_mtime_ns for path in derived.iterdir()}
    assert huggingface_folder(tiny_draft) == derived
    assert {path: path.stat().st_mtime_ns for path in derived.iterdir()} == times


def test_another_file_makes_another_folder(make_model: MakeModel) -> None:
    config = CONFIGS["qwen3"]
    first = huggingface_folder(make_model("qwen3")[1], config=config)
    before = (first / "config.json").read_bytes()
    changed = config | {"rms_norm_eps": 1e-6}
    second = huggingface_folder(make_model("qwen3", rms_norm_eps=1e-6)[1], config=changed)  # the same path, changed
    assert second != first
    assert (first / "config.json").read_bytes() == before
    assert json.loads((second / "config.json").read_text("utf-8"))["rms_norm_eps"] == 1e-6


def test_another_version_of_the_layout_makes_another_folder(tiny_draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = huggingface_folder(tiny_draft)
    monkeypatch.setattr(folder_module, "LAYOUT_VERSION", LAYOUT_VERSION + 1)
    new = huggingface_folder(tiny_draft)
    assert new != old
    assert new.name == old.name


def lose_a_file(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def lose_the_end_of_a_file(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 1000)


def lose_the_origin(folder: Path) -> None:
    (folder / ORIGIN).write_text("{")


@pytest.mark.parametrize("damage", [lose_a_file, lose_the_end_of_a_file, lose_the_origin])
def test_a_damaged_folder_is_made_again(tiny_draft: Path, damage: Callable[[Path], None]) -> None:
    folder = huggingface_folder(tiny_draft)
    complete = {path.name: path.read_bytes() for path in folder.iterdir()}
    damage(folder)
    assert huggingface_folder(tiny_draft) == folder
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == complete


def test_what_a_killed_process_left_is_not_used(tiny_draft: Path) -> None:
    folder = huggingface_folder(tiny_draft)
    half = folder.with_name(f".{folder.name}.making")
    shutil.move(folder, half)
    os.truncate(half / "model.safetensors", 1000)
    assert huggingface_folder(tiny_draft) == folder
    assert len(read_weights(folder / "model.safetensors")) > 30
    assert list(folder.parent.iterdir()) == [folder]


def test_processes_at_the_same_time_get_one_whole_folder(tiny_target: Path, cache: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from benchctl.models.huggingface.folder import huggingface_folder\n"
        "from safetensors import safe_open\n"
        "folder = huggingface_folder(Path(sys.argv[1]))\n"
        "print(folder, len(safe_open(folder / 'model.safetensors', 'numpy').keys()))"
    )
    command = [sys.executable, "-c", script, str(tiny_target)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    stderr = {process.communicate()[0] for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    (line,) = stderr
    folder = Path(line.split()[0])
    assert list(folder.parent.iterdir()) == [folder]
    assert folder.is_relative_to(cache)


def test_a_full_disk_leaves_nothing_behind(tiny_draft: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, _: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(folder_module, "write_weights", full)
    with pytest.raises(StorageError, match="No space left"):
        huggingface_folder(tiny_draft)
    assert list((cache / "huggingface" / f"v{LAYOUT_VERSION}").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_said(tiny_draft: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageError, match="Not a directory"):
        huggingface_folder(tiny_draft, tmp_path / "file")


def test_numbers_that_bfloat16_cannot_hold_stay_float32(tiny_draft: Path, tmp_path: Path) -> None:
    """A file of float32 weights that were never rounded: nothing is lost, and the configuration says float32."""
    file = tmp_path / "fine.gguf"
    shutil.copyfile(tiny_draft, file)
    reader = gguf.GGUFReader(file, "r+")
    norm = next(tensor for tensor in reader.tensors if tensor.name == "output_norm.weight")
    norm.data[0] = np.float32(1.0000001)
    reader.data.flush()
    folder = huggingface_folder(file, config=bundled_config("tiny-hybrid-draft"))
    assert read_weights(folder / "model.safetensors")["model.final_layernorm.weight"][0] == np.float32(1.0000001)
    assert json.loads((folder / "config.json").read_text("utf-8"))["dtype"] == "float32"


def test_a_padded_model_is_as_wide_as_its_file() -> None:
    narrow, wide = bundled_config("tiny-hybrid"), bundled_config("tiny-hybrid-wide")
    assert wide == narrow | {"intermediate_size": 64 * narrow["intermediate_size"]}


def test_an_architecture_without_a_layout_is_refused(make_gguf: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="can be derived"):
        huggingface_folder(make_gguf())


def test_a_quantized_file_is_refused(make_quantized: Callable[[Path], Path], tiny_draft: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match="can be derived"):
        huggingface_folder(make_quantized(tiny_draft))
    assert not (cache / "huggingface").exists()


@pytest.fixture
def make_quantized(tmp_path: Path) -> Callable[[Path], Path]:
    """Rewrite a file with its matrices in q8_0."""

    def make(source: Path) -> Path:
        path = tmp_path / "quantized.gguf"
        reader = gguf.GGUFReader(source)
        writer = gguf.GGUFWriter(path, "falcon-h1")
        kind = gguf.GGMLQuantizationType.Q8_0
        for key, field in reader.fields.items():
            if not key.startswith(("GGUF.", "general.architecture")):
                writer.add_key_value(key, field.contents(), field.types[0], *field.types[1:2])
        for tensor in reader.tensors:
            if tensor.tensor_type.name == "BF16":
                numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                writer.add_tensor(tensor.name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
            else:
                writer.add_tensor(tensor.name, np.array(tensor.data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make
