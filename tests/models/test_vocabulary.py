"""Which drafts are refused, and with which reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from benchctl.models.gguf_header import GgufHeader, read_header
from benchctl.models.vocabulary import compare, differences

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


def test_equal_sizes_are_not_enough(make_gguf: MakeGguf) -> None:
    """What llama.cpp lets pass: other tokens among the first five, another pad or end token."""
    special = {"tokenizer.ggml.eos_token_id": 3, "tokenizer.ggml.padding_token_id": 3}
    first = make_gguf("one.gguf", numbers=special)
    second = make_gguf(
        "other.gguf",
        tokens=["<s>", *[f"t{number}" for number in range(1, 20)]],
        numbers={"tokenizer.ggml.eos_token_id": 4, "tokenizer.ggml.padding_token_id": 5},
    )
    assert compare(first, second) == []
    headers = read_header(first), read_header(second)
    ids = "1 token ids mean different texts; the first is 0, 't0' and '<s>'"
    assert differences(*headers) == [ids, "the eos token is 3 and 4", "the padding token is 3 and 5"]
    assert differences(*headers, speaking=True) == [ids, "the eos token is 3 and 4"]
    assert differences(headers[0], headers[0]) == []


def test_sizes_and_what_is_added_are_told(make_gguf: MakeGguf) -> None:
    end = {"tokenizer.ggml.bos_token_id": 1}
    first = make_gguf("one.gguf", numbers=end, flags={"tokenizer.ggml.add_bos_token": True})
    second = make_gguf("other.gguf", tokens=["t0", "t1"], numbers=end, flags={"tokenizer.ggml.add_bos_token": False})
    assert differences(read_header(first), read_header(second)) == [
        "one has 20 tokens, the other 2",
        "one adds a bos token to every text, the other does not",
    ]


def test_what_no_text_can_show_is_no_difference(tmp_path: Path) -> None:
    """Qwen2.5 of two sizes: one more row of filling, an eot that one file names, a rule that one file leaves out."""

    def model(name: str, filling: int, *, eot: bool) -> GgufHeader:
        writer = gguf.GGUFWriter(tmp_path / name, "llama")
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([*MANY[:20], *(f"[PAD{number}]" for number in range(filling))])
        writer.add_token_types([1] * 20 + [5] * filling)
        writer.add_eos_token_id(1)
        writer.add_bos_token_id(0)
        if eot:
            writer.add_eot_token_id(1)
            writer.add_add_bos_token(False)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return read_header(tmp_path / name)

    target, draft = model("target.gguf", 3, eot=True), model("draft.gguf", 1, eot=False)
    assert differences(target, draft, speaking=True) == []
    assert differences(target, draft) == ["one has 23 tokens, the other 21", "the other defines no eot token"]
