"""The speed-up so far, while a run goes on: computed between cells, when nothing is being measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from benchctl.engines.base import Completion
from benchctl.measure.plan import CellPlan

Place = tuple[int, str, int]
"""Block, task and index of the prompt."""


class SoFar:
    """Answers one at a time of every arm, paired with its baseline's to the same prompt of the same block."""

    def __init__(self, baselines: Mapping[str, str]) -> None:
        self._baselines = {arm: baseline for arm, baseline in baselines.items() if arm != baseline}
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

    def lines(self) -> list[str]:
        """Return a line for every arm with a pair: the pooled speed-up, and its interval from three blocks on."""
        import numpy as np

        from benchctl.analysis.intervals import MIN_BLOCKS, pooled_interval
        from benchctl.analysis.speedup import pooled

        found = []
        for arm, baseline in self._baselines.items():
            ours, theirs = self._answers[arm], self._answers[baseline]
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
            found.append(f"{arm}: {pooled(sums):.2f}× so far ({spread})")
        return found
