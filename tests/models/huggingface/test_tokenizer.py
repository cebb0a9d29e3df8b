"""Tokenizer files made of GGUF metadata; that they tokenize alike is `tests/conversion`'s."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from benchctl.errors import UsageError
from benchctl.models.gguf_header import read_header
from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.models.huggingface.tokenizer import ends_of_answer, special_tokens, tokenizer_config, tokenizer_json


def test_every_token_and_merge_is_there_and_control_tokens_are_special(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    described = tokenizer_json(header)
    words = [word.decode() for word in header.strings("tokenizer.ggml.tokens") or []]
    assert sorted(described["model"]["vocab"], key=described["model"]["vocab"].__getitem__) == words
    merges = [merge.decode() for merge in header.strings("tokenizer.ggml.merges") or []]
    assert [" ".join(merge) for merge in described["model"]["merges"]] == merges
    assert [(token["id"], token["special"]) for token in described["added_tokens"]] == [(i, True) for i in range(4)]
    assert tokenizer_config(header)["eos_token"] == "<|im_end|>"
    assert tokenizer_config(header)["model_max_length"] == 4096


def test_the_ends_of_an_answer_are_the_files_own_and_those_that_llama_cpp_knows(tiny_target: Path) -> None:
    header = read_header(tiny_target)
    assert special_tokens(header) == {"bos": 0, "eos": 2, "pad": 3}
    assert ends_of_answer(header) == [2, 0]


@pytest.mark.parametrize(
    ("kind", "flags", "message"),
    [
        ("llama", {}, "a tokenizer of type llama/None cannot be rebuilt from GGUF"),
        ("gpt2", {}, "a tokenizer of type gpt2/None cannot be rebuilt from GGUF"),
        ("gpt2", {"tokenizer.ggml.add_bos_token": True}, "Rebuilt are byte-level BPE tokenizers that add no BOS"),
    ],
)
def test_another_kind_is_refused(
    make_gguf: Callable[..., Path], kind: str, flags: dict[str, bool], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        tokenizer_json(read_header(make_gguf(tokenizer=kind, flags=flags)))


def test_a_vocabulary_that_is_no_text_is_refused_in_one_sentence(tiny_draft: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(tiny_draft.read_bytes())
    reader = gguf.GGUFReader(file, "r+")
    tokens = reader.fields["tokenizer.ggml.tokens"]
    tokens.parts[tokens.data[100]][0] = 0xFF
    reader.data.flush()
    with pytest.raises(UsageError, match="the model file contradicts itself: 'utf-8' codec"):
        huggingface_folder(file)
