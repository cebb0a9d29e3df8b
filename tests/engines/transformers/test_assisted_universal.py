"""`assisted-universal` with two tokenizers that cut the same text differently."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.engines.transformers.serving.answering import Speculation, make_drafter
from benchctl.engines.transformers.serving.decoder import Decoder
from tests.engines.transformers.tiny_models import TEXT, byte_tokenizer, decoded, loaded

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.mark.parametrize("target_type", ["llama", "gpt2", "bundled"])
def test_a_draft_of_another_tokenizer_leaves_the_answer_as_it_is(target_type: str, load: Callable[[str], Any]) -> None:
    target_tokenizer, draft_tokenizer = byte_tokenizer(272), byte_tokenizer(300)
    target = (
        loaded(target_type, target_tokenizer, vocab_size=len(target_tokenizer))
        if target_type != "bundled"
        else load("tiny-transformer")
    )
    prompt: list[int] = target.tokenizer(TEXT)["input_ids"]
    assert prompt != draft_tokenizer(TEXT)["input_ids"]
    draft = loaded("llama", draft_tokenizer, seed=1, vocab_size=len(draft_tokenizer))
    decoder = Decoder(target.model)
    way = make_drafter(decoder, Speculation("assisted-universal", 4, {}), target, draft)
    answer, tokens = decoded(decoder, prompt, 24, way)
    assert tokens == decoded(decoder, prompt, 24)[1]
    assert answer.ledger()["drafted"] > 0
