"""The derived folder's tokenizer and llama-server's agree, and what is tokenized comes back as it was."""

from __future__ import annotations

import pytest

from benchctl.models.shipped import BundledModel
from tests.conversion.conftest import InTransformers, StartServer
from tests.conversion.prompts import all_texts
from training.verify import TEXTS

pytestmark = [pytest.mark.engine, pytest.mark.torch]

MORE = (
    "\r\n\r\n\t\t\n \n",
    "if x:\r\n\ty = 1\r\n",
    "👨‍👩‍👧‍👦 🏳️‍🌈 ☕️",
    "<|endoftext|><|im_start|>assistant\n<|im_end|><|pad|>",
    "a\u00a0b\u3000c\u2009d",
    "が and が, é and é",  # composed and decomposed: no normalization may happen
    " ",
    "x" * 300,
    "".join(chr(code) for code in range(1, 128)),
)


@pytest.mark.parametrize("special", [True, False], ids=["special tokens", "plain text"])
def test_both_tokenizers_agree_and_lose_nothing(
    special: bool, bundled: BundledModel, reference: InTransformers, start: StartServer
) -> None:
    server = start(bundled.path)
    texts = [*TEXTS, *MORE, *all_texts()]
    tokens = 0
    for text in texts:
        ours = reference.tokenizer(text, add_special_tokens=False, split_special_tokens=not special)["input_ids"]
        theirs = server.post("/tokenize", {"content": text, "add_special": False, "parse_special": special})["tokens"]
        assert ours == theirs, text
        assert reference.tokenizer.decode(ours) == text
        assert server.post("/detokenize", {"tokens": ours})["content"] == text
        tokens += len(ours)
    assert tokens > 2000


def test_reserved_tokens_are_single_and_only_when_asked_for(reference: InTransformers) -> None:
    text = "<|im_end|>"
    assert reference.tokens(text) == [reference.tokenizer.eos_token_id]
    assert len(reference.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]) > 1
