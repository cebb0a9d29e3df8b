"""What a run would do and cost, said before it starts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from benchctl.data.manifest import Manifest
from benchctl.data.store import RunData, latest_run, open_run
from benchctl.errors import BenchctlError
from benchctl.measure.plan import CellPlan


@dataclass(frozen=True)
class Outlook:
    """The size of a plan, and its time as far as an earlier run of the recipe tells."""

    cells: int
    requests: int
    tokens: int
    """At most: answers that end early generate fewer."""
    seconds: float | None
    """From the earlier run's own times; `None` when there is none."""
    learnt_from: str | None


def outlook(plan: list[CellPlan], max_tokens: int, recipe_runs: Path) -> Outlook:
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
    return Outlook(len(plan), requests, requests * max_tokens, seconds, source)


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
