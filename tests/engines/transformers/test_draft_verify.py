"""Draft & Verify: the set that is found before any prompt, and the threshold that adapts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.serving import UnsuitableError  # noqa: E402
from benchctl.engines.transformers.serving.decode import Draft  # noqa: E402
from benchctl.engines.transformers.serving.decoder import Decoder  # noqa: E402
from benchctl.engines.transformers.serving.drafters.draft_verify import SelfDraftVerify, find_parts  # noqa: E402
from tests.engines.transformers.tiny_models import DECLARED, loaded  # noqa: E402

pytestmark = pytest.mark.torch


def test_parts_that_add_nothing_are_found_and_no_others() -> None:
    """To leave them out costs no acceptance; every other part of random weights does."""
    target = loaded("qwen2")
    layers = target.model.get_decoder().layers
    with torch.no_grad():
        layers[1].mlp.down_proj.weight.zero_()
        layers[2].self_attn.o_proj.weight.zero_()
    decoder = Decoder(target.model)
    parts = find_parts(decoder, tries=40, length=32, seed=1)
    assert parts == {(1, "mlp"), (2, "attention")}
    assert SelfDraftVerify(decoder, {"tries": 40, "length": 32}).left_out == parts, "the same at every loading"


@pytest.mark.parametrize("name", ["falcon_h1", "qwen3_5", "lfm2"])
def test_a_hybrid_has_a_set_too(name: str) -> None:
    model_type, changed = DECLARED[name]
    parts = find_parts(Decoder(loaded(model_type, **changed).model), tries=12, length=16, seed=3)
    assert parts and {number for number, _ in parts} <= {1, 2}


def test_a_model_of_one_layer_has_none() -> None:
    with pytest.raises(UnsuitableError, match="one layer"):
        find_parts(Decoder(loaded("qwen2", num_hidden_layers=1).model), tries=1, length=8, seed=1)


def test_a_threshold_rises_while_too_little_is_accepted_and_falls_after_short_drafts(load: Any) -> None:
    loaded = load("tiny-transformer")
    way = SelfDraftVerify(Decoder(loaded.model), {"mlp": [1], "confidence": 0.5, "acceptance": 0.6, "step": 0.1})
    current: Any = SimpleNamespace(depth=4)
    thresholds = []
    for drafted, accepted in ((4, 0), (2, 2), (2, 2), (4, 4)):
        way.verified(current, Draft([1] * drafted, [None] * drafted), accepted, None)
        thresholds.append(way.confidence)
    # Shares: 0, 0.5, 0.75, 0.875; the last draft had its full length.
    assert thresholds == pytest.approx([0.51, 0.52, 0.51, 0.51])
    way.start(way.decoder)
    assert way.confidence == 0.5
