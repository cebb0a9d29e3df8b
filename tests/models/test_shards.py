from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.models.gguf_facts import shard_names, tensors_of


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("m-00002-of-00002.gguf", ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")),
        ("m.gguf", ("m.gguf",)),
        ("m-00001-of-00000.gguf", ("m-00001-of-00000.gguf",)),
    ],
)
def test_the_shards_of_a_model(name: str, names: tuple[str, ...]) -> None:
    assert shard_names(name) == names


def test_the_tensors_of_all_shards_in_their_order(make_gguf: Callable[..., Path]) -> None:
    files = [
        make_gguf("m-00001-of-00002.gguf", tensors=["token_embd.weight", "blk.0.attn_q.weight"]),
        make_gguf("m-00002-of-00002.gguf", tensors=["output.weight"]),
    ]
    assert [tensor.name for tensor in tensors_of(files)] == [
        "token_embd.weight",
        "blk.0.attn_q.weight",
        "output.weight",
    ]
