"""From a run to the cost of its rounds: units, each round's time split into parts, fits over depths and forecasts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from benchctl.analysis.cells import is_synthetic, speculation_of
from benchctl.analysis.cost import expected_tokens, split_rounds, sum_rounds, unit_costs, why_no_depth, width_curve
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Interval
from benchctl.analysis.round_results import Forecast, RoundFit, RoundModel, RoundSplit, UnitCost
from benchctl.analysis.speed_results import Acceptance, Cost, SpeedUp
from benchctl.analysis.statistics import pearson
from benchctl.analysis.verify_widths import cliffs_and_falls, timed_widths
from benchctl.recipes.speculation import drafts_by_model

if TYPE_CHECKING:
    from benchctl.analysis.acceptance import CounterColumns
    from benchctl.analysis.frame import Frame
    from benchctl.data.traces import CostTraces


def find_rounds(
    frame: Frame,
    counters: CounterColumns,
    speedups: Sequence[SpeedUp],
    acceptance: Sequence[Acceptance],
    costs: Sequence[Cost],
    traces: CostTraces | None,
) -> RoundModel:
    """Return the cost of rounds by the arms of a condition."""
    units: list[UnitCost] = []
    splits: list[RoundSplit] = []
    depths: list[DepthCost] = []
    without: dict[str, list[str]] = {}
    for arm, name in enumerate(frame.arms):
        rounds = sum_rounds(frame, counters, arm) if arm != frame.baseline else None
        if rounds is None or not rounds.drafted:
            continue
        if not units:
            units.append(_target_step(frame, rounds.step_s))
        settings = speculation_of(frame, name)
        drafts = drafts_by_model(settings.get("type")) or (rounds.phases is not None and "verify" in rounds.phases)
        units += unit_costs(frame, arm, rounds, traces, drafts=drafts)
        arm_splits = split_rounds(frame, counters, arm, traces, drafts=drafts)
        splits += arm_splits
        depth = settings.get("max")
        if is_synthetic(frame, arm):
            continue  # no draft's acceptance, so it must not enter a forecast
        overall = next(row for row in acceptance if row.arm == name and row.task == ALL_TASKS)
        if reason := why_no_depth(frame, overall):
            without.setdefault(reason, []).append(name)
        if not isinstance(depth, int) or reason:
            continue
        cost = next(candidate for candidate in costs if candidate.arm == name)
        speed = next(speedup for speedup in speedups if speedup.arm == name and speedup.task == ALL_TASKS)
        if cost.overhead is None or speed.pooled is None:
            continue
        shares = overall.position_unconditional
        depths.append(
            DepthCost(
                arm=name,
                setting=_setting(settings),
                depth=depth,
                round_cost=1 + cost.overhead,
                rounds=rounds.rounds,
                accepted_at=None if shares is None else [share * rounds.rounds for share in shares],
                alpha=cost.alpha,
                tokens=1 + rounds.accepted / rounds.rounds,
                undrafted=rounds.undrafted / rounds.rounds,
                measured=speed.pooled,
                interval=speed.interval,
                parts_cost=_cost_of_parts(arm_splits[0]),
            )
        )
    notes = [f"{', '.join(arms)}: no break-even and no forecast, since {reason}." for reason, arms in without.items()]
    widths = _widths(frame, traces, units)
    model = RoundModel(units=units + widths, splits=splits, notes=notes + cliffs_and_falls(widths))
    return _with_forecasts(model, depths, timed_widths(widths, frame.arms[frame.baseline]), traces)


def _with_forecasts(
    model: RoundModel, depths: Sequence[DepthCost], widths: Mapping[int, float], traces: CostTraces | None
) -> RoundModel:
    notes = [*model.notes, *(traces.lacking if traces else [])]
    fits, forecasts = [], []
    for setting in dict.fromkeys(arm.setting for arm in depths):
        arms = [arm for arm in depths if arm.setting == setting]
        if len({arm.depth for arm in arms}) < 2:
            continue
        fits.append(fit_rounds(setting, arms))
        for arm in arms:
            other_arms = [other_arm for other_arm in arms if other_arm.depth != arm.depth]
            arm_forecast, reason = forecast(arm, other_arms, widths)
            forecasts += [arm_forecast] if arm_forecast else []
            notes += [reason] if reason and len({other_arm.depth for other_arm in other_arms}) > 1 else []
    return model.model_copy(update={"fits": fits, "forecasts": forecasts, "notes": notes})


def join_rounds(models: Sequence[RoundModel]) -> RoundModel:
    """Return the models of all conditions together."""
    rows: dict[str, list[Any]] = {
        name: [row for model in models for row in getattr(model, name)] for name in RoundModel.model_fields
    }
    return RoundModel(**rows | {"notes": list(dict.fromkeys(rows["notes"]))})


def predictors(splits: Sequence[RoundSplit], acceptance: Sequence[Acceptance]) -> dict[str, float]:
    """Return Pearson's r with the speed-up, over arms, of what is said to predict it; `{}` for too few arms."""
    rates = {row.arm: row.rate for row in acceptance if row.task == ALL_TASKS and row.rate is not None}
    rows = [row for row in splits if row.task == ALL_TASKS and row.arm in rates]
    rated = [(row, tpt) for row in rows if (tpt := row.tokens_per_time) is not None]
    correlations = {
        "tokens per time": pearson([(tpt, row.speedup) for row, tpt in rated]),
        "acceptance": pearson([(rates[row.arm], row.speedup) for row, _ in rated]),
    }
    return {name: r for name, r in correlations.items() if r is not None}


