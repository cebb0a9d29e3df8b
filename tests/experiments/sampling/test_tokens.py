"""Token-level tests: a right sampler passes at or under the level, wrong ones are found, and the power says which."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchctl.experiments.sampling.stored import TermSum, TokenScores
from benchctl.experiments.sampling.tokens import (
    DRAFT,
    DRAFT_FIRST,
    FAR,
    NUCLEUS,
    TEMPERATURE,
    TERMS,
    Sampler,
    added,
    summed,
    terms,
    token_power,
    token_tests,
    weights,
)

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

VOCABULARY, PLACES, TOP = 60, 50, 40
PLAIN = Sampler(1.0, 0, 1.0, truncates_first=False)
Draw = Callable[["Floats", "Floats", np.random.Generator], int]


@cache
def places() -> tuple[tuple[Floats, Floats], ...]:
    """Pairs of logits, the target's and the draft's: alike, as a draft's are."""
    rng = np.random.default_rng(0)
    target = rng.normal(size=(PLACES, VOCABULARY)) * 2.5
    return tuple(zip(target, target + rng.normal(size=(PLACES, VOCABULARY)), strict=True))


def softmax(logits: Floats) -> Floats:
    powers = np.exp(logits - logits.max())
    return np.asarray(powers / powers.sum())


def top_logprobs(logits: Floats) -> dict[int, float]:
    """What an engine tells: the likeliest tokens with their logarithms, likeliest first."""
    p = softmax(logits)
    return {int(row): math.log(p[row]) for row in np.argsort(-p)[:TOP]}


@cache
def known(sampler: Sampler) -> tuple[tuple[dict[int, dict[str, TermSum]], set[int]], ...]:
    """Of every place what each token would add, and which are told and left out."""
    p_values = []
    for target, draft in places():
        p, q = top_logprobs(target), top_logprobs(draft)
        weight_of, out = weights(p, sampler)
        p_values.append(({token: terms(token, p, q, sampler) for token in weight_of}, out))
    return tuple(p_values)


def scored(draw: Draw, tokens: int, seed: int, sampler: Sampler = PLAIN) -> TokenScores:
    rng = np.random.default_rng(seed)
    added: list[dict[str, TermSum]] = []
    far = 0
    for number in range(tokens):
        index = number % PLACES
        target, draft = places()[index]
        token = draw(target, draft, rng)
        adds, out = known(sampler)[index]
        if token in adds:
            added.append(adds[token])
        elif token in out or token not in top_logprobs(target):
            far += 1
    sums = {name: total for name in TERMS if (total := summed(sums_of_token[name] for sums_of_token in added))}
    return TokenScores(arm="spec", task="code", prompt_idx=0, seed=seed, tokens=tokens, far=far, sums=sums)


def of(p: Floats, rng: np.random.Generator) -> int:
    return int(rng.choice(len(p), p=p / p.sum()))


