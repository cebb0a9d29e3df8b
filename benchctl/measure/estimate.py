"""How long a run takes: estimated from an earlier run before it starts."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchctl.data.record import Record
from benchctl.data.store import RunData, latest_run, open_run
from benchctl.errors import BenchctlError
from benchctl.measure.memory import peak_bytes
from benchctl.measure.plan import CellPlan
from benchctl.measure.prepare import Prepared
from benchctl.text import plural, spoken

START_S = 2.0
"""Of a process beside reading its weights: what a small llama-server takes."""
LOADED_PER_S = 1e9
"""Bytes of weights that an engine reads a second, about."""
_GIB = 1 << 30


@dataclass(frozen=True)
class RunEstimate:
    """The size of a plan, and its time, where an earlier run of the recipe has it."""

    cells: int
    requests: int
    tokens: int
    """At most: answers that end early generate fewer."""
    seconds: float | None
    """From the earlier run's own times; `None` when there is none."""
    learnt_from: str | None


@dataclass(frozen=True)
class PlanSize:
    """What a plan takes, before anything starts."""

    setups: int
    groups: int
    arms: int
    cells: int
    processes: int
    """Engine starts: a process a cell, and another a group for the preflight."""
    seconds: float
    rough: bool
    """Whether `seconds` is a guess by weights and memory bandwidth, as there is no earlier run."""
    memory_bytes: int
    """Of the engines that are up together, at most."""
    disk_bytes: int
    """Of all model files."""

    @property
    def sentence(self) -> str:
        """All of it for people."""
        axes = f"{self.setups} setups in {self.groups} {plural(self.groups, 'group')}, " if self.setups > 1 else ""
        time = spoken(self.seconds)
        time = f"roughly {time} by weights and memory bandwidth" if self.rough else f"about {time}"
        return (
            f"Plan: {axes}{self.arms} {plural(self.arms, 'arm')}, {self.cells} {plural(self.cells, 'cell')}, "
            f"{self.processes} {plural(self.processes, 'process', 'processes')}; {time}; up to "
            f"{self.memory_bytes / _GIB:.1f} GiB of memory at a time, {self.disk_bytes / _GIB:.1f} GiB of model files."
        )


def size_of(prepared: Prepared, plan: Sequence[CellPlan], cost: RunEstimate) -> PlanSize:
    """Return what a plan takes; its time goes by `cost`, else by how fast this machine reads the models' weights.

    Every process reads its weights once, and every token all of the target's again.
    """
    files = {file.path: file.size for setup in prepared.setups.values() for model in setup.pair for file in model.files}
    targets = {cell.arm.group for cell in plan if prepared.setups[cell.arm.setup].engine.model_format == "gguf"}
    probes = 0 if prepared.recipe.preflight == "off" else len(targets)
    seconds = cost.seconds
    if seconds is None:
        seconds, bandwidth = 0.0, memory_bandwidth()
        for cell in plan:
            weights = sum(file.size for file in prepared.setup_of(cell.arm.name).models.target.files)
            tokens = len(cell.prompts) * prepared.recipe.sampling.max_tokens
            seconds += START_S + weights / LOADED_PER_S + tokens * weights / bandwidth
    return PlanSize(
        setups=len(prepared.setups),
        groups=len({cell.group for cell in plan}),
        arms=len({cell.arm.name for cell in plan}),
        cells=len(plan),
        processes=len(plan) + probes,
        seconds=seconds,
        rough=cost.seconds is None,
        memory_bytes=max((peak_bytes(setup.recipe, setup.models) for setup in prepared.setups.values()), default=0),
        disk_bytes=sum(files.values()),
    )


def memory_bandwidth() -> float:
    """Return about how many bytes a second a core of this machine reads, measured in some hundredths of a second."""
    import numpy as np

    values = np.ones(8 << 20)  # 64 MiB: more than caches hold
    values.sum()
    began = time.perf_counter()
    values.sum()
    return values.nbytes / (time.perf_counter() - began)


def estimate_run(plan: list[CellPlan], max_tokens: int, recipe_runs: Path) -> RunEstimate:
    """Size up `plan`; times come from the latest run below `recipe_runs` that finished a cell of every arm."""
    requests = sum(len(cell.prompts) for cell in plan)
    seconds, source = None, None
    with suppress(BenchctlError):  # no earlier run to learn from
        earlier = open_run(latest_run(recipe_runs), check=False)
        seconds = _seconds(plan, max_tokens, earlier)
        source = earlier.manifest.run if earlier.manifest and seconds is not None else None
    return RunEstimate(len(plan), requests, requests * max_tokens, seconds, source)


def _seconds(plan: list[CellPlan], max_tokens: int, earlier: RunData) -> float | None:
    """Return what the cells of the plan took in an earlier run, on the mean; `None` where any arm finished none."""
    starts: dict[str, list[float]] = defaultdict(list)
    answers: dict[str, list[float]] = defaultdict(list)
    spans: dict[str, dict[tuple[int, int], list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for cell in earlier.manifest.cells if earlier.manifest else ():
        if cell.status == "finished" and cell.startup_s is not None:
            starts[cell.arm].append(cell.startup_s)
    for record in earlier.records:
        if record.e2e_s is not None and record.phase == "measure":
            answers[record.label].append(record.e2e_s * _share_of_tokens(record, max_tokens))
            if record.sent_s is not None:
                sent = (record.sent_s, record.sent_s + record.e2e_s)
                spans[record.label][record.block, record.attempt].append(sent)
    for arm in {planned.arm.name for planned in plan if planned.arm.overlapping}:
        answers[arm] = [
            (max(end for _, end in span) - min(sent for sent, _ in span)) / len(span) for span in spans[arm].values()
        ]
    if not all(starts[planned.arm.name] and answers[planned.arm.name] for planned in plan):
        return None
    return sum(fmean(starts[cell.arm.name]) + len(cell.prompts) * fmean(answers[cell.arm.name]) for cell in plan)


def _share_of_tokens(record: Record, max_tokens: int) -> float:
    """Return about how much of an answer there would be under a limit of `max_tokens`."""
    tokens = record.n_predicted or 0
    ended_early = record.finish_reason != "length" and tokens <= max_tokens
    return 1.0 if ended_early or not tokens else max_tokens / tokens