def _target_step(frame: Frame, step_s: float) -> UnitCost:
    name = frame.arms[frame.baseline]
    cells = [frame.baseline, *([] if frame.again is None else [frame.again])]
    count = int(sum(frame.decoded[row] for cell in cells for row in frame.rows(cell) if frame.decoded[row] > 0))
    of_step: dict[str, Any] = {"what": "target step", "width": 1, "steps": 1.0, "source": "run"}
    return UnitCost(arm=name, seconds=step_s, count=count, **of_step)  # as the first arm's prompts have it


def _widths(frame: Frame, traces: CostTraces | None, units: Sequence[UnitCost]) -> list[UnitCost]:
    """Return the width curve: rounds timed for it alone, else the passes over so many tokens of all timed arms."""
    baseline = frame.arms[frame.baseline]
    curve = width_curve(traces, baseline, frame.arms)
    if not units or len(curve) < 2:
        return []
    step_s = units[0].seconds
    return [
        UnitCost(arm=baseline, what="verify", width=width, seconds=steps * step_s, steps=steps, count=count,
                 source="traced")
        for width, steps, count in curve
    ]  # fmt: skip


def _cost_of_parts(split: RoundSplit) -> float | None:
    """Return a round in steps from its parts, what is left over not among them; `None` where they are not all timed."""
    if "verify" not in split.parts:
        return None
    return sum(seconds for part, seconds in split.parts.items() if part != "left over") / split.step_s


def _setting(settings: dict[str, Any]) -> str:
    """Return a name for the settings that arms of different depths have in common."""
    options = {key: value for key, value in settings.items() if key not in ("type", "max") and value is not None}
    kind = settings.get("type")
    name = kind if isinstance(kind, str) else json.dumps(kind)
    return f"{name} ({', '.join(f'{key} {value}' for key, value in sorted(options.items()))})" if options else name


LEAST_R2 = 0.9
MOST_RESIDUAL = 0.15
CLOSE = 0.10
"""Most by which a forecast that holds may miss the tokens of a round, and its cost: two errors could cancel."""


@dataclass(frozen=True)
class DepthCost:
    """An arm that a model drafts for to a depth."""

    arm: str
    setting: str
    """Arms of a setting differ in nothing but the depth."""
    depth: int
    round_cost: float
    """In steps, plain steps and re-evaluations taken off as a step each."""
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
    """Fit a line to what rounds cost at two depths or more; through two it cannot be checked."""
    depths = [cost.depth for cost in costs]
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


def forecast(
    held_out: DepthCost, other_arms: Sequence[DepthCost], widths: Mapping[int, float] | None = None
) -> tuple[Forecast | None, str | None]:
    """Return the forecast of an arm from the others of its setting; else why there is none, in a sentence.

    `widths`: steps of a verify by its tokens, as timed. Where they have the three depths', the line is that of the rest
    of a round, and the verify is what it was timed to be; else the line is that of whole rounds.
    """
    neighbours = _beside(held_out.depth, other_arms)
    if len(neighbours) < 2:
        return None, f"{held_out.arm}: no forecast, since a line needs two other depths."
    near, far = neighbours
    verify = verify_costs([arm.depth for arm in (near, far, held_out)], widths or {})
    slope = (far.round_cost - verify[far.depth] - near.round_cost + verify[near.depth]) / (far.depth - near.depth)
    cost = near.round_cost - verify[near.depth] + slope * (held_out.depth - near.depth) + verify[held_out.depth]
    if slope <= 0 or cost <= 0:
        reason = (
            f"a further draft token would cost {slope:.2f} steps" if slope <= 0 else f"a round would cost {cost:.2f}"
        )
        return None, f"{held_out.arm}: no forecast from depths {near.depth}, {far.depth}, since {reason}."
    tokens = expected_by_position(held_out.depth, other_arms)
    if tokens is None:
        return None, f"{held_out.arm}: no forecast, since no other arm reports what it accepted."
    plain = sum(neighbour.undrafted for neighbour in neighbours) / len(neighbours)
    predicted = (tokens + plain) / (cost + plain)
    ends_of_cost = _cost_ends(held_out.depth, near, far, verify)
    error = predicted / held_out.measured - 1
    ends = held_out.interval
    near_it = abs(error) <= CLOSE or (ends is not None and ends.low <= predicted <= ends.high)
    parts_hold = max(abs(tokens / held_out.tokens - 1), abs(cost / held_out.round_cost - 1)) <= CLOSE
    holds = near_it and parts_hold
    parts = held_out.parts_cost
    return Forecast(
        arm=held_out.arm,
        depth=held_out.depth,
        from_depths=sorted(neighbour.depth for neighbour in neighbours),
        tokens=tokens,
        tokens_measured=held_out.tokens,
        round_cost=cost,
        round_cost_measured=held_out.round_cost,
        predicted=predicted,
        predicted_interval=None
        if ends_of_cost is None
        else Interval(
            low=(tokens + plain) / (ends_of_cost[1] + plain),
            high=(tokens + plain) / (ends_of_cost[0] + plain),
            method="the cost of rounds beside it at the ends of their speed-ups' intervals",
        ),
        measured=held_out.measured,
        interval=ends,
        error=error,
        from_parts=None if parts is None else (held_out.tokens + held_out.undrafted) / parts,
        holds=holds,
        why=None if holds else _why(held_out, tokens, cost, timed=any(verify.values())),
    ), None


