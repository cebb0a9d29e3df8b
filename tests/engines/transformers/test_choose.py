"""Sampling keeps the target's distribution exactly, and the test that says so is sharp enough to catch wrong rules.

Token by token, in the direction that is best for a residual taken from p: the tokens' min(1, q/p) summed, less what p
expects of it, which is the sum of min(p, q); over its standard deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.serving.decode import Chooser, Sampler  # noqa: E402

pytestmark = pytest.mark.torch
VOCABULARY, PLACES, DRAWS = 12, 40, 60
Verify = Callable[[Chooser, int, Any, Any], int]


def places() -> list[tuple[Any, Any]]:
    """Pairs of logits, the target's and the draft's: alike, as a draft's are."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(PLACES, VOCABULARY, generator=generator) * 2
    return list(zip(target, target + torch.randn(PLACES, VOCABULARY, generator=generator), strict=True))


def deviation(sampler: Sampler, verify: Verify) -> float:
    """How many standard deviations the sampled tokens are from the target's distribution."""
    chooser = sampler.chooser()
    observed = expected = variance = 0.0
    for target, draft in places():
        p, q = chooser.probabilities(target), chooser.probabilities(draft)
        weight = torch.where(p > 0, (q / p.clamp(min=1e-300)).clamp(max=1), 0.0)
        mean = float((p * weight).sum())
        for _ in range(DRAWS):
            token, _ = chooser.draft(draft[None])
            observed += float(weight[verify(chooser, token, q, target)])
            expected += mean
            variance += float((p * weight**2).sum()) - mean**2
    return (observed - expected) / math.sqrt(variance)


def ours(chooser: Chooser, token: int, q: Any, target: Any) -> int:
    accepted, following = chooser.verify([token], [q], torch.stack([target, target]))
    return token if accepted else following


def from_p(chooser: Chooser, token: int, q: Any, target: Any) -> int:
    """The wrong rule of published code: a rejected token is drawn again from p."""
    p = chooser.probabilities(target)
    accepted, _ = chooser.verify([token], [q], torch.stack([target, target]))
    return token if accepted else chooser._draw(p)


def too_often(chooser: Chooser, token: int, q: Any, target: Any) -> int:
    """Another wrong rule: accepted with 1.25 p/q."""
    p = chooser.probabilities(target)
    if chooser._uniform() * float(q[token]) < 1.25 * float(p[token]):
        return token
    return chooser._draw((p - q).clamp(min=0))


@pytest.mark.parametrize(
    "sampler", [Sampler(0.8), Sampler(1.0, top_k=6), Sampler(1.3, top_p=0.9)], ids=["plain", "top-k", "top-p"]
)
def test_the_targets_distribution_is_kept(sampler: Sampler) -> None:
    assert abs(deviation(sampler, ours)) < 3.5


def naive(sampler: Sampler, logits: Any, never: set[int]) -> Any:
    """By sorting everything, a row at a time, in float64."""
    rows = []
    for row in logits.double():
        scaled = row / sampler.temperature
        scaled[list(never)] = -torch.inf
        if sampler.top_k:
            scaled[scaled < scaled.sort(descending=True).values[sampler.top_k - 1]] = -torch.inf
        chances = scaled.softmax(-1)
        ordered, ids = chances.sort(descending=True)
        count = 1 + int((ordered.cumsum(-1)[:-1] < sampler.top_p).sum())
        chances[ids[count:]] = 0
        rows.append(chances / chances.sum())
    return torch.stack(rows)


