"""The levels of a sweep, where its curves cross, and the rows of a run over axes.

Speculation fills idle compute, of which there is less with more requests in flight. The crossing is the concurrency at
which `throughput_speedup` falls through 1, interpolated between neighbouring measured levels: logarithm of the ratio
against logarithm of the concurrency. It is given only between a level whose interval lies above 1 and a later level
whose interval lies below, and never beyond the measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING, Any, NamedTuple

from benchctl.analysis.advice import inactive_arms
from benchctl.analysis.cells import axes_of, states
from benchctl.analysis.conditions.front import equal_throughput
from benchctl.analysis.conditions.load import find_levels
from benchctl.analysis.conditions.results import Crossing, CrossingOutcome, Level, LevelDoubt, NotJudged, Sweep
from benchctl.analysis.conditions.split import ConditionRun, dimensions
from benchctl.analysis.decision_results import Verdict
from benchctl.analysis.frame import ALL_TASKS
from benchctl.analysis.record_checks import Observation, observation
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_model import join_rounds
from benchctl.analysis.speed_results import Acceptance, SpeedUp
from benchctl.analysis.warnings import cautions, in_order

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.manifest import Manifest


FILLED = 0.75
"""So much of a concurrency must have been in flight on average."""
LATE_S = 0.005
"""A client that is later than this is reported, …"""
LATE_SHARE = 0.01
"""… if it is also later than this share of the median latency."""
OF_THE_MACHINE = frozenset({"swapping", "throttling", "high-load", "clock-jump"})
"""Warnings about the cells of all conditions together."""
EXPECTED_WHEN_OVERLAPPING = frozenset({"baseline-not-reproducible", "drift"})
"""Warnings that mean nothing where requests share the engine: neither their answers nor their pace repeat."""


def find_sweep(
    manifest: Manifest, groups: Sequence[ConditionRun], frames: Sequence[Frame], verdicts: Sequence[Verdict]
) -> Sweep:
    """Return everything that depends on the condition, of groups with their frames and the verdicts on all arms."""
    compared = sum(len(frame.arms) - 1 for frame in frames)
    levels = [
        level.model_copy(update={"axes": axes_of(manifest, level.arm)})
        for group, frame in zip(groups, frames, strict=True)
        if group.key is not None
        for level in find_levels(frame, group, group.key, compared)
    ]
    refused = {arm for frame in frames if "failed" in states(frame, frame.arms[frame.baseline]) for arm in frame.arms}
    concluded = {verdict.arm: verdict for verdict in verdicts}
    doubts = {row.arm: _doubt(row, concluded.get(row.arm), refused=row.arm in refused) for row in levels}
    return Sweep(
        dimensions=dimensions(manifest),
        levels=levels,
        crossings=_crossings(levels, doubts),
        equal_throughput=list(equal_throughput(levels)),
        unjudged=where_not_judged(groups),
    )


def where_not_judged(groups: Sequence[ConditionRun]) -> NotJudged | None:
    """Return under which conditions losslessness is not assessed; `None` where it is everywhere."""
    overlapping = [group.key for group in groups if group.overlapping and group.key]
    sampled = [group.key for group in groups if group.sampled and group.key]
    if not overlapping and not sampled:
        return None
    return NotJudged(
        concurrencies=sorted({key.concurrency for key in overlapping if key.rate is None}),
        rates=sorted({key.rate for key in overlapping if key.rate is not None}),
        temperatures=sorted({key.temperature for key in sampled}),
        some_judged=any(group.judged for group in groups),
    )


def _crossings(levels: Sequence[Level], doubts: dict[str, LevelDoubt | None]) -> list[Crossing]:
    """Return those of every arm and temperature whose closed loop was measured with several requests at once."""
    curves: dict[tuple[str, float, str], list[Point]] = {}
    for row in levels:
        if row.rate is None and not row.is_baseline:
            point = Point(row.concurrency, row.throughput_speedup, row.throughput_interval, doubts[row.arm])
            length = [] if row.context_length is None else [f"{row.context_length} tokens"]
            length += [] if row.max_tokens is None else [f"answers of {row.max_tokens}"]
            labels = ", ".join([*row.axes.values(), *length])
            curves.setdefault((row.of, row.temperature, labels), []).append(point)
    return [
        find_crossing(f"{arm} ({labels})" if labels else arm, temperature, points)
        for (arm, temperature, labels), points in curves.items()
        if any(point.concurrency > 1 for point in points)
    ]


def _doubt(row: Level, verdict: Verdict | None, *, refused: bool) -> LevelDoubt | None:
    """Return why a level's throughput does not show the effect of speculation."""
    if row.throughput_speedup is None:
        return "not compared"
    if refused:
        return "baseline refused"
    if verdict is not None and verdict.attestation == "failed":
        return "refused"
    if verdict is not None and verdict.attestation in ("idle", "off"):
        return "not drafted"
    return None


