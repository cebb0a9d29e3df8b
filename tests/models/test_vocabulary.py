"""Which drafts are refused, and with which reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.models.vocabulary import compare

MakeGguf = Callable[..., Path]
MANY = [f"t{number}" for number in range(500)]


def test_the_bundled_pair_shares_a_vocabulary(tiny_target: Path, tiny_draft: Path) -> None:
    assert compare(tiny_target, tiny_draft) == []


@pytest.mark.parametrize(
    ("target", "draft", "reasons"),
    [
        ({}, {}, []),
        (
            {"tokenizer": "gpt2"},
            {"tokenizer": "llama"},
            ["the target's tokenizer is of type gpt2, the draft's of type llama"],
        ),
        ({"tokens": MANY}, {"tokens": MANY[:372]}, []),
        (
            {"tokens": MANY},
            {"tokens": MANY[:371]},
            ["the target has 500 tokens, the draft 371; they may differ by at most 128"],
        ),
        ({"tokens": MANY}, {"tokens": ["<s>", "</s>", "<pad>", "<unk>", "<mask>", *MANY[5:]]}, []),
        (
            {"tokens": MANY},
            {"tokens": [*MANY[:5], "\x1b[31m", *MANY[6:]]},
            ["token 5 is 't5' to the target and '␛[31m' to the draft"],
        ),
        (
            {"flags": {"tokenizer.ggml.add_bos_token": True}},
            {"flags": {"tokenizer.ggml.add_bos_token": False}},
            ["the target adds a BOS token, the draft does not add one"],
        ),
        (
            {"flags": {"tokenizer.ggml.add_eos_token": True}, "numbers": {"tokenizer.ggml.eos_token_id": 1}},
            {"flags": {"tokenizer.ggml.add_eos_token": True}, "numbers": {"tokenizer.ggml.eos_token_id": 2}},
            ["the target's EOS token is 1, the draft's 2"],
        ),
        # A difference in a token that is never added does not matter to the engine.
        (
            {"flags": {"tokenizer.ggml.add_eos_token": False}, "numbers": {"tokenizer.ggml.eos_token_id": 1}},
            {"flags": {"tokenizer.ggml.add_eos_token": False}, "numbers": {"tokenizer.ggml.eos_token_id": 2}},
            [],
        ),
    ],
)
def test_reasons(make_gguf: MakeGguf, target: dict[str, object], draft: dict[str, object], reasons: list[str]) -> None:
    assert compare(make_gguf("target.gguf", **target), make_gguf("draft.gguf", **draft)) == reasons
