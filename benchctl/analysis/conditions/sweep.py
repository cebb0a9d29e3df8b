"""What depends on the condition: every level of a sweep, and where the curves cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.cells import states
from benchctl.analysis.conditions.crossing import Point, find_crossing
from benchctl.analysis.conditions.load import find_levels
from benchctl.analysis.conditions.results import Crossing, Level, Sweep
from benchctl.analysis.conditions.split import Group, dimensions
from benchctl.analysis.conditions.unjudged import where_unjudged

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.analysis.results import Verdict
    from benchctl.data.manifest import Manifest


def find_sweep(
    manifest: Manifest, groups: Sequence[Group], frames: Sequence[Frame], verdicts: Sequence[Verdict]
) -> Sweep:
    """Return everything that depends on the condition, of groups with their frames and the verdicts on all arms."""
    compared = sum(len(frame.arms) - 1 for frame in frames)
    levels = [
        level
        for group, frame in zip(groups, frames, strict=True)
        if group.condition is not None
        for level in find_levels(frame, group, group.condition, compared)
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


def _crossings(levels: Sequence[Level], doubts: dict[str, str | None]) -> list[Crossing]:
    """Of every arm and temperature whose closed loop was measured with several requests at once."""
    curves: dict[tuple[str, float], list[Point]] = {}
    for row in levels:
        if row.rate is None and not row.is_baseline:
            point = Point(row.concurrency, row.throughput_speedup, row.throughput_simultaneous, doubts[row.arm])
            curves.setdefault((row.of, row.temperature), []).append(point)
    found = [
        find_crossing(arm, temperature, points)
        for (arm, temperature), points in curves.items()
        if any(point.concurrency > 1 for point in points)
    ]
    if len({one.temperature for one in found}) < 2:
        return found
    return [one.model_copy(update={"sentence": _at_temperature(one)}) for one in found]


def _at_temperature(found: Crossing) -> str:
    said = found.sentence
    if not said.startswith(found.arm):
        said = said[0].lower() + said[1:]
    return f"At temperature {found.temperature:g}, {said}"


def _doubt(row: Level, verdict: Verdict | None, *, refused: bool) -> str | None:
    """Why a level's throughput says nothing of speculation."""
    if row.throughput_speedup is None:
        return "no cell can be compared with the baseline's"
    if refused:
        return "a cell of the baseline did not run as asked"
    if verdict is not None and verdict.attestation == "failed":
        return "a cell did not run as asked"
    if verdict is not None and verdict.attestation in ("idle", "off"):
        return "nothing was drafted"
    return None
