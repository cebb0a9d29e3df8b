"""From a run to the cost of its rounds: units, each round's time split into parts, fits over depths and forecasts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchctl.analysis.lossy import is_synthetic
from benchctl.analysis.results import ALL_TASKS, Acceptance, Cost, SpeedUp
from benchctl.analysis.rounds.forecast import DepthCost, fit_rounds, forecast
from benchctl.analysis.rounds.parts import split_rounds, sum_rounds, unit_costs, width_curve
from benchctl.analysis.rounds.results import RoundModel, RoundSplit, UnitCost

if TYPE_CHECKING:
    from benchctl.analysis.counters import Counters
    from benchctl.analysis.frame import Frame
    from benchctl.data.traces import CostTraces

FULL_DRAFTS = 0.7
"""An arm that drafts so much of its depth a round, on average, drafts to it; others stop early."""


def find_rounds(
    frame: Frame,
    counters: Counters,
    speedups: Sequence[SpeedUp],
    acceptance: Sequence[Acceptance],
    costs: Sequence[Cost],
    traces: CostTraces | None,
) -> RoundModel:
    """Return the cost of rounds by the arms of one condition."""
    units: list[UnitCost] = []
    splits: list[RoundSplit] = []
    depths: list[DepthCost] = []
    for arm, name in enumerate(frame.arms):
        rounds = sum_rounds(frame, counters, arm) if arm != frame.baseline else None
        if rounds is None or not rounds.drafted:
            continue
        if not units:
            units.append(_target_step(frame, rounds.step_s))
        settings = _speculation(frame, name)
        drafts = _is_drafted(settings) or (rounds.phases is not None and "verify" in rounds.phases)
        units += unit_costs(frame, arm, rounds, traces, drafts=drafts)
        here = split_rounds(frame, counters, arm, traces, drafts=drafts)
        splits += here
        depth = settings.get("max")
        if is_synthetic(frame, arm):
            continue  # no draft's acceptance, so it must not enter a forecast of one
        if not isinstance(depth, int) or rounds.drafted / rounds.rounds < FULL_DRAFTS * depth:
            continue
        cost = next(candidate for candidate in costs if candidate.arm == name)
        overall = next(row for row in acceptance if row.arm == name and row.task == ALL_TASKS)
        speed = next(speedup for speedup in speedups if speedup.arm == name and speedup.task == ALL_TASKS)
        if cost.overhead is None or speed.pooled is None:
            continue
        shares = overall.position_unconditional
        measured = DepthCost(
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
        )
        depths.append(replace(measured, parts_cost=_cost_of_parts(here[0])))
    found = RoundModel(units=units + _widths(frame, traces, units), splits=splits)
    return _with_forecasts(found, depths, traces)


def _with_forecasts(found: RoundModel, depths: Sequence[DepthCost], traces: CostTraces | None) -> RoundModel:
    notes = list(traces.lacking) if traces else []
    fits, forecasts = [], []
    for setting in dict.fromkeys(arm.setting for arm in depths):
        arms = [arm for arm in depths if arm.setting == setting]
        if len({arm.depth for arm in arms}) < 2:
            continue
        fits.append(fit_rounds(setting, arms))
        for arm in arms:
            others = [other for other in arms if other.depth != arm.depth]
            made, why = forecast(arm, others)
            forecasts += [made] if made else []
            notes += [why] if why and len({other.depth for other in others}) > 1 else []
    return found.model_copy(update={"fits": fits, "forecasts": forecasts, "notes": notes})


def join_rounds(models: Sequence[RoundModel]) -> RoundModel:
    """Return the models of all conditions as one."""
    return RoundModel(
        units=[row for model in models for row in model.units],
        splits=[row for model in models for row in model.splits],
        fits=[row for model in models for row in model.fits],
        forecasts=[row for model in models for row in model.forecasts],
        notes=list(dict.fromkeys(note for model in models for note in model.notes)),
    )


def _target_step(frame: Frame, step_s: float) -> UnitCost:
    name = frame.arms[frame.baseline]
    cells = [frame.baseline, *([] if frame.again is None else [frame.again])]
    count = int(sum(frame.decoded[row] for cell in cells for row in frame.rows(cell) if frame.decoded[row] > 0))
    return UnitCost(
        arm=name, what="target step", width=1, seconds=step_s, steps=1.0, count=count, source="run"
    )  # as the first arm's prompts have it


def _widths(frame: Frame, traces: CostTraces | None, units: Sequence[UnitCost]) -> list[UnitCost]:
    """Return the width curve: the target's pass over so many tokens, all arms that were timed separately together."""
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


def _speculation(frame: Frame, name: str) -> dict[str, Any]:
    identities = {arm.name: arm for arm in frame.manifest.arms} if frame.manifest else {}
    return (identities[name].speculation if name in identities else None) or {}


def _is_drafted(settings: dict[str, Any]) -> bool:
    kinds = settings.get("type")
    return isinstance(kinds, str) and kinds.startswith("draft-")


def _setting(settings: dict[str, Any]) -> str:
    """Return a name for the settings that arms of different depths have in common."""
    rest = {key: value for key, value in settings.items() if key not in ("type", "max") and value is not None}
    kind = settings.get("type")
    name = kind if isinstance(kind, str) else json.dumps(kind)
    return f"{name} ({', '.join(f'{key} {value}' for key, value in sorted(rest.items()))})" if rest else name
