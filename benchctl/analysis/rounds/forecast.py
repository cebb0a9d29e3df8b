"""Forecasts: the speed-up at a depth whose own rounds were not used, and whether it holds.

What a round costs at a held-out depth lies on the straight line through the two depths beside it, of the same setting;
at either end through the nearest two. Kernels for one token and for many differ, so that one line through all depths is
often none: it is fitted by least squares, and refused where it fails its own check (slope and intercept above 0, r² at
least 0.9, no residual above 15 %). Tokens a round come from how often the other arms accepted each position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from benchctl.analysis.cost import expected_tokens
from benchctl.analysis.result import Interval
from benchctl.analysis.rounds.results import Forecast, RoundFit

LEAST_R2 = 0.9
MOST_RESIDUAL = 0.15
CLOSE = 0.10
"""A forecast with at most this error, as a share of the measured speed-up, holds whatever the interval."""


@dataclass(frozen=True)
class DepthCost:
    """One arm that a model drafts for to a depth."""

    arm: str
    setting: str
    """Arms of one setting differ in nothing but the depth."""
    depth: int
    round_cost: float
    """In steps, plain steps and re-evaluations taken off as one step each."""
    rounds: float
    accepted_at: Sequence[float] | None
    """Rounds that accepted position 0, 1, …"""
    alpha: float | None
    tokens: float
    """Accepted tokens and the target's own, a round."""
    undrafted: float
    """Steps without a draft, a round."""
    measured: float
    interval: Interval | None
    parts_cost: float | None = None
    """A round in steps, from parts that were timed separately alone."""


def fit_rounds(setting: str, costs: Sequence[DepthCost]) -> RoundFit:
    """Fit a line to what rounds cost by depth; two depths give a line that cannot be checked."""
    depths = [cost.depth for cost in costs]
    if len(set(depths)) < 2:
        return RoundFit(setting=setting, depths=depths, intercept=None, slope=None, r2=None, worst=None,
                        refused="a line needs two depths")  # fmt: skip
    x, y = np.array(depths, dtype=float), np.array([cost.round_cost for cost in costs])
    slope, intercept = np.polyfit(x, y, 1)
    residuals = y - (intercept + slope * x)
    spread = float(((y - y.mean()) ** 2).sum())
    r2 = 1 - float((residuals**2).sum()) / spread if spread else 1.0
    worst = float(np.abs(residuals / y).max())
    refused = _refusal(float(intercept), float(slope), r2, worst)
    return RoundFit(
        setting=setting,
        depths=sorted(depths),
        intercept=None if refused else float(intercept),
        slope=None if refused else float(slope),
        r2=r2,
        worst=worst,
        refused=refused,
    )


def _refusal(intercept: float, slope: float, r2: float, worst: float) -> str | None:
    if slope <= 0:
        return f"a further draft token would cost {slope:.2f} steps"
    if intercept <= 0:
        return f"a round without a draft would cost {intercept:.2f} steps"
    if r2 < LEAST_R2:
        return f"its r² is {r2:.2f}, below {LEAST_R2:g}"
    if worst > MOST_RESIDUAL:
        return f"a residual is {100 * worst:.0f} % of the cost there, above {100 * MOST_RESIDUAL:.0f} %"
    return None


def forecast(held_out: DepthCost, others: Sequence[DepthCost]) -> tuple[Forecast | None, str | None]:
    """Return the forecast of an arm from the others of its setting; else why there is none, in a sentence."""
    beside = _beside(held_out.depth, others)
    if len(beside) < 2:
        return None, f"{held_out.arm}: no forecast, since a line needs two other depths."
    near, far = beside
    slope = (far.round_cost - near.round_cost) / (far.depth - near.depth)
    cost = near.round_cost + slope * (held_out.depth - near.depth)
    if slope <= 0 or cost <= 0:
        what = f"a further draft token would cost {slope:.2f} steps" if slope <= 0 else f"a round would cost {cost:.2f}"
        return None, f"{held_out.arm}: no forecast from depths {_listed(beside)}, since {what}."
    tokens = expected_by_position(held_out.depth, others)
    if tokens is None:
        return None, f"{held_out.arm}: no forecast, since no other arm reports what it accepted."
    plain = sum(neighbour.undrafted for neighbour in beside) / len(beside)
    predicted = (tokens + plain) / (cost + plain)
    error = predicted / held_out.measured - 1
    ends = held_out.interval
    holds = abs(error) <= CLOSE or (ends is not None and ends.low <= predicted <= ends.high)
    parts = held_out.parts_cost
    return Forecast(
        arm=held_out.arm,
        depth=held_out.depth,
        from_depths=sorted(neighbour.depth for neighbour in beside),
        tokens=tokens,
        tokens_measured=held_out.tokens,
        round_cost=cost,
        round_cost_measured=held_out.round_cost,
        predicted=predicted,
        measured=held_out.measured,
        interval=ends,
        error=error,
        from_parts=None if parts is None else (held_out.tokens + held_out.undrafted) / parts,
        holds=holds,
        why=None if holds else _why(held_out, tokens, cost),
    ), None


def _beside(depth: int, others: Sequence[DepthCost]) -> list[DepthCost]:
    """Return the arms at the depths below and above, or the two nearest where one side has none; each depth once."""
    by_depth = {other.depth: other for other in others if other.depth != depth}
    below = sorted((other_depth for other_depth in by_depth if other_depth < depth), reverse=True)
    above = sorted(other_depth for other_depth in by_depth if other_depth > depth)
    chosen = [below[0], above[0]] if below and above else (below or above)[:2]
    return [by_depth[near] for near in sorted(chosen)]


def expected_by_position(depth: int, arms: Sequence[DepthCost]) -> float | None:
    """Return the tokens of a round to `depth` from how often other arms accepted each position, given the one before.

    Beyond the positions that they report, the last one's share goes on; where they report none, one α serves for all.
    """
    reporting = [arm for arm in arms if arm.accepted_at and arm.rounds]
    shares: list[float] = []
    for place in range(depth):
        reached = [
            (neighbour.accepted_at[place - 1] if place else neighbour.rounds, neighbour.accepted_at[place])
            for neighbour in reporting
            if neighbour.accepted_at and len(neighbour.accepted_at) > place
        ]
        before, here = sum(pair[0] for pair in reached), sum(pair[1] for pair in reached)
        if before:
            shares.append(here / before)
        elif shares:
            shares.append(shares[-1])
        else:
            break
    if shares:
        return 1 + sum(accumulate(shares, lambda left, right: left * right))
    known = [(arm.alpha, arm.rounds) for arm in arms if arm.alpha is not None]
    weight = sum(rounds for _, rounds in known)
    return expected_tokens(sum(alpha * rounds for alpha, rounds in known) / weight, depth) if weight else None


def _why(arm: DepthCost, tokens: float, cost: float) -> str:
    """Return which of the two numbers is off, and by how much."""
    off = {
        f"a round costs {arm.round_cost:.2f} steps where the line predicts {cost:.2f}": abs(cost / arm.round_cost - 1),
        f"a round yields {arm.tokens:.2f} tokens where the other depths' acceptance predicts {tokens:.2f}": abs(
            tokens / arm.tokens - 1
        ),
    }
    reasons = sorted(off, key=lambda reason: -off[reason])
    kept = [reason for reason in reasons if off[reason] > CLOSE / 2] or reasons[:1]
    return f"{'; '.join(kept)}."


def _listed(arms: Sequence[DepthCost]) -> str:
    return ", ".join(str(depth) for depth in sorted({arm.depth for arm in arms})) or "none"
