"""Break-even: the acceptance that each draft depth needs, measured with synthetic acceptance (drawn at random).

At a given depth the speed-up is a function of the tokens that a round yields, whatever the draft. Between the measured
points it is taken for a straight line in those tokens, which it is where a round costs the same whatever is accepted;
a recurrent model's does not, so that its curve is only as fine as its points. α is the acceptance of a draft token,
the same at every position, that yields so many tokens (`benchctl.analysis.cost.alpha_for`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise

from benchctl.analysis.cost import alpha_for, expected_tokens
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.result import Fact, Interval, Result
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_results import BreakEven, Need, Outcome, Point
from benchctl.analysis.verdict import synthetic_arms
from benchctl.data.manifest import Manifest
from benchctl.recipes.speculation import drafts_by_model


class Measured(Result):
    """An arm, as a point on or beside the curve."""

    name: str
    synthetic: bool
    depth: int
    tokens: float | None
    speedup: float | None
    interval: Interval | None
    needs_alpha: float | None
    """By the cost model; of a real draft."""
    cost_known: bool


class Reference(Result):
    """An acceptance length that was published, or measured elsewhere."""

    model: str
    mode: str
    depth: int
    acceptance_length: float


def measured_arms(analysis: Analysis, manifest: Manifest | None) -> list[Measured]:
    """Return the arms of a run that draft to a depth."""
    synthetic, costs = synthetic_arms(analysis.verdicts), {row.arm: row for row in analysis.costs}
    accepted = {row.arm: row for row in analysis.acceptance if row.task == ALL_TASKS}
    speeds = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    measured = []
    for arm in manifest.arms if manifest else []:
        settings, name = arm.speculation or {}, arm.name
        depth = settings.get("max")
        if not isinstance(depth, int) or name not in costs or not drafts_by_model(settings.get("type")):
            continue
        measured.append(
            Measured(
                name=name,
                synthetic=name in synthetic,
                depth=depth,
                tokens=accepted[name].acceptance_length,
                speedup=speeds[name].pooled,
                interval=speeds[name].interval,
                needs_alpha=costs[name].break_even_alpha,
                cost_known=costs[name].overhead is not None,
            )
        )
    return measured


def breakeven_of_run(analysis: Analysis, manifest: Manifest | None) -> BreakEven | None:
    """Return the break-even of a run; `None` without synthetic arms."""
    return find_breakeven(measured_arms(analysis, manifest), recurrent=is_recurrent(manifest))


def is_recurrent(manifest: Manifest | None) -> bool:
    """Whether a run's target keeps a recurrent state, alone or beside attention, as far as it is recorded."""
    return manifest is not None and manifest.target.facts.get("memory") in {"recurrent", "hybrid"}


def find_breakeven(
    arms: Sequence[Measured], references: Sequence[Reference] = (), *, recurrent: bool = False
) -> BreakEven | None:
    """Return the curve and what each depth needs; `None` for a run without synthetic acceptance.

    `recurrent`: whether the target keeps a recurrent state.
    """
    depths = sorted({arm.depth for arm in arms if arm.synthetic})
    if not depths:
        return None
    points = [point for point in map(_point, arms) if point is not None]
    by_tokens = sorted(points, key=lambda point: point.tokens)
    curves = {depth: [point for point in by_tokens if point.belongs_to(depth)] for depth in depths}
    drafts = [_on_curve(point, curves.get(point.depth, [])) for point in points if point.kind == "draft"]
    placed = [_place(reference, curves.get(reference.depth, [])) for reference in references]
    real = {arm.depth: arm for arm in reversed(arms) if not arm.synthetic}
    notes = [
        Fact(code="not reported", values={"name": arm.name})
        for arm in arms
        if arm.tokens is None or arm.speedup is None
    ]
    notes += [left_out for left_out in placed if isinstance(left_out, Fact)]
    return BreakEven(
        points=[*chain(*curves.values()), *drafts, *(point for point in placed if isinstance(point, Point))],
        needs=[_need(depth, curve, real.get(depth)) for depth, curve in curves.items()],
        notes=[*notes, Fact(code="pessimistic")] if recurrent else notes,
    )


def speed_at(curve: Sequence[Point], tokens: float) -> float | None:
    """Return the curve's speed-up where a round yields so many tokens; `None` beyond its points."""
    for lower, upper in pairwise(curve):
        if lower.tokens <= tokens <= upper.tokens:
            share = (tokens - lower.tokens) / (upper.tokens - lower.tokens) if upper.tokens > lower.tokens else 0.0
            return lower.speedup + share * (upper.speedup - lower.speedup)
    return None


