"""A run over axes as rows: every arm with its labels, and what no other arm beats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchctl.analysis.advice import inactive_arms
from benchctl.analysis.conditions.results import Level
from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis, SpeedUp, Verdict

CONTEXT, TEMPERATURE = "context_length", "temperature"
CONDITIONS = (CONTEXT, TEMPERATURE, "concurrency", "rate")
"""What varies beside the recipe's axes."""


@dataclass(frozen=True)
class AxisRow:
    """An arm, or a group's baseline, with its label on every axis."""

    level: Level
    labels: dict[str, str]
    """By axis; of an arm that takes no draft model without those of the draft."""
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
        rest = [f"{name} {label}" if name in CONDITIONS else label for name, label in labels.items()]
        return ", ".join([self.level.of, *rest])


def axis_rows(analysis: Analysis) -> list[AxisRow]:
    """Return a row for every arm of a run over axes, context lengths or temperatures; empty for every other run."""
    sweep = analysis.sweep
    if sweep is None or not (sweep.over_axes or {CONTEXT, TEMPERATURE} & {*sweep.dimensions}):
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
    found: dict[str, set[str]] = {}
    for row in levels:
        for axis, label in labels_of(row).items():
            found.setdefault(axis, set()).add(label)
    return [axis for axis, labels in found.items() if len(labels) > 1]


def pareto_front(rows: Sequence[AxisRow], cost: Callable[[AxisRow], float | None]) -> list[AxisRow]:
    """Return the rows that no other beats both in tokens per second and in `cost`, the cheapest first."""
    known = [(used, row.level.throughput, row) for row in rows
             if (used := cost(row)) is not None and row.level.throughput is not None]  # fmt: skip
    best, found = 0.0, []
    for _, throughput, row in sorted(known, key=lambda point: (point[0], -point[1])):
        if throughput > best:
            best = throughput
            found.append(row)
    return found


def condition_sentences(analysis: Analysis) -> list[str]:
    """Return for every arm how its speed-up changes with prompt length and temperature, and where it crosses 1."""
    sentences = []
    for axis, unit in ((CONTEXT, "{} tokens"), (TEMPERATURE, "temperature {}")):
        curves: dict[str, list[AxisRow]] = {}
        for row in axis_rows(analysis):
            compared = axis in row.labels and not row.level.is_baseline and row.ratio is not None
            if compared and not row.level.overlapping:  # else whole answers decide, not the decode rate
                curves.setdefault(row.other_labels(axis), []).append(row)
        for name, own in curves.items():
            points = sorted(own, key=lambda row: float(row.labels[axis]))
            places = [unit.format(row.labels[axis]) for row in points]
            values = ", ".join(f"{row.ratio:.2f}× at {place}" for row, place in zip(points, places, strict=True))
            sentences.append(f"{name}: {values}; {_crossing(points, places)}.")
    return sentences


def _crossing(points: Sequence[AxisRow], places: Sequence[str]) -> str:
    """Between which places a curve crosses 1, as far as the verdicts at both show it."""
    speeds = [row.verdict.speed if row.verdict else "unknown" for row in points]
    for number, (before, after) in enumerate(pairwise(speeds)):
        if {before, after} == {"faster", "slower"}:
            return f"it crosses 1 between {places[number]} and {places[number + 1]}"
    if set(speeds) <= {"faster"} or set(speeds) <= {"slower"}:
        return f"it is {speeds[0]} throughout"
    return "where it crosses 1 is undetermined"
