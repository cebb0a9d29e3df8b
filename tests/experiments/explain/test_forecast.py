"""The prediction is held against rounds that are played out token by token, and against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchctl.analysis.cost import RoundCosts, predict
from benchctl.experiments.explain.forecast import best_of


def simulated_speedup(alpha: float, depth: int, costs: RoundCosts, rounds: int, rng: np.random.Generator) -> float:
    """Return the speed-up of so many simulated rounds: tokens are drawn one by one, no formula for E is used.

    Every draft token is accepted with probability α; the first rejection ends the round, and the target's own token
    comes on top, after a rejection as the correction and after none as the bonus.
    """
    accepted = rng.random((rounds, depth)) < alpha
    accepted_in_row = np.where(accepted.all(axis=1), depth, np.argmin(accepted, axis=1))
    return float((accepted_in_row + 1).sum() / (rounds * costs.of_round(depth)))


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 0.95, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 5, 16])
@pytest.mark.parametrize("costs", [RoundCosts(0.0), RoundCosts(0.1), RoundCosts(0.2, 0.3, 0.05)])
def test_the_formula_is_what_played_out_rounds_yield(alpha: float, depth: int, costs: RoundCosts) -> None:
    played = simulated_speedup(alpha, depth, costs, 40_000, np.random.default_rng(7))
    (row,) = predict(alpha, [depth], costs)
    assert row.speedup == pytest.approx(played, rel=0.02)


def test_the_bonus_token_counts_once() -> None:
    (row,) = predict(0.8, [5], RoundCosts(0.1))
    assert row.tokens_per_round == pytest.approx((1 - 0.8**6) / 0.2)
    assert row.speedup == pytest.approx(2.46, abs=0.005)


def test_the_break_even_acceptance_gives_exactly_one() -> None:
    for row in predict(0.5, [1, 4, 9], RoundCosts(0.1, 0.2)):
        assert row.break_even_alpha is not None
        assert predict(row.break_even_alpha, [row.depth], RoundCosts(0.1, 0.2))[0].speedup == pytest.approx(1.0)
    (hopeless,) = predict(0.9, [4], RoundCosts(1.1))
    assert hopeless.break_even_alpha is None, "a draft that costs more than the target never pays"


def test_the_best_depth_grows_with_acceptance_and_shrinks_with_cost() -> None:
    depths = range(1, 33)
    best = [best_of(predict(alpha, depths, RoundCosts(0.1))).depth for alpha in (0.3, 0.6, 0.8, 0.9)]
    assert best == sorted(best) and best[0] < best[-1]
    assert best_of(predict(0.8, depths, RoundCosts(0.4))).depth < best_of(predict(0.8, depths, RoundCosts(0.05))).depth
    assert best_of(predict(0.0, depths, RoundCosts(0.0))).depth == 1, "of equals the smallest"


@pytest.mark.parametrize("alpha", [-0.1, 1.01, float("nan")])
def test_an_alpha_that_is_no_share_is_refused(alpha: float) -> None:
    with pytest.raises(ValueError, match="α is a share"):
        predict(alpha, [4], RoundCosts(0.1))


@pytest.mark.parametrize("cost", [-0.1, float("inf"), float("nan")])
def test_a_cost_that_is_none_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        RoundCosts(cost)


def test_a_depth_below_one_is_refused() -> None:
    for depths in ([], [0], [4, -1]):
        with pytest.raises(ValueError, match="at least 1"):
            predict(0.5, depths, RoundCosts(0.1))
