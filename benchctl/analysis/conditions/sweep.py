"""What depends on the condition: every level of a sweep, and where the curves cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from benchctl.analysis.conditions.crossing import Point, find_crossing
from benchctl.analysis.conditions.load import find_levels
from benchctl.analysis.conditions.results import Crossing, Level, Sweep
from benchctl.analysis.conditions.split import Group, dimensions
from benchctl.analysis.conditions.unjudged import where_unjudged

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.analysis.results import Verdict
    from benchctl.runs.manifest import Manifest


def find_sweep(
    manifest: Manifest, groups: Sequence[Group], frames: Sequence[Frame], verdicts: Sequence[Verdict]
) -> Sweep:
    """Return everything that depends on the condition, of groups with their frames and the verdicts on all arms."""
    levels = [
        level
        for group, frame in zip(groups, frames, strict=True)
        if group.condition is not None
        for level in find_levels(frame, group, group.condition)
    ]
    return Sweep(
        dimensions=dimensions(manifest),
        levels=levels,
        crossings=_crossings(levels, {verdict.arm: verdict for verdict in verdicts}),
        unjudged=where_unjudged(groups),
    )


def _crossings(levels: Sequence[Level], verdicts: dict[str, Verdict]) -> list[Crossing]:
    """Of every arm and temperature whose closed loop was measured with several requests at once."""
    curves: dict[tuple[str, float], list[Point]] = {}
    for row in levels:
        if row.rate is None and not row.is_baseline:
            point = Point(
                row.concurrency, row.throughput_speedup, row.throughput_interval, _doubt(row, verdicts.get(row.arm))
            )
            curves.setdefault((row.of, row.temperature), []).append(point)
    found = [
        find_crossing(arm, temperature, points)
        for (arm, temperature), points in curves.items()
        if any(point.concurrency > 1 for point in points)
    ]
    if len({one.temperature for one in found}) < 2:
        return found
    return [one.model_copy(update={"sentence": f"At temperature {one.temperature:g}, {one.sentence}"}) for one in found]


def _doubt(row: Level, verdict: Verdict | None) -> str | None:
    """Why a level's throughput says nothing of speculation."""
    if row.throughput_speedup is None:
        return "no cell can be compared with the baseline's"
    if verdict is not None and verdict.attestation == "failed":
        return "a cell did not run as asked"
    if verdict is not None and verdict.attestation in ("idle", "off"):
        return "nothing was drafted"
    return None
