"""What the best depth and its speed-up depend on: from acceptance, draft depth and costs given by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchctl.analysis.cost import Prediction, RoundCosts, predict

ALPHA_STEP = 0.05
"""How far the sensitivity varies α."""
COST_FACTOR = 1.25
"""By what it varies the cost of a draft step."""
OVERHEAD_STEP = 0.1
"""What it adds to the overhead of a round, in target steps."""


@dataclass(frozen=True)
class Variation:
    """What the best depth and its speed-up become when a number is another."""

    changed: str
    depth: int
    speedup: float


FurtherCost = Callable[[int], float]
"""What the target's pass over a draft of so many tokens costs beyond a decode step, in target steps."""


def nothing_further(depth: int) -> float:
    """Return 0: a pass reads all weights, however many tokens it verifies."""
    del depth
    return 0.0


def best_of(rows: Sequence[Prediction]) -> Prediction:
    """Return the depth with the highest speed-up, the smallest where several have it."""
    return max(rows, key=lambda row: (row.speedup, -row.depth))


def predicted(alpha: float, depths: Sequence[int], costs: RoundCosts, further: FurtherCost) -> list[Prediction]:
    """Return the prediction for every draft depth, with what a verify costs beyond `costs`. Raises ValueError."""
    return [
        predict(alpha, [depth], replace(costs, verify_token=costs.verify_token + further(depth) / depth))[0]
        for depth in depths
    ]


def sensitivity(alpha: float, depths: Sequence[int], costs: RoundCosts, further: FurtherCost) -> list[Variation]:
    """Return what the best depth becomes when α, c or o turns out different from what was given."""
    dearer, cheaper = costs.draft_step * COST_FACTOR, costs.draft_step / COST_FACTOR
    steps = ((f"a draft step costs {cost:.3g} instead of {costs.draft_step:.3g}", cost) for cost in (dearer, cheaper))
    alphas = (max(0.0, alpha - ALPHA_STEP), min(1.0, alpha + ALPHA_STEP))
    further_cost = replace(costs, overhead=costs.overhead + OVERHEAD_STEP)
    cases = [
        *((f"α {other:.2f} instead of {alpha:.2f}", other, costs) for other in alphas),
        *((changed, alpha, replace(costs, draft_step=cost)) for changed, cost in steps),
        (f"a round costs {OVERHEAD_STEP:g} target steps more", alpha, further_cost),
    ]
    found = []
    for changed, changed_alpha, changed_costs in cases:
        best = best_of(predicted(changed_alpha, depths, changed_costs, further))
        found.append(Variation(changed, best.depth, best.speedup))
    return found
