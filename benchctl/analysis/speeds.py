"""How fast every arm of a run is: variances shared among the arms of a condition, claims that hold together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from benchctl.analysis.lossy import is_synthetic
from benchctl.analysis.results import ALL_TASKS, SpeedUp
from benchctl.analysis.speedup import (
    Variances,
    bare,
    block_variances,
    find_speedups,
    find_whole_speedup,
    whole_variances,
)
from benchctl.analysis.statistics import holm, level_for, shared_variances

if TYPE_CHECKING:
    from benchctl.analysis.conditions.split import Group
    from benchctl.analysis.frame import Frame


@dataclass(frozen=True)
class Speed:
    """How fast one arm is."""

    rows: list[SpeedUp]
    """Over all tasks, then of each."""
    whole: SpeedUp | None
    """Of whole answers, where requests share the engine: it then decides."""
    claimed: bool = False
    """Whether the arm may be called faster or slower."""

    @property
    def decides(self) -> SpeedUp:
        """What the conclusion on the arm is drawn from."""
        return self.whole or next(row for row in self.rows if row.task == ALL_TASKS)

    @property
    def p(self) -> float:
        """Of what decides, uncorrected; 1 where nothing is known of the spread."""
        return 1.0 if self.decides.p is None else self.decides.p


def find_speeds(groups: Sequence[Group], frames: Sequence[Frame]) -> dict[str, Speed]:
    """Return the speed of every compared arm of a run.

    Arms of one condition share their variances. Claims hold together over the arms of all conditions; an arm of
    synthetic acceptance makes none, and its variance is shared with others of its kind alone.
    """
    synthetic = {(number, arm) for number, frame in enumerate(frames) for arm in compared_arms(frame)
                 if is_synthetic(frame, arm)}  # fmt: skip
    most = max(1, sum(len(compared_arms(frame)) for frame in frames) - len(synthetic))
    speeds: dict[tuple[int, int], Speed] = {}
    for number, (group, frame) in enumerate(zip(groups, frames, strict=True)):
        for lots in (False, True):
            arms = [arm for arm in compared_arms(frame) if ((number, arm) in synthetic) == lots]
            for blocks in {frame.blocks_of(arm) for arm in arms}:
                then = frame.until(blocks)  # as it was when these arms were decided
                decoding = _shared([block_variances(then, arm) for arm in arms])
                whole = _shared([whole_variances(then, arm) for arm in arms]) if group.overlapping else []
                for place, arm in enumerate(arms):
                    if frame.blocks_of(arm) == blocks:
                        speeds[number, arm] = Speed(
                            find_speedups(then, arm, most, decoding[place]),
                            find_whole_speedup(then, arm, most, whole[place]) if group.overlapping else None,
                        )
    if any(group.run.integrity.damage for group in groups):  # the values are shown, and nothing is claimed of them
        speeds = {
            key: Speed([bare(row) for row in speed.rows], speed.whole and bare(speed.whole))
            for key, speed in speeds.items()
        }
    claims = [key for key in speeds if key not in synthetic]
    adjusted = dict(zip(claims, holm([speeds[key].p for key in claims]), strict=True))
    return {
        frames[key[0]].arms[key[1]]: replace(
            speed, claimed=adjusted.get(key, speed.p) <= 1 - level_for(frames[key[0]].manifest)
        )
        for key, speed in speeds.items()
    }


def _shared(arms: Sequence[Variances]) -> list[Variances]:
    """Return every arm's variances, in each task shrunken towards those of the other arms."""
    tasks = arms[0] if arms else {}
    by_task = {task: shared_variances([own[task] for own in arms]) for task in tasks}
    return [{task: by_task[task][place] for task in tasks} for place in range(len(arms))]


def compared_arms(frame: Frame) -> list[int]:
    """Return the arms of a condition that are compared with its baseline."""
    return [arm for arm in range(len(frame.arms)) if arm not in (frame.baseline, frame.again)]
