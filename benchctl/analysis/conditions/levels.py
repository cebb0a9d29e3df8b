"""The levels of a sweep, chosen by what they vary: closed and open loops, arms by temperature."""

from __future__ import annotations

from dataclasses import dataclass

from benchctl.analysis.conditions.results import Level
from benchctl.analysis.results import ALL_TASKS, Acceptance, Analysis, SpeedUp


def closed_levels(analysis: Analysis) -> list[Level]:
    """The levels of a closed loop, of a run with several requests at once."""
    if analysis.sweep is None or "concurrency" not in analysis.sweep.dimensions:
        return []
    return [row for row in analysis.sweep.levels if row.rate is None]


def open_levels(analysis: Analysis) -> list[Level]:
    """The levels of an open loop."""
    return [row for row in analysis.sweep.levels if row.rate is not None] if analysis.sweep else []


@dataclass(frozen=True)
class TemperatureRow:
    """An arm at one temperature."""

    level: Level
    speedup: SpeedUp
    acceptance: Acceptance


def temperature_rows(analysis: Analysis) -> list[TemperatureRow]:
    """Every arm but the baselines at every temperature; empty where temperature does not vary."""
    if analysis.sweep is None or "temperature" not in analysis.sweep.dimensions:
        return []
    speedups = {row.arm: row for row in analysis.speedups if row.task == ALL_TASKS}
    acceptance = {row.arm: row for row in analysis.acceptance if row.task == ALL_TASKS}
    rows = [
        TemperatureRow(level, speedups[level.arm], acceptance[level.arm])
        for level in analysis.sweep.levels
        if level.arm in speedups
    ]
    return sorted(rows, key=lambda row: analysis.settings.index(row.level.of))
