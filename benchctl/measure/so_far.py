"""The speed-up so far, while a run goes on: computed between cells, when nothing is being measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from benchctl.engines.base import Completion
from benchctl.measure.plan import CellPlan
from benchctl.recipes.groups import ComparedArm

Place = tuple[int, str, int]
"""Block, task and index of the prompt."""


class SoFar:
    """Answers one at a time of every arm, paired with its baseline's to the same prompt of the same block."""

    def __init__(self, compared: Mapping[str, ComparedArm]) -> None:
        self._compared = [arm for arm in compared.values() if arm.group.one_at_a_time and not arm.is_baseline]
        self._current: dict[str, Place] = {}
        self._answers: dict[str, dict[Place, tuple[int, float]]] = defaultdict(dict)

    def request_sent(self, cell: CellPlan, task: str, prompt_idx: int) -> None:
        """A request was sent, the only one in flight of its arm."""
        self._current[cell.arm.name] = (cell.block, task, prompt_idx)

    def answered(self, cell: CellPlan, completion: Completion | None) -> None:
        """Its answer is complete, or failed (`None`)."""
        place = self._current.pop(cell.arm.name, None)
        if place is not None and completion is not None and completion.after_first and completion.decode_s:
            self._answers[cell.arm.name][place] = (completion.after_first, completion.decode_s)

    def _baseline(self, arm: ComparedArm) -> dict[Place, tuple[int, float]]:
        """The answers of an arm's baseline, at the mean pace of both of its cells; its first alone for its second."""
        first = self._answers[arm.baseline]
        second = {} if arm.again is None or arm.is_again else self._answers[arm.again]
        paces = {place: seconds / tokens for place, (tokens, seconds) in second.items()}
        return {
            place: (tokens, (seconds + paces.get(place, seconds / tokens) * tokens) / 2)
            for place, (tokens, seconds) in first.items()
        }

    def lines(self) -> list[str]:
        """Return a line for every arm with a pair: the pooled speed-up, and its interval from three blocks on."""
        import numpy as np

        from benchctl.analysis.speedup import pooled
        from benchctl.analysis.statistics import MIN_BLOCKS, pooled_interval

        found = []
        for arm in self._compared:
            ours, theirs = self._answers[arm.name], self._baseline(arm)
            both = sorted(ours.keys() & theirs.keys())
            if not both:
                continue
            sums = np.array([(*ours[place], *theirs[place]) for place in both])
            block = np.array([place[0] for place in both])
            interval, blocks = pooled_interval(sums, block), len(set(block.tolist()))
            if interval is not None:
                spread = f"[{interval.low:.2f}, {interval.high:.2f}], {blocks} blocks"
            else:
                spread = f"{blocks} block{'s' if blocks > 1 else ''}, an interval from {MIN_BLOCKS} on"
            found.append(f"{arm.name}: {pooled(sums):.2f}× so far ({spread})")
        return found
