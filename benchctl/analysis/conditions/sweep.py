"""What depends on the condition: every level of a sweep, and where the curves cross.

Speculation fills idle compute, of which there is less with more requests in flight. The crossing is the concurrency at
which `throughput_speedup` falls through 1, interpolated between neighbouring measured levels: logarithm of the ratio
against logarithm of the concurrency. It is given only between a level whose interval lies above 1 and a later level
whose interval lies below, and never beyond the measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import exp, log
from typing import TYPE_CHECKING, NamedTuple

from benchctl.analysis.cells import axes_of, states
from benchctl.analysis.conditions.load import find_levels
from benchctl.analysis.conditions.results import Crossing, CrossingOutcome, Level, Sweep
from benchctl.analysis.conditions.split import Group, dimensions
from benchctl.analysis.record_checks import Observation
from benchctl.analysis.result import Interval
from benchctl.analysis.results import Analysis
from benchctl.analysis.round_model import join_rounds
from benchctl.analysis.warnings import cautions, in_order
from benchctl.text import listed

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.analysis.results import Verdict
    from benchctl.data.manifest import Manifest


WHY = "Concurrent outputs are not reproducible on these engines"
SAMPLED = "Single sampled answers cannot be compared (`benchctl verify-lossless sampling` compares distributions)"
MEASURE = "Measure the same arms one request at a time, too: `matrix: {concurrency: [1, …]}`, without `rate`."

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
    manifest: Manifest, groups: Sequence[Group], frames: Sequence[Frame], verdicts: Sequence[Verdict]
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
    doubts = {
        row.arm: _doubt(
            row, next((verdict for verdict in verdicts if verdict.arm == row.arm), None), refused=row.arm in refused
        )
        for row in levels
    }
    return Sweep(
        dimensions=dimensions(manifest),
        levels=levels,
        crossings=_crossings(levels, doubts),
        unjudged=where_not_judged(groups),
    )


def where_not_judged(groups: Sequence[Group]) -> str | None:
    """Return under which conditions losslessness is not assessed, and why; `None` where it is everywhere."""
    overlapping = [group.key for group in groups if group.overlapping and group.key]
    sampled = [group.key for group in groups if group.sampled and group.key]
    sentences = []
    if overlapping:
        several = sorted({key.concurrency for key in overlapping if key.rate is None})
        rates = sorted({key.rate for key in overlapping if key.rate is not None})
        places = [f"concurrency {', '.join(map(str, several))}"] if several else []
        places += [f"{', '.join(f'{rate:g}' for rate in rates)} requests per second"] if rates else []
        where = " or at ".join(places)
        sentences.append(
            f"Answers are compared one request at a time, not at {where}: {WHY[0].lower()}{WHY[1:]}. There an arm is "
            "assessed by its whole answers alone, scored on the target."
        )
        if not any(group.judged for group in groups):
            sentences.append(f"Nothing was measured one request at a time. {MEASURE}")
    if sampled:
        warm = ", ".join(f"{heat:g}" for heat in sorted({key.temperature for key in sampled}))
        start = "Nor is it assessed" if sentences else "Losslessness is not assessed"
        sentences.append(f"{start} at temperature {warm}. {SAMPLED}.")
    return " ".join(sentences) or None


def _crossings(levels: Sequence[Level], doubts: dict[str, str | None]) -> list[Crossing]:
    """Of every arm and temperature whose closed loop was measured with several requests at once."""
    curves: dict[tuple[str, float, str], list[Point]] = {}
    for row in levels:
        if row.rate is None and not row.is_baseline:
            point = Point(row.concurrency, row.throughput_speedup, row.throughput_simultaneous, doubts[row.arm])
            length = [] if row.context_length is None else [f"{row.context_length} tokens"]
            where = ", ".join([*row.axes.values(), *length])
            curves.setdefault((row.of, row.temperature, where), []).append(point)
    found = [
        find_crossing(f"{arm} ({where})" if where else arm, temperature, points)
        for (arm, temperature, where), points in curves.items()
        if any(point.concurrency > 1 for point in points)
    ]
    if len({crossing.temperature for crossing in found}) < 2:
        return found
    return [
        crossing.model_copy(update={"sentence": f"At temperature {crossing.temperature:g}, {crossing.sentence}"})
        for crossing in found
    ]


def _doubt(row: Level, verdict: Verdict | None, *, refused: bool) -> str | None:
    """Why a level's throughput does not show the effect of speculation."""
    if row.throughput_speedup is None:
        return "no cell can be compared with the baseline's"
    if refused:
        return "a cell of the baseline did not run what the recipe requests"
    if verdict is not None and verdict.attestation == "failed":
        return "a cell did not run what the recipe requests"
    if verdict is not None and verdict.attestation in ("idle", "off"):
        return "nothing was drafted"
    return None


