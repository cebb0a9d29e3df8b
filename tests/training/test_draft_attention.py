"""What a draft is trained on is what it computes when it drafts token after token."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, cat  # noqa: E402

from training.architectures.qwen3 import transformer  # noqa: E402
from training.architectures.qwen3_5 import SequentialModel, sequential  # noqa: E402
from training.draft_attention import DraftKeys  # noqa: E402
from training.eagle3 import eagle3  # noqa: E402
from training.sequential import Draft, Reading, distilled, hear, read_last  # noqa: E402
from training.vllm_heads import Eagle, MultiTokenLayer  # noqa: E402

pytestmark = pytest.mark.torch

STEPS, LENGTH = 3, 9


@pytest.fixture(scope="module")
def model() -> SequentialModel:
    torch.manual_seed(1)
    return sequential(50, hidden=128, feed_forward=64, layers=4, heads=2, kv_heads=1)


@pytest.fixture(scope="module", params=["mtp", "eagle3", "eagle", "glm"])
def draft_and_reading(request: pytest.FixtureRequest, model: SequentialModel) -> tuple[Draft, Reading]:
    tokens = torch.randint(0, 50, (2, LENGTH))
    if request.param == "mtp":
        return model.mtp, read_last(model, hear(model, tokens))
    if request.param == "eagle3":
        third = eagle3(model, feed_forward=64)
        return third, third.read(model, hear(model, tokens))
    target = transformer(50, hidden=128, feed_forward=64, layers=4, heads=2, kv_heads=1)
    heard = hear(target, tokens)
    if request.param == "eagle":
        first = Eagle(target.config)
        return first, first.read(target, heard)
    head = MultiTokenLayer(target)
    return head, head.read(target, heard)


def one_after_the_other(draft: Draft, reading: Reading, position: int, step: int) -> Tensor:
    """The output at a position when the draft stood alone for so many tokens before it, by plain causal attention."""
    states = draft.first(reading.inputs)[:, : position - step + 1]
    while True:
        length = states.shape[1]
        turned = (reading.turned[0][:, :length], reading.turned[1][:, :length])
        following, ahead = draft(reading.embedded[:, :length], states, turned, DraftKeys())
        if length == position + 1:
            return ahead[:, -1]
        states = cat([states, following[:, -1:]], 1)


def test_all_positions_at_once_equal_drafting_one_after_the_other(draft_and_reading: tuple[Draft, Reading]) -> None:
    draft, reading = draft_and_reading
    at_once = list(reading.drafted(draft, STEPS))
    for step, ahead in enumerate(at_once):
        for position in range(step, reading.embedded.shape[1]):
            expected = one_after_the_other(draft, reading, position, step)
            torch.testing.assert_close(ahead[:, position], expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(at_once[0][:, STEPS:], at_once[1][:, STEPS:], atol=1e-3)


def test_the_head_is_transformers_own_layer(model: SequentialModel) -> None:
    reading = read_last(model, hear(model, torch.randint(0, 50, (2, LENGTH))))
    head = model.mtp
    normed = [head.pre_fc_norm_embedding(reading.embedded), head.pre_fc_norm_hidden(reading.inputs)]
    unseen = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    layer = head.layers[0](head.fc(cat(normed, -1)), position_embeddings=reading.turned, attention_mask=unseen)
    (ahead,) = reading.drafted(head, 1)
    torch.testing.assert_close(ahead, head.norm(layer), rtol=1e-4, atol=1e-5)


def test_the_loss_is_lowest_for_a_draft_that_says_the_same(draft_and_reading: tuple[Draft, Reading]) -> None:
    """Its floor is the target's own entropy."""
    draft, reading = draft_and_reading
    # `model.lm_head` of a fresh model is nearly flat, so that only a sharper target tells the two different_loss.
    model = sequential(50, hidden=128, feed_forward=64, layers=4, heads=2, kv_heads=1)
    weight = torch.ones(2, LENGTH)
    different_loss = distilled(model, draft, reading, weight, 1)
    (ahead,) = reading.drafted(draft, 1)
    same = Reading(model.lm_head(ahead), reading.embedded, reading.inputs, reading.turned)
    same_loss = distilled(model, draft, same, weight, 1)
    entropy = torch.distributions.Categorical(logits=same.logits).entropy().mean()
    torch.testing.assert_close(same_loss, entropy, rtol=1e-4, atol=1e-5)
    assert different_loss > same_loss
