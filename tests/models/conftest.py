"""Small GGUF files, made by hand: good ones through gguf-py, broken ones byte by byte."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest

TOKENS = [f"t{number}" for number in range(20)]

MakeGguf = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep what these tests cache out of the user's folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BENCHCTL_CACHE", str(folder))
    return folder


@pytest.fixture
def make_gguf(tmp_path: Path) -> MakeGguf:
    """Write a GGUF file with a vocabulary and tensors of 32 x 32 numbers."""

    def make(
        name: str = "model.gguf",
        *,
        architecture: str = "llama",
        tokens: Sequence[str] = TOKENS,
        tensors: Sequence[str] = ("token_embd.weight", "blk.0.attn_q.weight"),
        numbers: Mapping[str, int] | None = None,
        flags: Mapping[str, bool] | None = None,
        texts: Mapping[str, str] | None = None,
        tokenizer: str = "gpt2",
    ) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = gguf.GGUFWriter(path, architecture)
        writer.add_tokenizer_model(tokenizer)
        writer.add_token_list(list(tokens))
        for key, number in (numbers or {}).items():
            writer.add_uint32(key, number)
        for key, flag in (flags or {}).items():
            writer.add_bool(key, flag)
        for key, text in (texts or {}).items():
            writer.add_string(key, text)
        for tensor in tensors:
            writer.add_tensor(tensor, np.zeros((32, 32), dtype=np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make
