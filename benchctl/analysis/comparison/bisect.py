"""Which of several builds, in their order, is the first that is slower, diverges or violates losslessness.

Every build is compared with the first (`several`), so the intervals hold together over arms and builds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from benchctl.analysis.comparison.results import Ratio
from benchctl.analysis.comparison.several import ArmRow, SeveralRuns
from benchctl.analysis.comparison.summary import RunSummary
from benchctl.analysis.result import Interval, Result
from benchctl.errors import UsageError
from benchctl.recipes.axes import BINARY


class FirstChange(Result):
    """What the builds after the first show of an arm."""

    arm: str
    slower: int | None
    """Number of the first run (from 0) whose speed-up, of a baseline its decode rate, is shown to be lower."""
    ratio: float | None = None
    """Of that build over the first."""
    interval: Interval | None = None
    diverges: int | None
    """The first whose answers are not the first build's; rounding of another build's kernels is enough for that."""
    violates: int | None
    """The first whose output is not its own target's, as `verify-lossless` found."""
    possible: float | None = None
    """Where none is shown to be slower: the lowest end of any build's interval."""
    unknown: list[int]
    """Runs before `slower` of whose speed there is no interval."""


def by_build(run: RunSummary) -> list[RunSummary]:
    """Return a run with builds as an axis as a run for each build, in the recipe's order. Raises UsageError."""
    builds = list(dict.fromkeys(arm.labels[BINARY] for arm in run.arms if BINARY in arm.labels))
    if len(builds) < 2:
        raise UsageError(
            "It has no builds to search: its recipe lists none under `engine.binary`.",
            where=run.folder,
            fix="Name a run for each build, the oldest first, or list the builds in the recipe and run it.",
        )
    return [
        msgspec.structs.replace(
            run,
            run=build,
            arms=[
                msgspec.structs.replace(arm, name="-".join([arm.of, *_others(arm.labels)]))
                for arm in run.arms
                if arm.labels.get(BINARY) == build and not arm.is_again
            ],
        )
        for build in builds
    ]


def _others(labels: dict[str, str]) -> list[str]:
    return [label for axis, label in labels.items() if axis != BINARY]


def first_changes(found: SeveralRuns) -> list[FirstChange]:
    """Return for every arm of the first build where it changed."""
    names = [row.arm for row in found.rows if row.run == 0]
    return [_first_change(name, [row for row in found.rows if row.arm == name]) for name in names]


def _first_change(name: str, rows: Sequence[ArmRow]) -> FirstChange:
    slower = next((row for row in rows if row.change == "slower"), None)
    judged = _judged(slower) if slower else None
    intervals = [ratio.interval for ratio in map(_judged, rows) if ratio and ratio.interval]
    before = [row for row in rows if row.run and (slower is None or row.run < slower.run)]

    def first(holds: Callable[[ArmRow], bool]) -> int | None:
        return next((row.run for row in rows if holds(row)), None)

    return FirstChange(
        arm=name,
        slower=slower.run if slower else None,
        ratio=judged.ratio if judged else None,
        interval=judged.interval if judged else None,
        diverges=first(lambda row: bool(row.answers_differing)),
        violates=first(lambda row: row.lossless == "violation"),
        possible=None if slower else min((interval.low for interval in intervals), default=None),
        unknown=[row.run for row in before if row.change in (None, "unknown")],
    )


def _judged(row: ArmRow) -> Ratio | None:
    return row.rate_ratio if row.is_baseline else row.speedup_ratio


def sentences(found: SeveralRuns, changes: Sequence[FirstChange]) -> Iterator[str]:
    """Yield what was found, a line for each arm."""
    names = [str(run["run"]) for run in found.runs]
    for change in changes:
        parts = [f"{names[change.violates]} is the first with a violation"] if change.violates is not None else []
        if change.slower is not None and change.interval is not None:
            found_in = f"{change.interval.low:.2f} to {change.interval.high:.2f}"
            parts.append(f"{names[change.slower]} is the first that is slower, {change.ratio:.2f}x ({found_in})")
        if change.diverges is not None:
            parts.append(f"{names[change.diverges]} is the first with other answers")
        else:
            parts.append("no build has other answers")
        if change.possible is not None:
            parts.append(f"none is shown to be slower, {change.possible:.2f}x stays possible")
        if change.unknown:
            parts.append(f"no interval of the speed of {', '.join(names[run] for run in change.unknown)}")
        yield f"{change.arm}: {'; '.join(parts)}."
