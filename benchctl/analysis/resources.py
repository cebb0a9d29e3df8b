"""What an arm took of the machine: energy for every generated token, and memory at its peak.

Energy is the whole machine's while the arm's requests were measured (`benchctl.machine.energy`), over the tokens that
the answers have, prefill included; beside it what is above idle power over the same time. Where the engines of several
arms ran at the same time, it cannot be attributed to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from pydantic import Field

from benchctl.analysis.cells import latest_cells
from benchctl.analysis.result import Result

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.cell import Cell
    from benchctl.data.manifest import Manifest

ELSEWHERE = "benchctl did not start the engine, and where it runs is not known"
NOT_RECORDED = "not recorded"
TOGETHER = "the engines of all arms ran at the same time (schedule: interleaved)"


class Resources(Result):
    """One arm. `None`: not reported."""

    arm: str
    joules_per_token: float | None
    """Of every component that was measured, per generated token."""
    above_idle_per_token: float | None
    """The same without the machine's idle power."""
    against_baseline: float | None
    """`joules_per_token` over the baseline's: below 1 the arm takes less."""
    told_by: list[str]
    """The measured components: processor, memory, gpu, soc."""
    resident_bytes: int | None
    """The most that an engine of this arm had in memory."""
    device_bytes: int | None
    swapped_bytes: int | None
    checkpoint_bytes: int | None
    """Of one sequence's recurrent state, as the engine saves it."""
    means: dict[str, float] = Field(default_factory=dict)
    """Of power (W), clocks (MHz), temperatures (°C) and memory (bytes) over the measured time of its cells."""
    untold: str | None
    """Why energy is not reported, as the end of a sentence."""


def find_resources(frame: Frame) -> list[Resources]:
    """Return a row for every arm of a run; none for records without a manifest."""
    manifest = frame.manifest
    if manifest is None:
        return []
    cells = [cell for cell in latest_cells(manifest) if cell.status == "finished"]
    rows = [_of_arm(frame, manifest, arm, [cell for cell in cells if cell.arm == arm]) for arm in frame.arms]
    cells_of_baseline = [rows[frame.baseline], *([] if frame.again is None else [rows[frame.again]])]
    known = [row.joules_per_token for row in cells_of_baseline if row.joules_per_token is not None]
    own = sum(known) / len(known) if known else None
    return [
        row.model_copy(update={"against_baseline": row.joules_per_token / own})
        if own and row.joules_per_token is not None
        else row
        for row in rows
    ]


def _of_arm(frame: Frame, manifest: Manifest, arm: str, cells: Sequence[Cell]) -> Resources:
    why = _why(manifest, cells)
    measured = (
        []
        if why in (TOGETHER, ELSEWHERE)
        else [cell for cell in cells if cell.watch is not None and cell.watch.energy_j]
    )
    joules = sum(sum(cell.watch.energy_j.values()) for cell in measured if cell.watch is not None)
    seconds = sum(cell.watch.wall_s for cell in measured if cell.watch is not None)
    kinds = list(dict.fromkeys(kind for cell in measured if cell.watch is not None for kind in cell.watch.energy_j))
    tokens = _tokens(frame, arm, {(cell.block, cell.attempt) for cell in measured})
    idle = _idle_watts(manifest, kinds)
    memories = [cell.memory for cell in cells if cell.memory is not None]
    return Resources(
        arm=arm,
        joules_per_token=joules / tokens if tokens else None,
        above_idle_per_token=(joules - idle * seconds) / tokens if tokens and idle is not None else None,
        against_baseline=None,
        told_by=kinds if tokens else [],
        resident_bytes=_most([memory.resident for memory in memories]),
        device_bytes=_most([memory.device for memory in memories]),
        swapped_bytes=_most([memory.swapped for memory in memories]),
        checkpoint_bytes=_most([memory.checkpoint for memory in memories]),
        means={} if why in (TOGETHER, ELSEWHERE) else _means(cells),
        untold=None if tokens else why,
    )


def _means(cells: Sequence[Cell]) -> dict[str, float]:
    """Return each quantity's mean over the cells that have it, weighted by their time."""
    watches = [cell.watch for cell in cells if cell.watch is not None and cell.watch.series]
    found = {}
    for name in dict.fromkeys(name for watch in watches for name in watch.series):
        known = [(watch.wall_s, fmean(watch.series[name])) for watch in watches if watch.series.get(name)]
        found[name] = sum(seconds * mean for seconds, mean in known) / sum(seconds for seconds, _ in known)
    return found


def by_block(frame: Frame, arm: str) -> tuple[list[float], list[float]]:
    """Return an arm's joules a token and its peak bytes (of host and device) in each block; empty: not known in all."""
    manifest = frame.manifest
    cells = [cell for cell in latest_cells(manifest) if cell.arm == arm and cell.status == "finished"]
    if manifest is None or not cells:
        return [], []
    energy = []
    for cell in cells:
        tokens = _tokens(frame, arm, {(cell.block, cell.attempt)})
        if (
            cell.watch is not None
            and cell.watch.energy_j
            and tokens
            and _why(manifest, cells) not in (TOGETHER, ELSEWHERE)
        ):
            energy.append(sum(cell.watch.energy_j.values()) / tokens)
    memory = [(cell.memory.resident or 0) + (cell.memory.device or 0) for cell in cells if cell.memory is not None]
    whole = [
        values if len(values) == len(cells) and min(values) > 0 else [] for values in (energy, [*map(float, memory)])
    ]
    return whole[0], whole[1]


def _tokens(frame: Frame, arm: str, processes: set[tuple[int, int]]) -> int:
    """Return the tokens that these processes of an arm generated while they were watched."""
    rows = frame.rows(frame.arms.index(arm))
    records = [frame.records[row] for row in rows]
    return sum(
        record.n_predicted for record in records if record.error is None and (record.block, record.attempt) in processes
    )


def _idle_watts(manifest: Manifest, kinds: Sequence[str]) -> float | None:
    """Return the idle power of the measured components; `None` where that of one of them was not measured."""
    watts = manifest.idle.watts if manifest.idle is not None else {}
    return sum(watts[kind] for kind in kinds) if kinds and all(kind in watts for kind in kinds) else None


def _why(manifest: Manifest, cells: Sequence[Cell]) -> str:
    if manifest.recipe.get("schedule") == "interleaved":
        return TOGETHER
    if manifest.engine.binary is None:
        return ELSEWHERE
    reasons = [reason for cell in cells if cell.watch is not None for reason in cell.watch.energy_untold]
    return "; ".join(dict.fromkeys(reasons)) or NOT_RECORDED


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
