"""How long a run takes, and what else: by the processes and answers that were timed, in this run or in an earlier one.

Before any was, by a process of the baseline that was timed for the plan; else an order of magnitude by how fast the
processor, or the GPU, reads the target's weights.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import chain, islice
from math import floor, inf, log10
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from benchctl.analysis.cost import expected_tokens
from benchctl.data.record import Record
from benchctl.data.store import MANIFEST, RunData, open_run, read_manifest
from benchctl.errors import BenchctlError
from benchctl.machine import describe, nvidia
from benchctl.measurement.memory import peak_bytes
from benchctl.measurement.plan import CellPlan
from benchctl.measurement.prepare import Prepared, PreparedSetup, device_names
from benchctl.models.footprint import read_share
from benchctl.prompts.suite import Prompt
from benchctl.recipes.adapters import Usual, adapter_of
from benchctl.recipes.schema import Arm
from benchctl.recipes.speculation import takes_draft
from benchctl.text import plural, spoken
from benchctl.words import numbers

LOADED_PER_S = 2e9
"""Bytes of weights that an engine reads a second, about: 6 GB took less than 2 s from the page cache."""
COMPUTED_PER_S = 10e9
"""Bytes of weights that a thread multiplies with a second, however fast it reads them, about: Q4_K_M on two threads
took 16e9 of one machine and 26e9 of another."""
REACHED = 0.5
"""Share of a GPU's bandwidth that a decode step reads with, about: 0.3 on an H100 with 6 GB of f16 in llama.cpp."""
ASSUMED_ALPHA = 0.7
"""Acceptance of a draft token, before it is known."""
VERIFIED = {True: 0.1, False: 0.6}
"""Steps that each verified token after the first adds, on a GPU or not, about: see VERIFY_COSTS of `predict`."""
READ = {True: 0.02, False: 0.2}
"""Steps that each token of a prompt takes, on a GPU or not, about: 0.09 to 0.25 in runs on two cores."""
CHARACTERS_A_TOKEN = 4
WARM_UP_TOKENS = 32
"""Of a process, at least: two short answers."""
START_S = 5.0
"""Seconds that a process takes to start, where a run has answers and no process of it has ended."""
MOST_RUNS = 20
"""Earlier runs that are looked at."""


class Timings:
    """Seconds that processes and answers of each arm took in a run, and in an `earlier` one."""

    def __init__(self, earlier: Timings | None = None, source: str = "by its first answers") -> None:
        self.earlier = earlier
        self.source = source
        """Where the times are from, as the end of a sentence."""
        self.starts: dict[str, list[float]] = defaultdict(list)
        """Seconds of each process beside its measured answers, by arm."""
        self.answers: dict[str, list[float]] = defaultdict(list)
        """Seconds of each answer, by arm. Where requests overlap, its share of the time from the first to the last."""
        self.before_s = 0.0
        """What comes before the first cell."""

    @property
    def known(self) -> bool:
        """Whether anything can be estimated."""
        ours = any(self.starts.values()) and any(self.answers.values())
        return bool(ours or (self.earlier and self.earlier.known))

    def seconds(self, arm: str, starts: int, answers: int) -> float | None:
        """Return how long so many starts and answers of an arm take; `None` before anything is known."""
        start = self._mean(arm, "starts") if starts else 0.0
        answer = self._mean(arm, "answers") if answers else 0.0
        return None if start is None or answer is None else starts * start + answers * answer

    def of_plan(self, plan: Iterable[CellPlan]) -> float | None:
        """Return how long cells take that follow each other; `None` before anything is known."""
        cells = [self.seconds(cell.arm.name, 1, len(cell.prompts)) for cell in plan]
        timed = [seconds for seconds in cells if seconds is not None]
        return sum(timed) if len(timed) == len(cells) else None

    def _mean(self, arm: str, kind: str) -> float | None:
        """Return the mean of an arm's values; else of its earlier ones, at this run's pace; else of all arms'."""
        ours: dict[str, list[float]] = getattr(self, kind)
        if ours.get(arm):
            return fmean(ours[arm])
        before: dict[str, list[float]] = getattr(self.earlier, kind) if self.earlier else {}
        timed_twice = [name for name in ours if ours[name] and before.get(name)]
        pace = (
            sum(fmean(ours[name]) for name in timed_twice) / sum(fmean(before[name]) for name in timed_twice)
            if timed_twice
            else 1.0
        )
        if before.get(arm):
            return pace * fmean(before[arm])
        values = [*chain.from_iterable(ours.values())]
        values = values or [pace * value for value in chain.from_iterable(before.values())]
        return fmean(values) if values else None


