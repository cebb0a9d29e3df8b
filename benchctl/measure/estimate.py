"""How long a run takes: estimated from an earlier run before it starts, and from the run itself while it goes on."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData, latest_run, open_run
from benchctl.errors import BenchctlError
from benchctl.measure.plan import CellPlan


@dataclass(frozen=True)
class RunEstimate:
    """The size of a plan, and its time as far as an earlier run of the recipe tells."""

    cells: int
    requests: int
    tokens: int
    """At most: answers that end early generate fewer."""
    seconds: float | None
    """From the earlier run's own times; `None` when there is none."""
    learnt_from: str | None


def estimate_run(plan: list[CellPlan], max_tokens: int, recipe_runs: Path) -> RunEstimate:
    """Size up `plan`; times come from the latest run below `recipe_runs` that finished a cell of every arm."""
    requests = sum(len(cell.prompts) for cell in plan)
    seconds, source = None, None
    try:
        earlier = open_run(latest_run(recipe_runs))
    except BenchctlError:
        earlier = None  # no earlier run to learn from
    if earlier is not None and earlier.manifest is not None:
        seconds = _seconds(plan, earlier, earlier.manifest)
        source = earlier.manifest.run if seconds is not None else None
    return RunEstimate(len(plan), requests, requests * max_tokens, seconds, source)


def _seconds(plan: list[CellPlan], earlier: RunData, manifest: Manifest) -> float | None:
    starts: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[float]] = defaultdict(list)
    for cell in manifest.cells:
        if cell.status == "finished" and cell.startup_s is not None:
            starts[cell.arm].append(cell.startup_s)
    spans: dict[tuple[str, int, int], list[tuple[float, float]]] = defaultdict(list)
    for record in earlier.records:
        if record.e2e_s is not None and record.phase == "measure":
            answers[record.label].append(record.e2e_s)
            if record.sent_s is not None:
                process = (record.label, record.block, record.attempt)
                spans[process].append((record.sent_s, record.sent_s + record.e2e_s))
    for arm in {planned.arm.name for planned in plan if planned.arm.overlapping}:
        answers[arm] = [
            (max(end for _, end in spanned) - min(sent for sent, _ in spanned)) / len(spanned)
            for (label, *_), spanned in spans.items()
            if label == arm
        ]
    total = 0.0
    for planned in plan:
        start, answer = starts.get(planned.arm.name), answers.get(planned.arm.name)
        if not start or not answer:
            return None
        total += sum(start) / len(start) + len(planned.prompts) * sum(answer) / len(answer)
    return total


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