def verify_costs(depths: Sequence[int], widths: Mapping[int, float]) -> dict[int, float]:
    """Return what verifying a draft of each depth takes, in steps; 0 for all where one of them was not timed."""
    timed = all(depth + 1 in widths for depth in depths)
    return {depth: widths[depth + 1] if timed else 0.0 for depth in depths}


def _cost_ends(depth: int, near: DepthCost, far: DepthCost, verify: Mapping[int, float]) -> tuple[float, float] | None:
    """Return the least and the most that a round at a depth costs by the line through two arms' rounds.

    An arm's rounds cost what they do at both ends of its interval. `None` without both, and where the line falls to 0.
    """
    if near.interval is None or far.interval is None:
        return None
    (low, high), (far_low, far_high) = (
        tuple(arm.round_cost * arm.measured / end - verify[arm.depth] for end in (ends.high, ends.low))
        for arm, ends in ((near, near.interval), (far, far.interval))
    )
    share = (depth - near.depth) / (far.depth - near.depth)
    costs = [cost + share * (beyond - cost) + verify[depth] for cost in (low, high) for beyond in (far_low, far_high)]
    return (min(costs), max(costs)) if min(costs) > 0 else None


def _beside(depth: int, other_arms: Sequence[DepthCost]) -> list[DepthCost]:
    """Return the arms at the depths below and above, or the two nearest where a side has none; each depth once."""
    by_depth = {other_arm.depth: other_arm for other_arm in other_arms if other_arm.depth != depth}
    below = sorted((near for near in by_depth if near < depth), reverse=True)
    above = sorted(near for near in by_depth if near > depth)
    chosen = [below[0], above[0]] if below and above else (below or above)[:2]
    return [by_depth[near] for near in sorted(chosen)]


def expected_by_position(depth: int, arms: Sequence[DepthCost]) -> float | None:
    """Return the tokens of a round to `depth` from how often other arms accepted each position, given that before.

    Beyond the positions that they report, the last share goes on; where they report none, a single α serves for all.
    """
    reports = [[arm.rounds, *arm.accepted_at] for arm in arms if arm.accepted_at and arm.rounds]
    shares: list[float] = []
    for position in range(depth):
        reached = [counts[position : position + 2] for counts in reports if len(counts) > position + 1]
        before = sum(pair[0] for pair in reached)
        if not before and not shares:
            break
        shares.append(sum(pair[1] for pair in reached) / before if before else shares[-1])
    if shares:
        return 1 + sum(accumulate(shares, lambda first, second: first * second))
    rates = [(arm.alpha, arm.rounds) for arm in arms if arm.alpha is not None]
    weight = sum(rounds for _, rounds in rates)
    return expected_tokens(sum(alpha * rounds for alpha, rounds in rates) / weight, depth) if weight else None


def _why(arm: DepthCost, tokens: float, cost: float, *, timed: bool) -> str:
    """Return which of the two numbers is off, and by how much; `timed`: whether the verify was timed at its width."""
    kernel = "" if timed else " (another width can run another kernel, which a line does not know)"
    off = {
        f"a round costs {arm.round_cost:.2f} steps where the line predicts {cost:.2f}{kernel}": abs(
            cost / arm.round_cost - 1
        ),
        f"a round yields {arm.tokens:.2f} tokens where the other depths' acceptance predicts {tokens:.2f}": abs(
            tokens / arm.tokens - 1
        ),
    }
    reasons = sorted(off, key=lambda reason: -off[reason])
    close_reasons = [reason for reason in reasons if off[reason] > CLOSE / 2] or reasons[:1]
    return f"{'; '.join(close_reasons)}."
