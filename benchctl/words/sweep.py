"""What a sweep shows, in sentences: where curves cross, which rates are kept up with, what was not compared."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from benchctl.analysis.conditions.sweep import ANSWER, CONTEXT, find_curves
from benchctl.text import listed
from benchctl.words import numbers

if TYPE_CHECKING:
    from benchctl.analysis.conditions.results import Crossing, Level, LevelDoubt, NotJudged, Sweep
    from benchctl.analysis.conditions.sweep import ConditionCurve
    from benchctl.analysis.results import Analysis

OVERLAPPING = "Concurrent outputs are not reproducible on these engines"
SAMPLED = "Single sampled answers cannot be compared (`benchctl verify-sampling` compares distributions)"

_DOUBTS: dict[LevelDoubt, str] = {
    "not compared": "no cell can be compared with the baseline's",
    "baseline refused": "a cell of the baseline did not run what the recipe requests",
    "refused": "a cell did not run what the recipe requests",
    "not drafted": "nothing was drafted",
    "contains 1": "the interval contains 1",
    "no interval": "too few whole blocks for an interval",
}
_WITHOUT_CROSSING = {
    "always helps": "helps at every concurrency with {}",
    "never helps": "costs throughput at every concurrency with {}",
    "otherwise": "helps at some concurrencies and costs at lower ones with {}",
}


def not_judged(conditions: NotJudged) -> str:
    """Return under which conditions losslessness is not assessed, and why."""
    sentences = []
    if conditions.concurrencies or conditions.rates:
        levels = [f"concurrency {', '.join(map(str, conditions.concurrencies))}"] if conditions.concurrencies else []
        rates = ", ".join(f"{rate:g}" for rate in conditions.rates)
        levels += [f"{rates} requests per second"] if rates else []
        sentences.append(
            f"Answers are compared one request at a time, not at {' or at '.join(levels)}: "
            f"{OVERLAPPING[0].lower()}{OVERLAPPING[1:]}. There an arm is assessed by its whole answers alone, scored "
            "on the target."
        )
        if not conditions.some_judged:
            sentences.append(
                "Nothing was measured one request at a time. Measure the same arms one request at a time, too: "
                "`matrix: {concurrency: [1, …]}`, without `rate`."
            )
    if conditions.temperatures:
        temperatures = ", ".join(f"{temperature:g}" for temperature in conditions.temperatures)
        start = "Nor is it assessed" if sentences else "Losslessness is not assessed"
        sentences.append(f"{start} at temperature {temperatures}. {SAMPLED}.")
    return " ".join(sentences)


def crossings(sweep: Sweep) -> list[str]:
    """Return a sentence for each crossing, in their order."""
    several = len({crossing.temperature for crossing in sweep.crossings}) > 1
    return [
        f"At temperature {crossing.temperature:g}, {_crossing(crossing)}" if several else _crossing(crossing)
        for crossing in sweep.crossings
    ]


def _crossing(crossing: Crossing) -> str:
    """Return at which levels an arm helps, costs, or neither is shown and why, and where the curves cross."""
    levels = [*crossing.helps_at, *crossing.loses_at, *crossing.undecided_at]
    if len(levels) == 1:
        return f"{crossing.arm}: only concurrency {levels[0]} was measured, so no crossing can be found."
    parts = [f"helps at concurrency {listed(crossing.helps_at)}"] if crossing.helps_at else []
    parts += [f"costs throughput at {listed(crossing.loses_at)}"] if crossing.loses_at else []
    parts += [f"is undetermined at {listed(levels)} ({_DOUBTS[doubt]})" for doubt, levels in crossing.doubts.items()]
    crosses = ""
    if crossing.outcome == "crosses":
        crosses = (
            f": the curves cross {_position(crossing)}; switch it off from {off_from(crossing)} requests in flight on"
        )
    return f"{crossing.arm}, total throughput: {'; '.join(parts)}{crosses}."


def _position(crossing: Crossing) -> str:
    """Return at which concurrency curves cross, or between which levels."""
    if crossing.at is not None:
        ends = crossing.at_interval
        return f"at about {crossing.at:.1f}" + (f" (95 %: {ends.low:.1f} to {ends.high:.1f})" if ends else "")
    return f"between {max(crossing.helps_at)} and {min(crossing.loses_at)}"


def off_from(crossing: Crossing) -> int:
    """Return the least number of requests in flight at which speculation no longer helps."""
    return ceil(crossing.at) if crossing.at is not None else min(crossing.loses_at)


def lead(sweep: Sweep) -> str | None:
    """Return the first sentence of a sweep of concurrency; `None` for every other run."""
    sentences = dict(zip(crossings(sweep), sweep.crossings, strict=True))
    curves = {
        sentence: curve
        for sentence, curve in sentences.items()
        if len(curve.helps_at + curve.loses_at + curve.undecided_at) > 1
    }
    if len(curves) < 2:
        return next(iter(curves), None)
    several = len({curve.temperature for curve in curves.values()}) > 1
    names = {
        sentence: f"{curve.arm} at temperature {curve.temperature:g}" if several else curve.arm
        for sentence, curve in curves.items()
    }
    crossing = [
        f"{_position(curve)} with {names[key]}, off from {off_from(curve)} on"
        for key, curve in curves.items()
        if curve.outcome == "crosses"
    ]
    parts = [f"stops helping as concurrency grows, {listed(crossing)}"] if crossing else []
    by_phrase: dict[str, list[str]] = {}
    for key, curve in curves.items():
        if curve.outcome != "crosses":
            by_phrase.setdefault(_without_crossing(curve), []).append(names[key])
    parts += [phrase.format(listed(of_phrase)) for phrase, of_phrase in by_phrase.items()]
    return f"Total throughput: speculation {'; '.join(parts)}."


def _without_crossing(curve: Crossing) -> str:
    if curve.outcome in _WITHOUT_CROSSING:
        return _WITHOUT_CROSSING[curve.outcome]
    if curve.helps_at:
        return f"helps at concurrency {listed(curve.helps_at)}, up to an undetermined limit, with {{}}"
    return "is not shown to help at any concurrency with {}"


def batches(analysis: Analysis) -> list[str]:
    """Return how fast each arm ends a batch, where no request waits for another: all prompts are in flight at once."""
    rows = [row for row in analysis.sweep.levels if row.rate is None] if analysis.sweep else []
    alone = {(row.work, row.concurrency): row for row in rows if row.is_baseline}
    return [
        f"{row.arm}: a batch, from the first request sent to the last answer's end, is served at "
        f"{numbers.ratio(row.makespan_speedup)} the speed without speculation "
        f"({f'95 %: {numbers.interval(row.makespan_interval)}' if row.makespan_interval else 'no interval'})"
        f"{_batch_seconds(row, alone.get((row.work, row.concurrency)), analysis.blocks)}."
        for row in rows
        if row.makespan_speedup is not None and row.concurrency > 1
        if row.concurrency >= row.prompts
    ]


def _batch_seconds(row: Level, alone: Level | None, blocks: int) -> str:
    """Return how long a batch takes with an arm and alone, the mean of blocks; empty where either lacks a block."""
    if (
        alone is None
        or not row.makespan_s
        or not alone.makespan_s
        or {len(row.by_block), len(alone.by_block)} != {blocks}
    ):
        return ""
    return f": {numbers.seconds(row.makespan_s / blocks)} in place of {numbers.seconds(alone.makespan_s / blocks)}"


def rates(levels: list[Level]) -> Iterator[str]:
    """Yield with which rates each arm keeps up."""
    for arm in dict.fromkeys(row.of for row in levels):
        rows = [row for row in levels if row.of == arm and row.arrival is not None]
        kept_up, fell_behind, unknown = (
            list(dict.fromkeys(f"{row.rate:g}" for row in rows if row.arrival and row.arrival.kept_up is state))
            for state in (True, False, None)
        )
        parts = [f"keeps up with {listed(kept_up)}"] if kept_up else []
        parts += [f"does not keep up with {listed(fell_behind)}"] if fell_behind else []
        parts += [f"undetermined (too few requests) at {listed(unknown)}"] if unknown else []
        if parts:
            yield f"{arm}, requests a second: {'; '.join(parts)}."


def curves(analysis: Analysis) -> list[str]:
    """Return for every arm how its speed-up changes with lengths and temperature, and where it crosses 1."""
    return [_curve(curve) for curve in find_curves(analysis)]


def _curve(curve: ConditionCurve) -> str:
    label_of = {CONTEXT: "{} tokens", ANSWER: "{} tokens of answer"}.get(curve.axis, "temperature {}")
    labels = [label_of.format(label) for label in curve.labels]
    values = ", ".join(f"{numbers.ratio(ratio)} at {label}" for ratio, label in zip(curve.ratios, labels, strict=True))
    if curve.crosses_after is not None:
        crosses = f"it crosses 1 between {labels[curve.crosses_after]} and {labels[curve.crosses_after + 1]}"
    elif curve.throughout is not None:
        crosses = f"it is {curve.throughout} throughout"
    else:
        crosses = "where it crosses 1 is undetermined"
    return f"{curve.arm}: {values}; {crosses}."
