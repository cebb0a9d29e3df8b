"""What the searching drafters search with: variants, latencies, and the choices that are made of them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.serving.decoder import Decoder, State, without  # noqa: E402
from benchctl.engines.transformers.serving.drafters.knapspec import (  # noqa: E402
    Latencies,
    Timed,
    best_pair,
    expected_tokens,
    measure_latencies,
    weights_of,
)
from benchctl.engines.transformers.serving.drafters.swift import upper_bound  # noqa: E402
from benchctl.engines.transformers.serving.variants import Choice, Variants, inner_items, items_of, logits_of, search  # noqa: E402

pytestmark = pytest.mark.torch
PAST, TOKENS = [5, 6, 7, 300, 12, 13, 900, 4, 31], [77, 500, 8, 1200]


@pytest.fixture
def state(decoder: Decoder) -> State:
    with torch.inference_mode():
        state = State(decoder)
        state.advance(PAST)
    return state


def every_item(decoder: Decoder) -> list[Choice]:
    inner = set(inner_items(decoder))
    return [
        Choice((item,), int(item in inner))
        for number in range(len(decoder.layers))
        for item in items_of(decoder, number)
    ]


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS[:1]], ids=["several", "one"])
def test_a_lane_equals_the_model_without_its_parts(decoder: Decoder, state: State, tokens: list[int]) -> None:
    with torch.inference_mode():
        before = state.snapshot()
        variants = Variants(decoder, state, before, tokens)
        result = search(variants, every_item(decoder), limit=len(inner_items(decoder)) // 2, min_cosine=-1.0)
        assert len(result.spent) > 1
        for index, left_out in enumerate(result.left_out):
            assert len(left_out) == result.spent[index]
            with without(decoder, left_out):
                expected = state.advance(tokens, keep=len(tokens))
            state.restore(before)
            found_logits = logits_of(decoder, result.hidden[index : index + 1])
            assert float((found_logits - expected).abs().max()) < 2e-3
        assert torch.equal(variants.likeliest(result.hidden)[-1], logits_of(decoder, result.hidden[-1:]).argmax(-1))
        assert result.cosine[0] == 1.0


def test_a_search_leaves_the_state_as_it_was_to_the_very_tensors(decoder: Decoder, state: State) -> None:
    with torch.inference_mode():
        anchor = state.snapshot()
        state.advance(TOKENS)
        tensors_before = dict(state.tensors())
        copies = {name: tensor.clone() for name, tensor in tensors_before.items()}
        pointers = [layer.keys.data_ptr() for layer in state.cache.layers if getattr(layer, "keys", None) is not None]
        search(Variants(decoder, state, anchor, TOKENS), every_item(decoder), limit=3, min_cosine=-1.0)
        after = dict(state.tensors())
        assert pointers == [
            layer.keys.data_ptr() for layer in state.cache.layers if getattr(layer, "keys", None) is not None
        ]
        assert all(torch.equal(after[name], copies[name]) for name in copies)
        assert not any("forward" in vars(layer.module) for layer in decoder.layers)


def test_ways_that_are_too_unlike_the_model_are_pruned(decoder: Decoder, state: State) -> None:
    with torch.inference_mode():
        variants = Variants(decoder, state, state.snapshot(), TOKENS)
        some = search(variants, every_item(decoder), limit=8, min_cosine=0.9)
        none = search(variants, every_item(decoder), limit=8, min_cosine=1.1)
    assert none.spent == (0,)
    assert all(cosine >= 0.9 for cosine in some.cosine)


def test_the_programme_finds_what_trying_every_set_finds_where_one_part_is_left_out(load: Any) -> None:
    decoder = Decoder(load("tiny-transformer").model)
    with torch.inference_mode():
        state = State(decoder)
        state.advance(PAST)
        variants = Variants(decoder, state, state.snapshot(), TOKENS)
        (reference,) = search(
            variants, [Choice(part_choice.items, 0) for part_choice in every_item(decoder)], limit=0, min_cosine=-1.0
        ).hidden
        likes = {}
        for item in inner_items(decoder):
            hidden = variants.first
            for choice in every_item(decoder):
                hidden = hidden if choice.items == (item,) else variants.apply(choice.items[0], hidden, hidden)
            likes[item] = float(torch.nn.functional.cosine_similarity(hidden[0], reference, dim=-1).mean())
        result = search(variants, every_item(decoder), limit=1, min_cosine=-1.0)
    # The way is chosen by what is known at each part, not by the end: it is at least as good as the middle.
    assert result.cosine[1] == pytest.approx(likes[next(iter(result.left_out[1]))], abs=1e-5)
    assert result.cosine[1] >= sorted(likes.values())[len(likes) // 2]


def test_latencies_are_those_of_a_step(decoder: Decoder) -> None:
    latencies = measure_latencies(decoder, 5)
    step = latencies.overhead + sum(
        latencies.part(part, 32) for number in range(len(decoder.layers)) for _, part in items_of(decoder, number)
    )
    assert 0 < step < 60
    assert [point.context for point in latencies.points] == [32]
    assert list(latencies.points[0].passes) == [1, 2, 4, 5]


def test_latencies_are_measured_up_to_the_context_in_use(decoder: Decoder) -> None:
    latencies = measure_latencies(decoder, 5)
    with torch.inference_mode():
        state = State(decoder)
        state.advance([7] * 38)
        latencies.cover(state)
        assert [point.context for point in latencies.points] == [32]
        state.advance([7] * 362)
        tensors_before = {name: tensor.clone() for name, tensor in state.tensors()}
        latencies.cover(state)
        state_after = dict(state.tensors())
    assert [(point.context, list(point.passes)) for point in latencies.points][1:] == [(400, [1, 5])]
    assert state.read == 400
    assert all(torch.equal(state_after[name], tensor) for name, tensor in tensors_before.items())


def test_a_part_and_a_pass_are_interpolated_between_contexts() -> None:
    points = [
        Timed(32, {"attention": 0.001, "mlp": 0.002}, 0.01, {1: 0.1, 2: 0.15, 4: 0.2}),
        Timed(1032, {"attention": 0.002, "mlp": 0.003}, 0.02, {1: 0.2, 4: 0.5}),
    ]
    short, long = Latencies(points[:1]), Latencies(points)
    assert short.verify(3, 32) == short.verify(3, 5000) == pytest.approx(0.175)
    assert short.verify(6, 32) == pytest.approx(0.25)
    assert [long.part("attention", context) for context in (0, 532, 1132)] == pytest.approx([0.001, 0.0015, 0.0021])
    assert (long.part("mlp", 2000), long.overhead) == (0.002, 0.01)
    assert [long.verify(tokens, 1032) for tokens in (1, 4)] == pytest.approx([0.2, 0.5])
    assert long.verify(1, 532) == pytest.approx(0.15)


def test_more_context_never_costs_less() -> None:
    points = [Timed(context, {"attention": spent}, 0.0, {1: spent}) for context, spent in ((32, 2.0), (100, 1.0))]
    assert [Latencies(points).part("attention", context) for context in (32, 100, 120)] == [2.0, 2.0, 2.0]


def test_the_pair_with_the_most_tokens_per_time_is_chosen() -> None:
    acceptances, steps, passes = [0.9, 0.5], [0.08, 0.02], [0.12, 0.14, 0.16, 0.2]
    number, depth, rate = best_pair(acceptances, steps, passes)
    rates = {
        (index, k): expected_tokens(acceptances[index], k) / (k * steps[index] + passes[k - 1])
        for index in range(2)
        for k in range(1, 5)
    }
    assert rate == max(rates.values()) == rates[number, depth]
    assert expected_tokens(1.0, 4) == 5.0
    assert expected_tokens(0.5, 2) == pytest.approx(1.75)


def test_weights_are_whole_and_the_budget_is_half_of_the_time() -> None:
    assert weights_of([1.0, 2.0, 1.0, 2.0], 16) == ([1, 2, 1, 2], 3)
    weights, limit = weights_of([0.1, 0.7] * 24, 16)
    assert limit <= 16
    assert set(weights) == {1, 1 if 0.7 < 0.6 else round(0.7 / (0.8 * 24 / 2 / 16))}


def test_the_bound_is_the_score_at_what_was_tried_and_wide_elsewhere() -> None:
    tried = torch.eye(4, dtype=torch.float64)
    scores = torch.tensor([0.1, 0.9, 0.2, 0.3], dtype=torch.float64)
    far = torch.ones(1, 4, dtype=torch.float64) * 3
    bounds = upper_bound(tried, scores, torch.cat([tried, far]), scale=1.0)
    assert bounds[:4].argmax() == 1
    assert float(bounds[4]) > float(scores.mean()) + 2 * float(scores.std(correction=0))