def timings_of(run: RunData, max_tokens: int, source: str) -> Timings:
    """Return what a run's processes and answers took; its answers as they would be under a limit of `max_tokens`."""
    timings, manifest = Timings(source=source), run.manifest
    processes: dict[tuple[str, int, int], list[Record]] = defaultdict(list)
    for record in run.records:
        if record.e2e_s is not None:
            processes[record.label, record.block, record.attempt].append(record)
    measured_s: dict[tuple[str, int, int], float] = {}
    limits = {arm.name: arm.max_tokens or max_tokens for arm in manifest.arms} if manifest else {}
    for process, records in processes.items():
        answers = [(record, record.e2e_s or 0.0) for record in records if record.phase == "measure"]
        sent = [(record.sent_s, record.sent_s + seconds) for record, seconds in answers if record.sent_s is not None]
        span = max(end for _, end in sent) - min(start for start, _ in sent) if sent else inf
        total = sum(seconds for _, seconds in answers)
        overlap = min(1.0, span / total) if total else 1.0  # of requests in flight together
        measured_s[process] = overlap * total
        timings.answers[process[0]] += [
            overlap * seconds * _share_of_tokens(record, limits.get(record.label, max_tokens))
            for record, seconds in answers
        ]
    for cell in manifest.cells if manifest else ():
        process = (cell.arm, cell.block, cell.attempt)
        if cell.startup_s is not None and cell.discarded is None:
            warm_ups = sum(record.e2e_s or 0.0 for record in processes[process] if record.phase == "warmup")
            unmeasured_s = cell.wall_s - measured_s.get(process, cell.wall_s)
            ran_alone = cell.status == "finished" and manifest and manifest.recipe.get("schedule") != "interleaved"
            timings.starts[cell.arm].append(max(cell.startup_s + warm_ups, unmeasured_s if ran_alone else 0.0))
    if manifest and any(timings.answers.values()) and not any(timings.starts.values()):  # its first cell was cut off
        timings.starts[manifest.baseline].append(START_S)
    if manifest and manifest.cells and manifest.cells[0].started_at:
        begun, first = (datetime.fromisoformat(text) for text in (manifest.created_at, manifest.cells[0].started_at))
        timings.before_s = max(0.0, (first - begun).total_seconds())
    return timings


def earlier_timings(prepared: Prepared, results: Path) -> Timings | None:
    """Return the times of the newest run below `results` of the same models on the same kind of engine and machine.

    A run of the same recipe is preferred.
    """
    recipe, models = prepared.recipe, prepared.of_baseline.models
    wanted = [[file.sha256 for file in model.files] for model in (models.target, models.draft) if model is not None]
    for run in islice(_runs_below(results, recipe.name), MOST_RUNS):
        with suppress(BenchctlError):
            manifest = read_manifest(run)
            pair = [model for model in (manifest.target, manifest.draft) if model is not None]
            same = wanted == [[file.sha256 for file in model.files] for model in pair]
            if same and manifest.engine.kind == recipe.engine.kind and _is_of_this_machine(manifest.machine):
                timings = timings_of(open_run(run, check=False), recipe.sampling.max_tokens, f"by run {manifest.run}")
                if timings.known:
                    return timings
    return None


def _is_of_this_machine(facts: Mapping[str, Any]) -> bool:
    """Whether an earlier run has this machine's processor and GPUs; to list these takes a program of the system."""
    earlier_gpus = _names(facts.get("accelerators"))
    return facts.get("cpu") == describe.cpu_model() and earlier_gpus == _names(describe.accelerators())


def _names(accelerators: object) -> list[object]:
    """Return the names of GPUs; those of an earlier run may be of any type."""
    devices = accelerators if isinstance(accelerators, list) else []
    return [device.get("name") if isinstance(device, dict) else device for device in devices]


