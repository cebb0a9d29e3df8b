"""How long the rest of a run will take, learnt from the run itself."""

from __future__ import annotations

import time
from collections import defaultdict

from benchctl.measure.plan import CellPlan


class TimeLeft:
    """Estimates seconds left from each arm's own mean times; arms not yet seen are taken for the mean of the others."""

    def __init__(self, plan: list[CellPlan]) -> None:
        self._requests: dict[str, int] = defaultdict(int)
        self._cells: dict[str, int] = defaultdict(int)
        self._request_s: dict[str, list[float]] = defaultdict(list)
        self._start_s: dict[str, list[float]] = defaultdict(list)
        self._since = 0.0
        self.extend(plan)

    def extend(self, plan: list[CellPlan]) -> None:
        """Add cells that will be run, too."""
        for cell in plan:
            self._requests[cell.arm.name] += len(cell.prompts)
            self._cells[cell.arm.name] += 1

    def cell_started(self, arm: str) -> None:
        """An engine of `arm` is being launched."""
        self._cells[arm] -= 1
        self._since = time.monotonic()

    def cell_ready(self, arm: str) -> None:
        """The engine is up and warm."""
        self._start_s[arm].append(self._passed())

    def answered(self, arm: str) -> None:
        """A request ended; it took what has passed since the one before it, however many are in flight."""
        self._request_s[arm].append(self._passed())
        self._requests[arm] -= 1

    def cell_ended(self, arm: str, unanswered: int) -> None:
        """The engine ended, perhaps early: what it did not answer is not coming."""
        self._requests[arm] -= unanswered

    def _passed(self) -> float:
        """Return the seconds since this was asked before."""
        before, self._since = self._since, time.monotonic()
        return self._since - before

    def left(self) -> float | None:
        """Return the estimate in seconds, or `None` before anything is known."""
        if not any(self._request_s.values()):
            return None
        return sum(
            self._requests[arm] * _mean(self._request_s, arm) + self._cells[arm] * _mean(self._start_s, arm)
            for arm in list(self._requests)
        )


def _mean(seen: dict[str, list[float]], arm: str) -> float:
    values = seen.get(arm) or [value for others in seen.values() for value in others]
    return sum(values) / len(values) if values else 0.0