def right(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    del draft
    return of(softmax(target), rng)


def too_cold(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    del draft
    return of(softmax(target / 0.85), rng)


def nucleus(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    del draft
    p = softmax(target)
    order = np.argsort(-p)
    p[order[np.cumsum(p[order]) - p[order] >= 0.9]] = 0
    return of(p, rng)


def residual_of_the_target(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    p, q = softmax(target), softmax(draft)
    token = of(q, rng)
    return token if rng.random() * q[token] < p[token] else of(p, rng)


def rejection(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    p, q = softmax(target), softmax(draft)
    token = of(q, rng)
    return token if rng.random() * q[token] < p[token] else of(np.clip(p - q, 0, None), rng)


def prefers_the_drafts_first(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    return int(draft.argmax()) if rng.random() < 0.1 else right(target, draft, rng)


def anything(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
    return right(target, draft, rng) if rng.random() < 0.97 else int(rng.integers(VOCABULARY))


CONTROL = 99


def ps_of(draw: Draw, tokens: int = 2_000, seed: int = 1, sampler: Sampler = PLAIN) -> dict[str, float]:
    return token_tests([scored(draw, tokens, seed, sampler)], [scored(right, tokens, CONTROL, sampler)])


@pytest.mark.parametrize("sampler", [right, rejection])
def test_right_samplers_pass_at_the_level(sampler: Draw) -> None:
    control = [scored(right, 400, CONTROL)]
    p_values = [token_tests([scored(sampler, 400, seed)], control) for seed in range(40)]
    assert set(p_values[0]) == {*TERMS, FAR}
    for name in p_values[0]:
        assert sum(row[name] <= 0.05 for row in p_values) <= 5, f"{name}: 2 of 40 are expected at most"


@pytest.mark.parametrize(
    ("sampler_draw", "by"),
    [
        (too_cold, TEMPERATURE),
        (nucleus, NUCLEUS),
        (residual_of_the_target, DRAFT),
        (prefers_the_drafts_first, DRAFT_FIRST),
        (anything, FAR),
    ],
)
def test_wrong_samplers_are_found(sampler_draw: Draw, by: str) -> None:
    assert ps_of(sampler_draw)[by] < 0.001


def test_requested_truncation_is_right_and_more_is_not() -> None:
    requested = Sampler(1.0, 0, 0.9, truncates_first=False)
    assert min(ps_of(nucleus, sampler=requested).values()) > 0.01
    assert ps_of(right, sampler=requested)[FAR] > 0.05, "the control draws from the whole, too"
    inside, outside = scored(nucleus, 2_000, 3, requested), scored(right, 2_000, 4, requested)
    assert token_tests([outside], [inside])[FAR] < 1e-6


def test_settings_give_the_samplers_own_distribution() -> None:
    p = {1: math.log(0.5), 2: math.log(0.3), 3: math.log(0.15), 4: math.log(0.05)}
    assert weights(p, PLAIN)[0] == pytest.approx({1: 0.5, 2: 0.3, 3: 0.15, 4: 0.05})
    half = weights(p, Sampler(0.5, 0, 1.0, truncates_first=False))[0]
    assert half[1] / half[2] == pytest.approx((0.5 / 0.3) ** 2)
    weight_of, out = weights(p, Sampler(1.0, 2, 1.0, truncates_first=True))
    assert weight_of == pytest.approx({1: 0.625, 2: 0.375})
    assert out == {3, 4}
    weight_of, out = weights(p, Sampler(0.5, 0, 0.7, truncates_first=True))
    assert (set(weight_of), out) == ({1, 2}, {3, 4}), "of the distribution before the temperature"
    assert set(weights(p, Sampler(0.2, 0, 0.7, truncates_first=False))[0]) == {1}, "of that after it"


def test_the_power_that_is_stated_is_had() -> None:
    power = token_power([scored(right, 2_000, 5)], 0.001)
    assert power.tokens == 2_000
    assert power.temperature is not None
    assert power.nucleus is not None
    assert 0.05 < power.temperature < 0.15
    assert power.nucleus < 1
    assert power.residual is not None

    def hotter(target: Floats, draft: Floats, rng: np.random.Generator) -> int:
        del draft
        return of(softmax(target * (1 + (power.temperature or 0))), rng)

    result = sum(ps_of(hotter, seed=seed)[TEMPERATURE] <= 0.001 for seed in range(20))
    assert result >= 15, "nine in ten are promised"
    few = token_power([scored(right, 60, 6)], 0.001)
    assert few.temperature is None or few.temperature > power.temperature
    assert few.residual is not None
    assert few.residual < 0.5


def test_sums_add_up() -> None:
    row, two = scored(right, 50, 7), scored(right, 100, 8)
    total = added([row, two], DRAFT)
    assert total is not None
    assert total.variance == pytest.approx(row.sums[DRAFT].variance + two.sums[DRAFT].variance)
    assert added([], DRAFT) is None
