"""No method keeps more than plain decoding does: keys and values are kept once, by length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import PreTrainedModel
from transformers.integrations import sdpa_attention

from benchctl.engines.transformers.methods import METHODS
from benchctl.engines.transformers.serving import loading
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter
from benchctl.engines.transformers.serving.decoder import Decoder, State
from benchctl.engines.transformers.serving.loading import _keep_groups
from benchmarks.self_speculation_memory import alive, keys_and_values
from tests.engines.transformers.tiny_models import loaded, untrained_adapter

pytestmark = pytest.mark.torch
CONTEXT, TOKENS = 1500, 24
OPTIONS: dict[str, dict[str, Any]] = {
    "self-swift": {"window": 4},
    "self-knapspec": {"window": 4, "interval": 2},
    "self-skip": {"layers": [1, 2]},
    "self-draft-verify": {"layers": [1, 2]},
}


def test_between_rounds_no_method_keeps_more_than_a_tenth_beside_plain_decoding() -> None:
    target = loaded("qwen2", max_position_embeddings=2048)
    decoder = Decoder(target.model)
    prompt = [number % 250 for number in range(CONTEXT)]
    plain = alive(target, prompt, TOKENS, None)
    needed = keys_and_values(target, CONTEXT + TOKENS)
    assert needed <= plain["between"] < 1.1 * needed
    for name, method in METHODS.items():
        if "attention" in method.kinds and not method.assisted:
            way = make_drafter(
                decoder, Speculation(name, 4, OPTIONS.get(name, {})), target, adapter=untrained_adapter(decoder)
            )
            adapter_bytes = needed / len(decoder.layers) if method.adapter else 0  # the adapter's keys and values
            assert alive(target, prompt, TOKENS, way)["between"] <= 1.1 * plain["between"] + adapter_bytes, name


def test_a_pass_over_a_draft_reads_grouped_keys_as_they_are_and_gives_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As transformers has it, whichever model was loaded before in this process; put back afterwards.
    monkeypatch.setattr(sdpa_attention, "use_gqa_in_sdpa", lambda mask, key, value: mask is None)
    target = loaded("qwen2", max_position_embeddings=2048)
    decoder, passes = Decoder(target.model), []
    prompt = [number % 250 for number in range(CONTEXT)]
    plain = alive(target, prompt, TOKENS, None)
    for patched in (False, True):
        if patched:
            _keep_groups()
        way = make_drafter(decoder, Speculation("self-layerskip", 4, {}), target)
        state = State(decoder)
        with torch.inference_mode():
            state.advance(prompt)
            logits = state.verify(prompt[:5])
        passes.append((logits, alive(target, prompt, TOKENS, way)["peak"] / plain["peak"]))
    (repeated, above), (grouped, peak) = passes
    assert torch.equal(repeated, grouped)
    assert peak < 1.1 < above


def test_on_cuda_no_attention_builds_a_plan_for_every_length(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN's: on an H100 the first prompt of a length ran at 10 tok/s, and the next of that length at 83."""
    monkeypatch.setattr(PreTrainedModel, "to", lambda model, device: model)  # no GPU is needed to choose
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        loading.load(folder_of("tiny-transformer"), device="cuda", dtype="auto")
        assert not torch.backends.cuda.cudnn_sdp_enabled()
        assert torch.backends.cuda.flash_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