def check_levels(levels: Sequence[Level]) -> Iterator[Observation]:
    """Check every arm under every condition. A batch, all of whose requests are sent at once, empties by itself."""
    for row in levels:
        slots = row.concurrency if row.rate is None else 1
        if 1 < slots < row.prompts and row.in_flight is not None and row.in_flight < FILLED * slots:
            counts = {"concurrency": row.concurrency, "in_flight": row.in_flight}
            yield observation("not-filled", row.arm, "in flight", **counts)
        arrival = row.arrival
        if arrival is None:
            continue
        if arrival.kept_up is False:
            values: dict[str, Any] = {"rate": row.rate, "given_up": arrival.given_up, "planned": row.planned}
            values |= {"growth": arrival.growth, "growth_low": arrival.growth_low}
            yield observation("rate-not-kept", row.arm, "given up" if arrival.given_up else "latency grew", **values)
        late, usual = arrival.late_p95_s, row.e2e.median
        if late is not None and late > LATE_S and (usual is None or late > LATE_SHARE * usual):
            code = "one in twenty" if row.requests >= 40 else "latest"
            yield observation("late-client", row.arm, code, milliseconds=1000 * late)


def join(parts: Sequence[Analysis], sweep: Sweep, disturbances: Iterable[Observation]) -> Analysis:
    """Return all conditions' rows, in the order of `sweep.levels`; `disturbances`: of the machine in the whole run."""
    rows = {
        name: [row for part in parts for row in getattr(part, name)]
        for name in (
            *("arms", "failed_cells", "verdicts", "speedups", "second_cells", "acceptance", "throughput"),
            *("losslessness", "consistency", "costs", "answer_lengths", "resources"),
        )
    }
    overlapping = {row.arm for row in sweep.levels if row.overlapping}
    warnings = [
        warning
        for part in parts
        for warning in part.warnings
        if warning.id not in OF_THE_MACHINE
        and (warning.id not in EXPECTED_WHEN_OVERLAPPING or part.baseline not in overlapping)
    ]
    warnings += cautions([*disturbances, *check_levels(sweep.levels)])
    distinct = {warning.model_dump_json(): warning for warning in warnings}
    baseline = next(row.of for row in sweep.levels if row.is_baseline)
    return parts[0].model_copy(
        update={
            **rows,
            "rounds": join_rounds([part.rounds for part in parts]),
            "baseline": baseline,
            "records": sum(part.records for part in parts),
            "warnings": in_order(distinct.values()),
            "sweep": sweep,
        }
    )


class Point(NamedTuple):
    """An arm at a level."""

    concurrency: int
    ratio: float | None
    """`Level.throughput_speedup`."""
    interval: Interval | None
    doubt: LevelDoubt | None = None

    @property
    def sign(self) -> int:
        """1 where speculation helps beyond noise, -1 where it loses beyond noise, else 0."""
        if self.doubt or self.interval is None:
            return 0
        return int(self.interval.low > 1) - int(self.interval.high < 1)


