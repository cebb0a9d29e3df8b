"""What speculation would yield before anything is measured: from acceptance, draft depth and costs given by hand.

A round drafts k tokens, each at the cost c of a target step, and verifies k + 1 positions in one target pass, which
costs 1 + k·w (w: what each further position adds; 0 where decoding is bound by memory bandwidth) and an overhead o. It
yields E(α, k) tokens (`benchctl.analysis.cost.expected_tokens`), so the speed-up is

    S(α, k) = E(α, k) / (1 + k·(c + w) + o)

Leviathan et al. 2023, theorem 3.8, has the same with w = o = 0. E counts the bonus token once: with α = 0.8, k = 5,
c = 0.1, S is 2.46; a formula that adds the bonus token a second time says 3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from benchctl.analysis.cost import alpha_for, expected_tokens

ALPHA_STEP = 0.05
"""How far the sensitivity varies α."""
COST_FACTOR = 1.25
"""By what it varies the cost of a draft step."""
OVERHEAD_STEP = 0.1
"""What it adds to the overhead of a round, in target steps."""


@dataclass(frozen=True)
class RoundCosts:
    """What a round costs, in decode steps of the target alone."""

    draft_step: float
    """c: one draft token."""
    overhead: float = 0.0
    """o: everything of a round that is neither drafting nor the target's pass."""
    verify_token: float = 0.0
    """w: what each further position adds to the target's pass."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is a cost in target steps: expected 0 or more, got {value:g}")

    def of_round(self, depth: int) -> float:
        """Return the cost of a round that drafts `depth` tokens."""
        return 1 + depth * (self.draft_step + self.verify_token) + self.overhead


@dataclass(frozen=True)
class Prediction:
    """One draft depth. `break_even_alpha` is `None` where no acceptance pays for the round."""

    depth: int
    tokens_per_round: float
    round_cost: float
    """In target steps."""
    speedup: float
    break_even_alpha: float | None


@dataclass(frozen=True)
class Variation:
    """What the best depth and its speed-up become when one number is another."""

    changed: str
    depth: int
    speedup: float


def predict(alpha: float, depths: Sequence[int], costs: RoundCosts) -> list[Prediction]:
    """Return the prediction for every draft depth; `alpha` is the acceptance of one token, the same at every position.

    Raises ValueError for an α outside 0 to 1 and for depths below 1.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"α is a share: expected 0 to 1, got {alpha:g}")
    if not depths or min(depths) < 1:
        raise ValueError("a draft depth is at least 1")
    rows = []
    for depth in depths:
        tokens, cost = expected_tokens(alpha, depth), costs.of_round(depth)
        rows.append(Prediction(depth, tokens, cost, tokens / cost, alpha_for(cost, depth)))
    return rows


def best_of(rows: Sequence[Prediction]) -> Prediction:
    """Return the depth with the highest speed-up, the smallest one where several have it."""
    return max(rows, key=lambda row: (row.speedup, -row.depth))


def speedup_grid(alphas: Sequence[float], depths: Sequence[int], costs: RoundCosts) -> np.ndarray:
    """Return the speed-up for every α (rows) and depth (columns)."""
    return np.array([[row.speedup for row in predict(alpha, depths, costs)] for alpha in alphas])


def sensitivity(alpha: float, depths: Sequence[int], costs: RoundCosts) -> list[Variation]:
    """Return what the best depth becomes when α, c or o turns out different from what was given."""
    dearer, cheaper = costs.draft_step * COST_FACTOR, costs.draft_step / COST_FACTOR
    cases = [
        (f"α {max(0.0, alpha - ALPHA_STEP):.2f} instead of {alpha:.2f}", max(0.0, alpha - ALPHA_STEP), costs),
        (f"α {min(1.0, alpha + ALPHA_STEP):.2f} instead of {alpha:.2f}", min(1.0, alpha + ALPHA_STEP), costs),
        (
            f"a draft step costs {dearer:.3g} instead of {costs.draft_step:.3g}",
            alpha,
            replace(costs, draft_step=dearer),
        ),
        (
            f"a draft step costs {cheaper:.3g} instead of {costs.draft_step:.3g}",
            alpha,
            replace(costs, draft_step=cheaper),
        ),
        (
            f"a round costs {OVERHEAD_STEP:g} target steps more",
            alpha,
            replace(costs, overhead=costs.overhead + OVERHEAD_STEP),
        ),
    ]
    found = []
    for changed, one, other in cases:
        best = best_of(predict(one, depths, other))
        found.append(Variation(changed, best.depth, best.speedup))
    return found


def simulated_speedup(alpha: float, depth: int, costs: RoundCosts, rounds: int, rng: np.random.Generator) -> float:
    """Return the speed-up of so many simulated rounds: tokens are drawn one by one, no formula for E is used.

    Every draft token is accepted with probability α; the first rejection ends the round, and the target's own token
    comes on top, after a rejection as the correction and after none as the bonus.
    """
    accepted = rng.random((rounds, depth)) < alpha
    kept = np.where(accepted.all(axis=1), depth, np.argmin(accepted, axis=1))
    return float((kept + 1).sum() / (rounds * costs.of_round(depth)))
