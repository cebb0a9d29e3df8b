"""Tokenizer files made of GGUF metadata; that they tokenize alike is `tests/conversion`'s."""

from __future__ import annotations

import json
from pathlib import Path

from benchctl.models.gguf_header import read_header
from benchctl.models.huggingface.folder import huggingface_folder, special_tokens, tokenizer_config, tokenizer_json


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
    said = json.loads((huggingface_folder(tiny_target) / "generation_config.json").read_text("utf-8"))
    assert said["eos_token_id"] == [2, 0]
