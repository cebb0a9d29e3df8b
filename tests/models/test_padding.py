"""A padded model is the bundled one with rows and columns of zeros, and is made only where there is room."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchctl.errors import StorageError
from benchctl.models.gguf_header import Tensor, read_header
from benchctl.models.shipped import padded_model
from benchctl.recipes.source import PADDED, bundled_folder


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path))
    monkeypatch.setitem(PADDED, "three", ("tiny-hybrid", 3))
    return padded_model("three")


def content(path: Path, tensor: Tensor) -> np.ndarray:
    """The values, as a matrix of float32."""
    start, wide = read_header(path).data_start + tensor.offset, tensor.type_id == 30
    words = np.fromfile(path, np.uint16 if wide else np.uint32, tensor.elements, offset=start)
    return (words.astype(np.uint32) << (16 if wide else 0)).view(np.float32).reshape(tensor.shape[::-1])


def test_every_weight_is_there_and_the_rest_is_zero(made: Path) -> None:
    base = bundled_folder() / "tiny-hybrid.gguf"
    old, new = read_header(base), read_header(made)
    assert new.integer("falcon-h1.feed_forward_length") == 3 * (old.integer("falcon-h1.feed_forward_length") or 0)
    assert new.count("tokenizer.ggml.tokens") == old.count("tokenizer.ggml.tokens")
    wider = 0
    for before, after in zip(old.tensors, new.tensors, strict=True):
        values, padded = content(base, before), content(made, after)
        original = padded[tuple(slice(size) for size in values.shape)]
        assert before.name == after.name and np.array_equal(original, values)
        assert np.count_nonzero(padded) == np.count_nonzero(values)
        wider += padded.size == 3 * values.size
    assert wider == 12, "three matrices in each of four layers"


def test_it_is_made_once(made: Path) -> None:
    first = made.stat().st_mtime_ns
    assert padded_model("three") == made and made.stat().st_mtime_ns == first
    made.write_bytes(made.read_bytes()[:-32])
    assert padded_model("three").stat().st_mtime_ns != first, "half a file is not one"
    assert [file.name for file in made.parent.iterdir()] == [made.name]


@pytest.mark.parametrize("lacking", ["disk", "memory"])
def test_without_room_nothing_is_written(lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Little:
        free = available = 1000

    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage" if lacking == "disk" else "psutil.virtual_memory", lambda *place: Little)
    with pytest.raises(StorageError, match=f"free {lacking}"):
        padded_model("tiny-hybrid-wide")
    assert not list((tmp_path / "padded").iterdir())
