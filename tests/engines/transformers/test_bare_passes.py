"""What the benchmark of rounds compares them with is outside benchctl: whatever our loop adds to a round shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.serving.answering import Speculation, make_drafter  # noqa: E402
from benchctl.engines.transformers.serving.assisted import Assistance  # noqa: E402
from benchctl.engines.transformers.serving.decoder import Decoder, Parts, State, without  # noqa: E402
from benchmarks.self_speculation import _lacking, answered, beside_bare  # noqa: E402

pytestmark = pytest.mark.torch
PROMPT = [5, 6, 7, 300, 12, 13]
PASS_S, SLEEP_S = 0.01, 0.05


def test_a_sleep_in_every_verification_shows(load: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves with the model's passes and the sleep alone: a real one is another on a busy machine."""
    loaded, now = load("tiny-transformer"), 0.0

    def pass_by(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    passing = loaded.model.register_forward_hook(lambda *_: pass_by(PASS_S))
    try:
        target_answer = answered(loaded, PROMPT, 24, None)
        way = make_drafter(Decoder(loaded.model), Speculation("self-layerskip", 4, {}), loaded)
        assert not isinstance(way, Assistance)
        usual = beside_bare(loaded, PROMPT, target_answer, way, 2)
        verify = State.verify

        def slow(self: State, tokens: Any) -> Any:
            pass_by(SLEEP_S)
            return verify(self, tokens)

        monkeypatch.setattr(State, "verify", slow)
        slept = beside_bare(loaded, PROMPT, target_answer, way, 2)
    finally:
        passing.remove()
    assert usual["token_identical"] and slept["token_identical"]
    assert (usual["realised"], usual["overhead"]) == (1.0, 0.0)
    assert slept["rounds"] == usual["rounds"] > 2
    assert (slept["c"], slept["v"]) == (usual["c"], usual["v"]) == (1.0, 1.0)
    expected_s = usual["bare_passes_s"] + slept["rounds"] * SLEEP_S
    assert slept["realised"] == pytest.approx(usual["bare_passes_s"] / expected_s, abs=1e-3)
    assert slept["overhead"] == pytest.approx(slept["rounds"] * SLEEP_S / expected_s, abs=1e-3)


def test_bare_passes_leave_out_what_drafts_leave_out(bundled: Any, decoder: Decoder) -> None:
    last = len(decoder.layers) - 1
    left_out: Parts = frozenset({(0, "mlp"), (1, "layer"), (last, "attention"), (last, "recurrent")})
    with torch.inference_mode():
        state = State(decoder)
        state.advance(PROMPT)
        before = state.snapshot()
        with without(decoder, left_out):
            expected = state.advance([9])
        state.restore(before)
        logits_before = state.advance([9])
        state.restore(before)
        with _lacking(bundled, left_out):
            result = state.advance([9])
        state.restore(before)
        logits_after = state.advance([9])
    assert torch.equal(result, expected)
    assert not torch.equal(result, logits_before)
    assert torch.equal(logits_after, logits_before)