def find_crossing(arm: str, temperature: float, points: Sequence[Point]) -> Crossing:
    """Conclude from an arm's levels; `arm` is the recipe's."""
    points = sorted(points, key=lambda point: point.concurrency)
    helps, loses, undecided = ([point.concurrency for point in points if point.sign == sign] for sign in (1, -1, 0))
    concurrency, ends = None, None
    outcome: CrossingOutcome = "cannot be said"
    if helps and loses:
        outcome = "crosses" if max(helps) < min(loses) else "otherwise"
        if outcome == "crosses":
            concurrency = _where(points, max(helps), min(loses))
            ends = _ends(points)
    elif (helps or loses) and not undecided and len(points) > 1:
        outcome = "always helps" if helps else "never helps"
    doubts: dict[LevelDoubt, list[int]] = {}
    for point in points:
        if not point.sign:
            doubt = point.doubt or ("contains 1" if point.interval else "no interval")
            doubts.setdefault(doubt, []).append(point.concurrency)
    return Crossing(
        arm=arm,
        temperature=temperature,
        outcome=outcome,
        at=concurrency,
        at_interval=ends if concurrency is not None else None,
        helps_at=helps,
        loses_at=loses,
        undecided_at=undecided,
        doubts=doubts,
    )


def _ends(points: Sequence[Point]) -> Interval | None:
    """Return where the low and where the high ends of the intervals pass 1: the crossing lies between, where they hold.

    `None` where either passes it several times.
    """
    sound = [(point, point.interval) for point in points if point.interval is not None and not point.doubt]
    low = _passes([(point.concurrency, interval.low) for point, interval in sound])
    high = _passes([(point.concurrency, interval.high) for point, interval in sound])
    if low is None or high is None:
        return None
    return Interval(low=low, high=high, method="where the ends of the levels' intervals pass 1")


def _where(points: Sequence[Point], low: int, high: int) -> float | None:
    """Interpolate between the neighbouring levels where the values pass 1; `None` where they do so several times."""
    sound = [p for p in points if low <= p.concurrency <= high and not p.doubt]
    return _passes([(p.concurrency, p.ratio) for p in sound if p.ratio])


def _passes(values: Sequence[tuple[int, float]]) -> float | None:
    """Return where values by concurrency pass 1, on a line of logarithms; `None` where they do not do so once."""
    logs = [(log(concurrency), log(max(value, 1e-9))) for concurrency, value in values]
    passes = [(a, b) for a, b in pairwise(logs) if (a[1] > 0) != (b[1] > 0)]
    if len(passes) != 1:
        return None
    (x, y), (next_x, next_y) = passes[0]
    return exp(x + (next_x - x) * y / (y - next_y))


CONTEXT, ANSWER, TEMPERATURE = "context_length", "max_tokens", "temperature"
_CURVES = (CONTEXT, ANSWER, TEMPERATURE)
CONDITIONS = (*_CURVES, "concurrency", "rate")
"""The conditions that vary beside the recipe's axes."""


@dataclass(frozen=True)
class AxisRow:
    """An arm, or a group's baseline, with its label on every axis."""

    level: Level
    labels: dict[str, str]
    """The label on each axis. An arm without a draft model has none on the axes of the draft."""
    speedup: SpeedUp | None
    """`None` for a baseline."""
    acceptance: Acceptance | None
    verdict: Verdict | None
    inactive: bool
    """Whether it never drafted: differences in its times are noise."""
    joules_per_token: float | None = None
    """`Resources.joules_per_token`."""

    @property
    def ratio(self) -> float | None:
        """Decode speed over the baseline of its group: 1 for that itself; `None` of an arm that never drafted."""
        if self.inactive:
            return None
        return 1.0 if self.level.is_baseline else self.speedup.pooled if self.speedup else None

    def other_labels(self, axis: str) -> str:
        """Return its recipe's arm and labels but that of `axis`: what a line over the axis has in common."""
        labels = {name: label for name, label in self.labels.items() if name != axis}
        named = [f"{name} {label}" if name in CONDITIONS else label for name, label in labels.items()]
        return ", ".join([self.level.of, *named])


