from __future__ import annotations

import pytest

from benchctl.models.shards import shard_names


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
