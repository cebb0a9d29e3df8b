"""What a report says of a run that varies concurrency, rate or temperature: sentences, and rows for its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchctl.reports import numbers

if TYPE_CHECKING:
    from benchctl.analysis.conditions.results import Crossing, Level, Quantiles
    from benchctl.analysis.results import Acceptance, Analysis, SpeedUp

_OTHERWISE = {
    "always helps": "helps at every concurrency with {}",
    "never helps": "costs at every concurrency with {}",
    "otherwise": "helps at some and costs at others, without one crossing, with {}",
    "cannot be said": "up to where it helps cannot be said of {}",
}


def lead(analysis: Analysis) -> str | None:
    """What to say first of a sweep of concurrency; `None` of every other run."""
    found = [one for one in curves(analysis) if len(one.helps_at + one.loses_at + one.undecided_at) > 1]
    if len(found) < 2:
        return found[0].sentence if found else None
    several = len({one.temperature for one in found}) > 1
    names = {id(one): f"{one.arm} at temperature {one.temperature:g}" if several else one.arm for one in found}
    if all(one.outcome == "cannot be said" for one in found):
        return f"Up to where speculation helps total throughput cannot be said of {_listed(list(names.values()))}."
    crosses = [
        f"{f'about {one.at:.1f}' if one.at else f'between {max(one.helps_at)} and {min(one.loses_at)}'}"
        f" with {names[id(one)]}"
        for one in found
        if one.outcome == "crosses"
    ]
    told = [f"stops helping at a concurrency of {_listed(crosses)}"] if crosses else []
    for outcome, words in _OTHERWISE.items():
        arms = [names[id(one)] for one in found if one.outcome == outcome]
        told += [words.format(_listed(arms))] if arms else []
    return f"Total throughput: speculation {'; '.join(told)}."


def curves(analysis: Analysis) -> list[Crossing]:
    """The curves over concurrency that were looked at for a crossing."""
    return analysis.sweep.crossings if analysis.sweep else []


def findings(analysis: Analysis) -> list[str]:
    """What else is to be said at the start, a sentence each; empty where nothing was swept."""
    if analysis.sweep is None:
        return []
    found = [one.sentence for one in curves(analysis) if one.sentence != lead(analysis)]
    if "rate" in analysis.sweep.dimensions:
        found += _rates(analysis.sweep.levels)
    if "temperature" in analysis.sweep.dimensions:
        found += _temperatures(analysis)
    return found


def _rates(levels: list[Level]) -> Iterator[str]:
    """Which rates each arm keeps up with."""
    for of in dict.fromkeys(row.of for row in levels):
        rows = [row for row in levels if row.of == of and row.arrival is not None]
        kept, lost, untold = (
            list(dict.fromkeys(f"{row.rate:g}" for row in rows if row.arrival and row.arrival.kept_up is state))
            for state in (True, False, None)
        )
        parts = [f"keeps up with {_listed(kept)}"] if kept else []
        parts += [f"does not keep up with {_listed(lost)}"] if lost else []
        parts += [f"too few requests to tell at {_listed(untold)}"] if untold else []
        if parts:
            yield f"{of}, requests a second: {'; '.join(parts)}."


def _temperatures(analysis: Analysis) -> Iterator[str]:
    """Speed-up and acceptance of each arm by temperature."""
    for of in dict.fromkeys(row.level.of for row in temperature_rows(analysis)):
        rows = [row for row in temperature_rows(analysis) if row.level.of == of]
        if len({row.level.temperature for row in rows}) < len(rows):
            continue  # concurrency or rate vary, too: the table tells
        told = [
            f"{numbers.ratio(row.speedup.pooled)} at temperature {row.level.temperature:g}"
            + (f" (95 % interval {numbers.interval(row.speedup.interval)})" if row.speedup.interval else "")
            + (f" with {numbers.percent(row.acceptance.rate)} accepted" if row.acceptance.rate is not None else "")
            for row in rows
        ]
        yield f"{of}: {', '.join(told)}."


class TemperatureRow:
    """An arm at one temperature."""

    def __init__(self, level: Level, speedup: SpeedUp, acceptance: Acceptance) -> None:
        self.level, self.speedup, self.acceptance = level, speedup, acceptance


def temperature_rows(analysis: Analysis) -> list[TemperatureRow]:
    """Every arm but the baselines at every temperature; empty where temperature does not vary."""
    from benchctl.analysis.results import ALL_TASKS

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


def closed_rows(analysis: Analysis) -> list[Level]:
    """The levels of a closed loop, of a run with several requests at once."""
    if analysis.sweep is None or "concurrency" not in analysis.sweep.dimensions:
        return []
    return [row for row in analysis.sweep.levels if row.rate is None]


def open_rows(analysis: Analysis) -> list[Level]:
    """The levels of an open loop."""
    return [row for row in analysis.sweep.levels if row.rate is not None] if analysis.sweep else []


def level_cells(row: Level) -> dict[str, object]:
    """A level as one flat row, numbers in full precision."""
    flat: dict[str, object] = row.model_dump(
        exclude={"ttft", "e2e", "tpot", "arrival", "latency_interval", "throughput_interval"}
    )
    for name in ("ttft", "e2e", "tpot"):
        flat |= {f"{name}_{key}_s": value for key, value in getattr(row, name).model_dump().items()}
    for name in ("latency_interval", "throughput_interval"):
        flat |= {f"{name}_{end}": getattr(getattr(row, name), end, None) for end in ("low", "high")}
    names = ("sent_rate", "finished_rate", "late_p95_s", "first_third_s", "last_third_s", "kept_up")
    return flat | {name: getattr(row.arrival, name, None) for name in names}


def spread(value: Quantiles) -> str:
    """Median / p95 / p99 of a latency; what too few requests tell is a dash."""
    return " / ".join(numbers.seconds(one) for one in (value.median, value.p95, value.p99))


def token_time(value: Quantiles) -> str:
    """Median / p95 / p99 of the time of a token, in milliseconds with one decimal."""
    told = (value.median, value.p95, value.p99)
    return " / ".join(numbers.ABSENT if one is None else f"{1000 * one:.1f}" for one in told) + " ms"


def short(value: float | None) -> str:
    """A rate or a temperature as short as it can be (`0.8`, `2`)."""
    return numbers.ABSENT if value is None else f"{value:g}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
