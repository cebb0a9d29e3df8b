"""The cost model: what a round of speculation yields, what it costs, and the acceptance from which it would pay.

With a per-token acceptance α that is the same at every position, a round at draft depth k yields

    E(α, k) = 1 + α + α² + … + α^k = (1 - α^(k+1)) / (1 - α)

tokens, the bonus token counted once (Leviathan et al. 2023, equation 1). It costs 1 + k·c + o steps of the baseline: c
a draft step, o verifying and keeping state. Records tell the sum k·c + o alone. A prediction before a measurement
adds w, what each further position costs the target's pass (0 where decoding is bound by memory bandwidth):

    S(α, k) = E(α, k) / (1 + k·(c + w) + o)

Theorem 3.8 of the paper has w = o = 0. With α = 0.8, k = 5, c = 0.1, S is 2.46, and 3.3 with the bonus token twice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from benchctl.analysis.cells import speculation_of
from benchctl.analysis.results import ALL_TASKS, Acceptance, Cost, SpeedUp
from benchctl.analysis.round_parts import sum_rounds
from benchctl.recipes.speculation import copies

if TYPE_CHECKING:
    from benchctl.analysis.acceptance import CounterColumns
    from benchctl.analysis.frame import Frame


FULL_DRAFTS = 0.7
"""An arm that drafts so much of its depth a round, on average, drafts to it; others stop early."""
DRAFTED_SHARE = 1 / 3
"""Where fewer of an arm's steps had a draft, the noise of the others would be attributed to the few rounds."""


@dataclass(frozen=True)
class RoundCosts:
    """What a round costs, in decode steps of the target alone."""

    draft_step: float
    """c: a draft token."""
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


def expected_tokens(alpha: float, depth: int) -> float:
    """Return E(α, k): tokens per round, from 1 at α = 0 to k + 1 at α = 1."""
    return float(sum(alpha**power for power in range(depth + 1)))


def alpha_for(tokens: float, depth: int) -> float | None:
    """Return the α in [0, 1] with E(α, depth) = `tokens`; `None` where no α yields that many. E grows with α."""
    if not tokens <= depth + 1:
        return None
    low, high = 0.0, 1.0
    if tokens <= 1:
        return low
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, depth) < tokens else (low, middle)
    return high


def predict(alpha: float, depths: Sequence[int], costs: RoundCosts) -> list[Prediction]:
    """Return the prediction for every draft depth; `alpha` is the acceptance of a token, the same at every position.

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


def find_cost(
    frame: Frame, counters: CounterColumns, arm: int, speedup: Sequence[SpeedUp], acceptance: Sequence[Acceptance]
) -> Cost:
    """Put an arm's measured cost of a round beside what the model predicts; everything unknown is `None`."""
    name = frame.arms[arm]
    overall = next(row for row in acceptance if row.task == ALL_TASKS)
    measured = next(row.pooled for row in speedup if row.task == ALL_TASKS)
    depth = draft_depth(frame, overall)
    length = overall.acceptance_length
    alpha = alpha_for(length, depth) if depth and length is not None else None
    round_cost = _round_cost(frame, counters, arm)
    return Cost(
        arm=name,
        depth=depth,
        alpha=alpha,
        draft_cost=None,
        overhead=None if round_cost is None else round_cost - 1,
        predicted=expected_tokens(alpha, depth) / round_cost if alpha is not None and depth and round_cost else None,
        measured=measured,
        break_even_alpha=alpha_for(round_cost, depth) if depth and round_cost is not None else None,
    )


def draft_depth(frame: Frame, acceptance: Acceptance) -> int | None:
    """Return the depth that an arm drafts to in every round; `None` where it has none (`why_no_depth`).

    By the recipe; where the engine reports rounds, they must draft `FULL_DRAFTS` of it on average at least.
    """
    settings = speculation_of(frame, acceptance.arm)
    depth = settings.get("max")
    return depth if isinstance(depth, int) and why_no_depth(frame, acceptance) is None else None


def why_no_depth(frame: Frame, acceptance: Acceptance) -> str | None:
    """Return why an arm's rounds have no depth in common, as the end of a sentence; `None` where they do."""
    settings = speculation_of(frame, acceptance.arm)
    kind, depth = settings.get("type"), settings.get("max")
    if not isinstance(kind, str):
        return "several types draft together"
    if copies(kind):
        return "text is drafted as far as it was seen before"
    if not isinstance(depth, int):
        return "the recipe names no depth"
    drafted, rounds = acceptance.drafted, acceptance.rounds
    if drafted and rounds and drafted > depth * rounds:
        return f"rounds draft {drafted / rounds:.1f} tokens on average: a tree, or deeper than {depth}"
    if drafted and rounds and drafted / rounds < FULL_DRAFTS * depth:
        return f"rounds draft {drafted / rounds:.1f} tokens on average, of {depth} at most"
    return None


def _round_cost(frame: Frame, counters: CounterColumns, arm: int) -> float | None:
    """Return the time of a verify round over that of a baseline token, on the prompts that both answered.

    Steps of the arm without a draft, and a recurrent model's evaluation after a partial rejection (it yields a token),
    count as a baseline step each. `None` where they are too many.
    """
    sums = sum_rounds(frame, counters, arm)
    if sums is None or sums.rounds / (sums.rounds + sums.undrafted) < DRAFTED_SHARE:
        return None
    return max(0.0, (sums.decode_s / sums.step_s - sums.undrafted) / sums.rounds) or None