def timings_for(prepared: Prepared, resumed: RunData | None, results: Path) -> Timings:
    """Return what a plan is estimated by: times of the run that is resumed, else of an earlier one below `results`."""
    if resumed is not None:
        measured_so_far = timings_of(resumed, prepared.recipe.sampling.max_tokens, "by what was measured so far")
        if measured_so_far.known:
            return measured_so_far
    return earlier_timings(prepared, results) or paced_timings(prepared)


def paced_timings(prepared: Prepared) -> Timings:
    """Return what processes and answers take by the baseline's that was timed; nothing where none was."""
    timings, pace = Timings(source="by two answers of the target, timed now"), prepared.pace
    if pace is None:
        return timings
    timed = prepared.of_baseline.models.target.size
    for arm in prepared.recipe.arms:
        setup = prepared.setup_of(arm.name)
        slower = _steps(setup, arm) * (setup.models.target.size / timed if timed else 1.0)
        timings.answers[arm.name].append(slower * pace.answer_s)
        timings.starts[arm.name].append(pace.overhead_s + slower * pace.answer_s)  # with the canary, another answer
    return timings


def _runs_below(results: Path, recipe: str) -> Iterator[Path]:
    """Yield the folders of runs, newest first: those of a recipe, and then all others."""
    folders = sorted((file.parent for file in results.glob(f"*/*/{MANIFEST}")), key=lambda run: run.name, reverse=True)
    yield from sorted(folders, key=lambda run: run.parent.name != recipe)


def _share_of_tokens(record: Record, max_tokens: int) -> float:
    """Return about how much of an answer there would be under a limit of `max_tokens`."""
    tokens = record.n_predicted or 0
    ended_early = record.finish_reason != "length" and tokens <= max_tokens
    return 1.0 if ended_early or not tokens else max_tokens / tokens


@dataclass(frozen=True)
class PlanSize:
    """What a plan takes, before anything starts."""

    setups: int
    groups: int
    arms: int
    cells: int
    processes: int
    """Engine starts: a process a cell, and another a group for the preflight."""
    requests: int
    tokens: int
    """At most: answers that end early generate fewer."""
    seconds: float | None
    """`None`: nothing is known."""
    source: str | None
    """Where `seconds` is from, as the end of a sentence; `None`: it is an order of magnitude."""
    memory_bytes: int
    """The most that engines take at the same time; of models that are folders, their files alone."""
    counts_caches: bool
    """Whether that includes caches: vLLM and SGLang fill a GPU with theirs."""
    disk_bytes: int
    """The size of all model files."""

    @property
    def time(self) -> str:
        """Its time in words."""
        if self.seconds is None:
            return "its time is known after the first answers"
        if self.source is None:
            power = 10 ** floor(log10(max(1.0, self.seconds)))
            about = spoken(round(self.seconds / power) * power)
            return f"in the order of {about} (estimated from the size of the models)"
        return f"about {spoken(self.seconds)}, {self.source}"

    @property
    def sentence(self) -> str:
        """All of it for people."""
        size = numbers.size(self.memory_bytes)
        memory = f"up to {size} of memory" if self.counts_caches else f"models of {size}, and the engine's caches"
        axes = f"{self.setups} setups in {self.groups} {plural(self.groups, 'group')}, " if self.setups > 1 else ""
        return (
            f"Plan: {axes}{self.arms} {plural(self.arms, 'arm')}, {self.cells} engine {plural(self.cells, 'start')} "
            f"(cells), {self.requests:,} {plural(self.requests, 'request')}, at most {self.tokens:,} tokens; "
            f"{self.time}{f'; {memory}' if self.memory_bytes else ''}."
        )


def size_of(prepared: Prepared, plan: Sequence[CellPlan], timings: Timings, *, begun: bool = False) -> PlanSize:
    """Return what a plan takes, by `timings` as far as they go; `begun`: its preflight is over."""
    files = {file.path: file.size for setup in prepared.setups.values() for model in setup.pair for file in model.files}
    targets = {cell.arm.group for cell in plan if prepared.setups[cell.arm.setup].engine.model_format == "gguf"}
    probes = 0 if begun or prepared.recipe.preflight == "off" else len(targets)
    seconds, source = timings.of_plan(plan), timings.source
    if seconds is not None and not begun:
        seconds += timings.before_s
    requests = sum(len(cell.prompts) for cell in plan)
    return PlanSize(
        setups=len(prepared.setups),
        groups=len({cell.group for cell in plan}),
        arms=len({cell.arm.name for cell in plan}),
        cells=len(plan),
        processes=len(plan) + probes,
        requests=requests,
        tokens=sum(len(cell.prompts) * prepared.recipe.sampling_of(cell.arm).max_tokens for cell in plan),
        seconds=_by_bandwidth(prepared, plan) if seconds is None else seconds,
        source=None if seconds is None else source,
        memory_bytes=max((peak_bytes(setup.recipe, setup.models) for setup in prepared.setups.values()), default=0),
        counts_caches=all(setup.models.target.folder is None for setup in prepared.setups.values()),
        disk_bytes=sum(files.values()),
    )


