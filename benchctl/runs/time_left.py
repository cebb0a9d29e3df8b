"""How long the rest of a run will take, learnt from the run itself."""

from __future__ import annotations

import time
from collections import defaultdict

from benchctl.runs.plan import CellPlan


class TimeLeft:
    """Estimates seconds left from each arm's own mean times; arms not yet seen are taken for the mean of the others."""

    def __init__(self, plan: list[CellPlan]) -> None:
        self._requests: dict[str, int] = defaultdict(int)
        self._cells: dict[str, int] = defaultdict(int)
        for cell in plan:
            self._requests[cell.arm.name] += len(cell.prompts)
            self._cells[cell.arm.name] += 1
        self._request_s: dict[str, list[float]] = defaultdict(list)
        self._start_s: dict[str, list[float]] = defaultdict(list)
        self._since = 0.0
        self._in_cell = 0

    def cell_started(self, arm: str) -> None:
        """An engine of `arm` is being launched."""
        self._cells[arm] -= 1
        self._since, self._in_cell = time.monotonic(), 0

    def answered(self, arm: str) -> None:
        """A request ended; the first one of a cell carries the cell's start and warm-up."""
        now = time.monotonic()
        (self._start_s if self._in_cell == 0 else self._request_s)[arm].append(now - self._since)
        self._requests[arm] -= 1
        self._since, self._in_cell = now, self._in_cell + 1

    def cell_ended(self, arm: str) -> None:
        """The engine ended, perhaps early: what it did not answer is not coming."""
        if self._cells[arm] == 0:
            self._requests[arm] = 0

    def left(self) -> float | None:
        """Return the estimate in seconds, or `None` before anything is known."""
        if not any(self._request_s.values()):
            return None
        return sum(
            max(0, self._requests[arm] - self._cells[arm]) * _mean(self._request_s, arm)
            + self._cells[arm] * _mean(self._start_s, arm)
            for arm in list(self._requests)
        )


def _mean(seen: dict[str, list[float]], arm: str) -> float:
    values = seen.get(arm) or [value for others in seen.values() for value in others]
    return sum(values) / len(values) if values else 0.0