def axis_rows(analysis: Analysis) -> list[AxisRow]:
    """Return a row for every arm of a run over axes, lengths or temperatures; empty for every other run."""
    sweep = analysis.sweep
    if sweep is None or not (sweep.over_axes or {*_CURVES} & {*sweep.dimensions}):
        return []
    several = varied_axes(sweep.levels)
    speedups = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    acceptance = {row.arm: row for row in analysis.acceptance if row.task == ALL_TASKS}
    verdicts = {row.arm: row for row in analysis.verdicts}
    inactive = set(inactive_arms(analysis))
    energy = {row.arm: row.joules_per_token for row in analysis.resources}
    return [
        AxisRow(
            level=row,
            labels={axis: label for axis, label in labels_of(row).items() if axis in several},
            speedup=speedups.get(row.arm),
            acceptance=acceptance.get(row.arm),
            verdict=verdicts.get(row.arm),
            inactive=row.arm in inactive,
            joules_per_token=energy.get(row.arm),
        )
        for row in sweep.levels
    ]


def labels_of(row: Level) -> dict[str, str]:
    """Return the labels of an arm, its conditions among them."""
    values = {name: getattr(row, name) for name in CONDITIONS}
    conditions = {name: str(value).removesuffix(".0") for name, value in values.items() if value is not None}
    return {**row.axes, **conditions}


def varied_axes(levels: Iterable[Level]) -> list[str]:
    """Return the axes on which arms have different labels, in the recipe's order."""
    by_axis: dict[str, set[str]] = {}
    for row in levels:
        for axis, label in labels_of(row).items():
            by_axis.setdefault(axis, set()).add(label)
    return [axis for axis, labels in by_axis.items() if len(labels) > 1]


def pareto_front(rows: Sequence[AxisRow], cost: Callable[[AxisRow], float | None]) -> list[AxisRow]:
    """Return the rows that no other beats both in tokens per second and in `cost`, the cheapest first."""
    measured = [(used, row.level.throughput, row) for row in rows
             if (used := cost(row)) is not None and row.level.throughput is not None]  # fmt: skip
    best, front = 0.0, []
    for _, throughput, row in sorted(measured, key=lambda point: (point[0], -point[1])):
        if throughput > best:
            best = throughput
            front.append(row)
    return front


@dataclass(frozen=True)
class ConditionCurve:
    """How the speed-up of an arm changes with the length of prompts or answers, or with temperature."""

    arm: str
    """With its labels on the other axes."""
    axis: str
    labels: list[str]
    ratios: list[float]
    crosses_after: int | None
    """Index of the label after which it crosses 1, as far as the verdicts at both sides show it."""
    throughout: str | None
    """`faster` or `slower`, where it is so at every label."""


def find_curves(analysis: Analysis) -> Iterator[ConditionCurve]:
    """Yield the curve of every arm over the length of prompts, that of answers, then over temperature."""
    rows = axis_rows(analysis)
    for axis in _CURVES:
        by_arm: dict[str, list[AxisRow]] = {}
        for row in rows:
            compared = axis in row.labels and not row.level.is_baseline and row.ratio is not None
            if compared and not row.level.overlapping:  # else whole answers decide, not the decode rate
                by_arm.setdefault(row.other_labels(axis), []).append(row)
        for arm, of_arm in by_arm.items():
            points = sorted(of_arm, key=lambda row: float(row.labels[axis]))
            speeds = [row.verdict.speed if row.verdict else "unknown" for row in points]
            crossings = (n for n, pair in enumerate(pairwise(speeds)) if {*pair} == {"faster", "slower"})
            alike = set(speeds) <= {"faster"} or set(speeds) <= {"slower"}
            yield ConditionCurve(
                arm=arm,
                axis=axis,
                labels=[row.labels[axis] for row in points],
                ratios=[row.ratio or 0.0 for row in points],
                crosses_after=next(crossings, None),
                throughout=speeds[0] if alike else None,
            )