def _by_bandwidth(prepared: Prepared, plan: Sequence[CellPlan]) -> float | None:
    """Return about how long a plan takes where every step reads all weights, by what its engine takes beside that.

    `None` for an engine without such times, and on a GPU whose bandwidth is not known.
    """
    seconds, shares = 0.0, dict[str | None, float]()
    for cell in plan:
        setup = prepared.setup_of(cell.arm.name)
        usual = adapter_of(setup.recipe.engine.kind).usual
        threads = getattr(setup.recipe.engine, "threads", None)
        bandwidth = gpu_bandwidth() if _on_gpu(setup) else memory_bandwidth(threads)
        if usual is None or bandwidth is None:
            return None
        prompts = [item.prompt for item in (*cell.prompts, *cell.prompts[:1])]  # the first once more: the canary
        tokens = len(prompts) * prepared.recipe.sampling_of(cell.arm).max_tokens + WARM_UP_TOKENS
        steps = _steps(setup, cell.arm) * tokens + READ[_on_gpu(setup)] * sum(map(_prompt_tokens, prompts))
        if cell.arm.setup not in shares:  # it reads the headers of all shards
            shares[cell.arm.setup] = read_share(setup.models.target)
        seconds += cell_s(usual, setup.models.target.size, steps, bandwidth / shares[cell.arm.setup])
    return seconds


def _prompt_tokens(prompt: Prompt) -> float:
    texts = [prompt.prompt or "", *(message.text for message in prompt.messages or ())]
    return sum(map(len, texts)) / CHARACTERS_A_TOKEN


def _on_gpu(setup: PreparedSetup) -> bool:
    return setup.recipe.device != "cpu" and bool(device_names(setup.capabilities))


def _steps(setup: PreparedSetup, arm: Arm) -> float:
    """Return about how many steps of the target alone a token of an arm takes as long as."""
    setting, draft, weights = arm.speculation, setup.models.draft, setup.models.target.size
    if setting is None or not takes_draft(setting.types) or draft is None or not weights:
        return 1.0
    return token_steps(setting.max or 1, draft.size / weights, on_gpu=_on_gpu(setup))


def token_steps(depth: int, draft_share: float, *, on_gpu: bool) -> float:
    """Return about how many steps a token takes with drafts of a depth; `draft_share`: bytes of draft over target."""
    round_steps = 1 + depth * (draft_share + VERIFIED[on_gpu])
    return round_steps / expected_tokens(ASSUMED_ALPHA, depth)


def cell_s(usual: Usual, weights: int, tokens: float, bandwidth: float) -> float:
    """Return about how many seconds a process takes that reads so many bytes of weights for each of its tokens."""
    return usual.start_s + weights / LOADED_PER_S + tokens * (usual.step_s + weights / bandwidth)


@cache
def gpu_bandwidth() -> float | None:
    """Return what a decode step reads a second on the first GPU, about; `None` where its memory's clock is unknown."""
    rates = [gpu["memory_bandwidth"] for gpu in nvidia.settings() if "memory_bandwidth" in gpu]
    return REACHED * rates[0] if rates else None


@cache
def memory_bandwidth(threads: int | None = None) -> float:
    """Return about how many bytes a second so many threads of this machine read together and compute with.

    `threads`: `None` for one on each physical core.
    """
    import numpy as np

    count = threads or psutil.cpu_count(logical=False) or 1
    values = np.ones(8 << 20)  # 64 MiB: more than caches hold
    with ThreadPoolExecutor(count) as pool:
        times = []
        for _ in range(3):
            began = time.perf_counter()
            list(pool.map(lambda _: values.sum(), range(count)))
            times.append(time.perf_counter() - began)
    return count * min(COMPUTED_PER_S, values.nbytes / median(times))