def check_levels(levels: Sequence[Level]) -> Iterator[Observation]:
    """Check every arm under every condition."""
    for row in levels:
        slots = row.concurrency if row.rate is None else 1
        if slots > 1 and row.in_flight is not None and row.in_flight < FILLED * slots:
            sentence = f"At concurrency {row.concurrency} only {row.in_flight:.1f} requests were in flight on average."
            yield "not-filled", row.arm, sentence
        if row.arrival is None:
            continue
        if row.arrival.kept_up is False:
            yield "rate-not-kept", row.arm, not_kept_up(row)
        late, usual = row.arrival.late_p95_s, row.e2e.median
        if late is not None and late > LATE_S and (usual is None or late > LATE_SHARE * usual):
            which = "one request in twenty" if row.requests >= 40 else "the latest request"
            yield "late-client", row.arm, f"benchctl sent {which} {1000 * late:.0f} ms or more after its time."


def not_kept_up(row: Level) -> str:
    """Return how a server fell behind, in sentences."""
    arrival = row.arrival
    if arrival is not None and arrival.given_up:
        return (
            f"The server did not keep up with {row.rate:g} requests per second: {arrival.given_up} of {row.planned} "
            "timed out. Quantiles of latency count these as longer than all others."
        )
    if arrival is None or arrival.growth is None:
        return f"The server did not keep up with {row.rate:g} requests per second."
    return (
        f"The server did not keep up with {row.rate:g} requests per second: latency grew by {arrival.growth:.2f} s "
        f"(at least {arrival.growth_low:.2f} s) for each second of sending."
    )


def join(parts: Sequence[Analysis], sweep: Sweep, disturbances: Iterable[Observation]) -> Analysis:
    """Return all conditions' rows, in the order of `sweep.levels`; `disturbances`: of the machine in the whole run."""
    rows = {
        name: [row for part in parts for row in getattr(part, name)]
        for name in (
            *("arms", "failed_cells", "verdicts", "speedups", "second_cells", "acceptance", "throughput"),
            *("losslessness", "consistency", "costs", "resources"),
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
    distinct = {(warning.id, warning.where, warning.seen): warning for warning in warnings}
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
    doubt: str | None = None
    """Why this ratio does not show the effect of speculation, as the end of a sentence."""

    @property
    def sign(self) -> int:
        """1 where speculation helps beyond noise, -1 where it loses beyond noise, else 0."""
        if self.doubt or self.interval is None:
            return 0
        return int(self.interval.low > 1) - int(self.interval.high < 1)


def find_crossing(arm: str, temperature: float, points: Sequence[Point]) -> Crossing:
    """Conclude from an arm's levels; `arm` is the recipe's."""
    points = sorted(points, key=lambda point: point.concurrency)
    helps, loses, open_ = (
        [point.concurrency for point in points if point.sign == sign] for sign in (1, -1, 0)
    )  # fmt: skip
    at = None
    outcome: CrossingOutcome = "cannot be said"
    if helps and loses and max(helps) < min(loses):
        outcome, at = "crosses", _where(points, max(helps), min(loses))
    elif helps and loses:
        outcome = "otherwise"
    elif helps and not open_ and len(points) > 1:
        outcome = "always helps"
    elif loses and not open_ and len(points) > 1:
        outcome = "never helps"
    found = Crossing(
        arm=arm,
        temperature=temperature,
        outcome=outcome,
        at=at,
        helps_at=helps,
        loses_at=loses,
        undecided_at=open_,
        sentence="",
    )
    return found.model_copy(update={"sentence": _sentence(found, points)})


def _where(points: Sequence[Point], low: int, high: int) -> float | None:
    """Interpolate between the neighbouring levels where the values pass 1; `None` where they do so several times."""
    sound = [p for p in points if low <= p.concurrency <= high and not p.doubt]
    known = [(log(p.concurrency), log(p.ratio)) for p in sound if p.ratio]
    passes = [(a, b) for a, b in pairwise(known) if (a[1] > 0) != (b[1] > 0)]
    if len(passes) != 1:
        return None
    (x, y), (next_x, next_y) = passes[0]
    return exp(x + (next_x - x) * y / (y - next_y))


def _sentence(found: Crossing, points: Sequence[Point]) -> str:
    """Return at which levels an arm helps, costs, or neither is shown and why, and where the curves cross."""
    if len(points) == 1:
        return f"{found.arm}: only concurrency {points[0].concurrency} was measured, so no crossing can be found."
    parts = [f"helps at concurrency {listed(found.helps_at)}"] if found.helps_at else []
    parts += [f"costs throughput at {listed(found.loses_at)}"] if found.loses_at else []
    reasons: dict[str, list[int]] = {}
    for point in points:
        if not point.sign:
            unknown = "the interval contains 1" if point.interval else "too few whole blocks for an interval"
            reasons.setdefault(point.doubt or unknown, []).append(point.concurrency)
    parts += [f"is undetermined at {listed(levels)} ({why})" for why, levels in reasons.items()]
    crossing = f": the curves cross {found.where}" if found.outcome == "crosses" else ""
    return f"{found.arm}, total throughput: {'; '.join(parts)}{crossing}."
