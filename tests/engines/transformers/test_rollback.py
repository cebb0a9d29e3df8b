"""Going back is exact: bit for bit to a snapshot, and after any history as if the answer had been decoded plainly."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.serving.decode import (  # noqa: E402
    Draft,
    PhaseClock,
    Round,
    Sampler,
    Task,
    decode,
)
from benchctl.engines.transformers.serving.decoder import Part, Parts, State, without  # noqa: E402

pytestmark = pytest.mark.torch

TOLERANCE = {"falcon_h1": 2e-4, "qwen3_5_text": 2e-4, "qwen3": 2e-4}
"""The largest difference of any number of the state in float32, by architecture; its numbers reach about 20."""
PROMPT = [5, 6, 7, 300, 12, 13]
TOKENS = 40
PARTS: tuple[Part, ...] = ("attention", "recurrent", "mlp")


class Scripted:
    """Drafts what the target says, sometimes something else, at random depths, and leaves its traces in the state."""

    depth = 6

    def __init__(self, right: Sequence[int], seed: int) -> None:
        self.right, self.random = right, random.Random(seed)
        self.state: State | None = None
        self.histories: list[tuple[int, int]] = []

    def start(self, decoder: Any) -> None: ...

    def draft(self, current: Round) -> Draft:
        self.state = current.state
        depth = self.random.randint(0, current.depth)
        following = self.right[len(current.tokens) - len(PROMPT) :]
        tokens = [token if self.random.random() < 0.7 else (token + 1) % 4096 for token in following[:depth]]
        left_out: Parts = frozenset(
            (number, part)
            for number in range(len(current.state.decoder.layers))
            for part in PARTS
            if self.random.random() < 0.3
        )
        with without(current.state.decoder, left_out):
            for token in tokens:
                current.state.advance([token])
        return Draft(tokens, [None] * len(tokens))

    def describe(self) -> dict[str, object]:
        return {}

    def verified(self, current: Round, draft: Draft, accepted: int, logits: Any) -> None:
        self.histories.append((len(draft.tokens), accepted))


def plainly(decoder: Any, count: int) -> list[int]:
    task = Task(PROMPT, count, Sampler().chooser())
    return [token for step in decode(decoder, task, None, PhaseClock("cpu")) for token in step.tokens]


def tensors(state: State) -> dict[str, Any]:
    return {name: tensor.clone() for name, tensor in state.tensors()}


def test_a_snapshot_comes_back_bit_for_bit(decoder: Any) -> None:
    with torch.inference_mode():
        state = State(decoder)
        state.advance(PROMPT)
        before, tensors_before = state.snapshot(), tensors(state)
        left_outs: tuple[Parts, ...] = frozenset(), frozenset({(0, "attention")}), frozenset({(0, "layer")})
        for left_out in left_outs:
            with without(decoder, left_out):
                for token in (8, 9, 10, 11):
                    state.advance([token])
            state.restore(before)
            state.verify([20, 21, 22])
            state.keep(before, 2)
            state.restore(before)
            back = tensors(state)
            assert state.read == len(PROMPT)
            assert back.keys() == tensors_before.keys()
            assert all(torch.equal(back[name], tensors_before[name]) for name in tensors_before)


def test_what_was_read_since_is_there_again_after_a_while_at_an_older_snapshot(decoder: Any) -> None:
    with torch.inference_mode():
        state = State(decoder)
        state.advance(PROMPT)
        older = state.snapshot()
        state.advance([8, 9, 10])
        tensors_before = tensors(state)
        with state.rewound(older), without(decoder, frozenset({(1, "attention")})):
            assert state.read == len(PROMPT)
            for token in range(20, 120):
                state.advance([token])
        back = tensors(state)
        assert state.read == len(PROMPT) + 3
        assert all(torch.equal(back[name], tensors_before[name]) for name in tensors_before)
        state.restore(older)
        with pytest.raises(AssertionError, match="a later state"):
            state._crop(len(PROMPT) + 3)


@pytest.mark.parametrize("seed", range(2))
def test_after_any_history_the_state_is_that_of_plain_decoding(decoder: Any, seed: int) -> None:
    right = plainly(decoder, TOKENS)
    drafter = Scripted(right, seed)
    task = Task(PROMPT, TOKENS, Sampler().chooser())
    answer = [token for step in decode(decoder, task, drafter, PhaseClock("cpu")) for token in step.tokens]
    assert answer == right
    assert any(0 < accepted < drafted for drafted, accepted in drafter.histories)
    assert any(accepted == drafted > 0 for drafted, accepted in drafter.histories)
    assert any(accepted == 0 < drafted for drafted, accepted in drafter.histories)
    state = drafter.state
    assert state is not None
    with torch.inference_mode():
        plain = State(decoder)
        plain.advance(PROMPT)
        for token in answer[: state.read - len(PROMPT)]:
            plain.advance([token])
    assert state.read == plain.read
    speculated, expected = tensors(state), tensors(plain)
    assert speculated.keys() == expected.keys()
    for name, tensor in expected.items():
        difference = float((speculated[name] - tensor).abs().max())
        assert difference <= TOLERANCE[decoder.model_type], name


def test_without_restoring_recurrent_states_answers_go_wrong(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from benchctl.engines.transformers.serving.decoder import Decoder

    decoder = Decoder(load("tiny-sequential").model)
    right = plainly(decoder, TOKENS)
    monkeypatch.setattr(State, "_restore_recurrent", lambda self, snapshot: None)
    task = Task(PROMPT, TOKENS, Sampler().chooser())
    tokens = [token for step in decode(decoder, task, Scripted(right, 0), PhaseClock("cpu")) for token in step.tokens]
    assert tokens != right
