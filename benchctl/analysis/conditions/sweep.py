"""What depends on the condition: every level of a sweep, and where the curves cross."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.cells import states
from benchctl.analysis.conditions.crossing import Point, find_crossing
from benchctl.analysis.conditions.load import find_levels
from benchctl.analysis.conditions.results import Crossing, Level, Sweep
from benchctl.analysis.conditions.split import Group, dimensions
from benchctl.analysis.conditions.unjudged import where_unjudged
from benchctl.analysis.record_checks import Observation
from benchctl.analysis.results import Analysis
from benchctl.analysis.rounds.model import join_rounds
from benchctl.analysis.warnings import cautions, in_order
from benchctl.recipes.speculation import takes_draft

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.analysis.results import Verdict
    from benchctl.data.manifest import Manifest


FILLED = 0.75
"""So much of a concurrency must have been in flight on average."""
LATE_S = 0.005
"""A client that is later than this is reported, …"""
LATE_SHARE = 0.01
"""… if it is also later than this share of the median latency."""
OF_THE_MACHINE = frozenset({"swapping", "throttling", "high-load", "clock-jump"})
"""Warnings about the cells of all conditions together."""
EXPECTED_WHEN_OVERLAPPING = frozenset({"baseline-not-reproducible", "drift", "outlier"})
"""Warnings of one request at a time that mean nothing where several share the engine: their answers do not repeat, and
how fast each is depends on its company, of which there is less towards the end."""


def find_sweep(
    manifest: Manifest, groups: Sequence[Group], frames: Sequence[Frame], verdicts: Sequence[Verdict]
) -> Sweep:
    """Return everything that depends on the condition, of groups with their frames and the verdicts on all arms."""
    compared = sum(len(frame.arms) - 1 for frame in frames)
    levels = [
        level
        for group, frame in zip(groups, frames, strict=True)
        if group.key is not None
        for level in find_levels(frame, group, group.key, compared)
    ]
    memory = {arm.name: arm.memory_bytes for arm in manifest.arms}
    levels = [
        row.model_copy(update={"axes": axes_of(manifest, row.arm), "memory_bytes": memory.get(row.arm)})
        for row in levels
    ]
    refused = {one for frame in frames if "failed" in states(frame, frame.arms[frame.baseline]) for one in frame.arms}
    doubts = {
        row.arm: _doubt(row, next((one for one in verdicts if one.arm == row.arm), None), refused=row.arm in refused)
        for row in levels
    }
    return Sweep(
        dimensions=dimensions(manifest),
        levels=levels,
        crossings=_crossings(levels, doubts),
        unjudged=where_unjudged(groups),
    )


def axes_of(manifest: Manifest, name: str) -> dict[str, str]:
    """Return the labels of the axes that an arm was measured at; a draft's only where its setup alone has the arm."""
    arm = next((one for one in manifest.arms if one.name == name), None)
    setup = next((one for one in manifest.setups if arm is not None and one.name == arm.setup), None)
    if arm is None or setup is None:
        return {}
    drafts = takes_draft(arm.types)
    return {axis: label for axis, label in setup.axes.items() if drafts or not axis.startswith("models.draft")}


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
    if len({one.temperature for one in found}) < 2:
        return found
    return [one.model_copy(update={"sentence": _at_temperature(one)}) for one in found]


def _at_temperature(found: Crossing) -> str:
    sentence = found.sentence
    if not sentence.startswith(found.arm):
        sentence = sentence[0].lower() + sentence[1:]
    return f"At temperature {found.temperature:g}, {sentence}"


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
    """Return all conditions' rows after one another; the parts are in the order of `sweep.levels`.

    `disturbances`: observations on the machine during the whole run.
    """
    together = {
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
    distinct = {(one.id, one.where, one.seen): one for one in warnings}
    baseline = next(row.of for row in sweep.levels if row.is_baseline)
    return parts[0].model_copy(
        update={
            **together,
            "rounds": join_rounds([part.rounds for part in parts]),
            "baseline": baseline,
            "records": sum(part.records for part in parts),
            "warnings": in_order(distinct.values()),
            "sweep": sweep,
        }
    )
