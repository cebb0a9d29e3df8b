"""The test at load: passes models whose state survives a pass over several tokens, refuses those that forget it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.engines.transformers.serving.decoder import Decoder, State, Tokens
from benchctl.engines.transformers.serving.main import TOLERANCE, run_self_test
from tests.engines.transformers.tiny_models import DECLARED, loaded

pytestmark = pytest.mark.torch


def test_bundled_models_pass(decoder: Any) -> None:
    tested = run_self_test(decoder)
    assert tested.problem() is None
    assert tested.restored
    assert tested.difference < TOLERANCE / 10
    assert (tested.lost_difference is None) == (not decoder.recurrent)


def test_jamba_forgets_its_state_and_is_refused(jamba: Any) -> None:
    tested = run_self_test(Decoder(jamba))
    assert tested.difference > TOLERANCE
    assert "loses its state" in str(tested.problem())


def test_a_rollback_that_restores_nothing_is_refused(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(State, "_restore_recurrent", lambda self, snapshot: None)
    tested = run_self_test(Decoder(load("tiny-hybrid").model))
    assert "bit for bit" in str(tested.problem())


@pytest.mark.parametrize("name", ["qwen2, window", "qwen3, window", "mistral, window"])
def test_a_mask_by_a_layer_that_is_left_out_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model_type, changed = DECLARED[name]
    decoder = Decoder(loaded(model_type, **{**changed, "sliding_window": 128}).model)
    assert run_self_test(decoder).problem() is None
    assert decoder.model.config.sliding_window == 128
    for taken_back in ("get_seq_length", "get_mask_sizes"):
        monkeypatch.delattr(Tokens, taken_back)  # what transformers does by itself
    assert "the mask is wrong" in str(run_self_test(decoder).problem())