def _point(arm: Measured) -> Point | None:
    """Return where an arm lies; `None` where its rounds or its speed are not reported."""
    if arm.tokens is None or arm.speedup is None:
        return None
    return Point(
        name=arm.name,
        kind="synthetic" if arm.synthetic else "draft",
        depth=arm.depth,
        tokens=arm.tokens,
        alpha=_alpha(arm.tokens, arm.depth),
        speedup=arm.speedup,
        interval=arm.interval,
    )


def _alpha(tokens: float, depth: int) -> float:
    return alpha_for(min(tokens, depth + 1.0), depth) or 0.0


def _on_curve(draft: Point, curve: Sequence[Point]) -> Point:
    """Return a real draft with the curve at its tokens, and whether that holds."""
    curve_speed, ends = speed_at(curve, draft.tokens), draft.interval
    if curve_speed is None or ends is None:
        return draft.model_copy(update={"curve": curve_speed})
    holds = ends.low <= curve_speed <= ends.high
    return draft.model_copy(update={"curve": curve_speed, "curve_holds": holds})


def _place(reference: Reference, curve: Sequence[Point]) -> Point | Fact:
    """Return where a reference lies on the curve of its depth, else why it has no place there."""
    depth, tokens = reference.depth, reference.acceptance_length
    name = f"{reference.model}, {reference.mode}, depth {depth}"
    if not curve:
        return Fact(code="depth not measured", values={"name": name})
    speedup = speed_at(curve, tokens)
    if speedup is None:
        return Fact(code="outside", values={"name": name, "tokens": tokens})
    alpha = _alpha(tokens, depth)
    return Point(name=name, kind="reference", depth=depth, tokens=tokens, alpha=alpha, speedup=speedup)


def _need(depth: int, curve: Sequence[Point], real: Measured | None) -> Need:
    """Return what a depth needs; `real`: a real draft of it."""
    need = Need(depth=depth)
    if real is not None:
        says = "not known" if not real.cost_known else "never pays" if real.needs_alpha is None else "crosses"
        measured = None if real.tokens is None else _alpha(real.tokens, depth)
        need = need.model_copy(update={"by_model": real.needs_alpha, "model_says": says, "measured": measured})
    if len(curve) < 2:
        return need
    outcome, ranged = _outcome(curve), [(point.tokens, point.interval) for point in curve if point.interval]
    tokens = _crossing([(point.tokens, point.speedup) for point in curve])
    highs = _crossing([(crossing_tokens, interval.high) for crossing_tokens, interval in ranged])
    lows = _crossing([(crossing_tokens, interval.low) for crossing_tokens, interval in ranged])
    crossing: dict[str, float] = {}
    if outcome == "crosses" and tokens is not None and highs is not None and lows is not None:
        alpha, low, high = (_alpha(crossing_tokens, depth) for crossing_tokens in (tokens, highs, lows))
        crossing = {"tokens": tokens, "alpha": alpha, "alpha_low": low, "alpha_high": high}
    return need.model_copy(update={**crossing, "outcome": outcome})


def _outcome(curve: Sequence[Point]) -> Outcome:
    """Return what the intervals of the points allow to say; without intervals, as of a single block, nothing."""
    faster = [point.interval is not None and point.interval.low > 1 for point in curve]
    slower = [point.interval is not None and point.interval.high < 1 for point in curve]
    if all(faster):
        return "always pays"
    if all(slower):
        return "never pays"
    return "crosses" if True in slower and True in faster[slower.index(True) :] else "undecided"


def _crossing(curve: Sequence[tuple[float, float]]) -> float | None:
    """Return where the speed-up of a curve of (tokens per round, speed-up) reaches 1, in tokens per round."""
    for (lower_tokens, lower), (upper_tokens, upper) in pairwise(curve):
        if lower < 1 <= upper:
            return lower_tokens + (1 - lower) / (upper - lower) * (upper_tokens - lower_tokens)
    return None


def curve_line(curve: Sequence[Point], depth: int) -> list[tuple[float, float]]:
    """Return (α, speed-up) along the curve of a depth, for drawing."""
    low, high = curve[0].alpha, curve[-1].alpha
    alphas = [low + (high - low) * step / 60 for step in range(61)]
    points = [(alpha, speed_at(curve, expected_tokens(alpha, depth))) for alpha in alphas]
    inner = [(alpha, speed) for alpha, speed in points if speed is not None]
    return [(low, curve[0].speedup), *inner, (high, curve[-1].speedup)]