@pytest.mark.parametrize("spread", [0.1, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize(
    "sampler",
    [Sampler(0.7), Sampler(0.7, top_k=40), Sampler(1.2, top_p=0.9), Sampler(0.9, top_k=300, top_p=0.8)],
    ids=["plain", "top-k", "top-p", "both"],
)
def test_distributions_are_those_of_sorting_everything(sampler: Sampler, spread: float) -> None:
    logits = torch.randn(3, 5000, generator=torch.Generator().manual_seed(1)) * spread
    never = {int(logits[0].argmax()), 17}
    result = sampler.chooser(never).probabilities(logits)
    expected = naive(sampler, logits, never)
    assert torch.equal(result > 0, expected > 0)
    assert float((result - expected).abs().sum(-1).max()) < 1e-5
    assert torch.equal(sampler.chooser(never).probabilities(logits[1]), result[1])


def test_tokens_as_likely_as_the_last_of_top_k_are_all_in_it() -> None:
    for vocabulary in (50, 5000):
        flat = Sampler(1.0, top_k=3).chooser().probabilities(torch.zeros(1, vocabulary))
        assert torch.equal(flat, torch.full((1, vocabulary), 1 / vocabulary))


def test_the_last_token_with_a_weight_is_the_last_that_is_drawn() -> None:
    chooser = Sampler(1.0).chooser()
    weights = torch.tensor([0.0, 0.25, 0.0, 0.75, 0.0])
    for uniform, token in ((0.0, 1), (0.2499, 1), (0.25, 3), (1 - 2**-53, 3), (1.0, 3)):
        chooser._uniform = lambda uniform=uniform: uniform  # type: ignore[method-assign, misc]
        assert chooser._draw(weights) == token


@pytest.mark.parametrize("verify_rule", [from_p, too_often])
def test_wrong_rules_are_caught(verify_rule: Verify) -> None:
    assert abs(deviation(Sampler(1.0), verify_rule)) > 5


def test_tokens_follow_the_targets_distribution() -> None:
    chooser, (target, draft) = Sampler(1.0, seed=3).chooser(), places()[0]
    p, q = chooser.probabilities(target), chooser.probabilities(draft)
    counts = torch.zeros(VOCABULARY, dtype=torch.float64)
    for _ in range(4000):
        counts[ours(chooser, chooser.draft(draft[None])[0], q, target)] += 1
    chi_square = float(((counts - 4000 * p) ** 2 / (4000 * p)).sum())
    assert chi_square < 31.3  # 99.9 % of the distribution with 11 degrees of freedom


def test_a_certain_draft_is_accepted_with_the_targets_probability() -> None:
    chooser, (target, _) = Sampler(1.0).chooser(), places()[1]
    token = int(target.argmax())
    p = float(chooser.probabilities(target)[token])
    accepted = sum(chooser.verify([token], [None], torch.stack([target, target]))[0] for _ in range(2000))
    assert abs(accepted - 2000 * p) < 4 * math.sqrt(2000 * p * (1 - p))


def test_greedy_accepts_what_is_likeliest_and_corrects_the_rest() -> None:
    logits = torch.eye(4)[[2, 0, 3]]
    chooser = Sampler().chooser()
    assert chooser.verify([2, 0], [None, None], logits) == (2, 3)
    assert chooser.verify([2, 1], [None, None], logits) == (1, 0)
    assert chooser.verify([1, 0], [None, None], logits) == (0, 2)


def test_tokens_that_are_never_chosen_are_not() -> None:
    logits = torch.tensor([[0.0, 5.0, 4.0, 1.0]])
    assert Sampler().chooser({1}).first(logits) == 2
    assert float(Sampler(1.0).chooser({1}).probabilities(logits[0])[1]) == 0


def test_the_same_seed_draws_the_same_tokens() -> None:
    drawn = [[Sampler(1.0, seed=5).chooser().first(target[None]) for target, _ in places()] for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_penalty_counts_what_was_drafted_before() -> None:
    chooser, logits = Sampler(penalty=2.0, bias={3: 1.0}).chooser(), torch.tensor([[0.0, 3.0, 2.0, 0.5]] * 3)
    chooser.context = [0]
    assert chooser.verify([1, 1], [None, None], logits) == (1, 2), "the second has half its logit"
    assert chooser.verify([1, 2], [None, None], logits) == (2, 1), "1.5 for token 3 with its bias, and for 1: the lower"
    assert chooser.draft(logits, [1])[0] == 2
    chooser.context = [0, 1, 2]
    assert chooser.first(logits) == 1
    sampled = Sampler(1.0, penalty=2.0).chooser()
    sampled.context = [1]
    halved = sampled.processed(logits, [1, 2, 3])
    assert halved.tolist() == [[0.0, 1.5, 2.0, 0.5], [0.0, 1.5, 1.0, 0.5], [0.0, 1.5, 1.0, 0.25]]
