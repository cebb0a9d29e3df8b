"""What a manifest says of an arm's cells: failures, attestations, verify width, energy and memory.

Energy is the whole machine's while the arm's requests were measured (`benchctl.machine.energy`), prefill included, over
the tokens of the answers. Where the engines of several arms ran at the same time, it is nobody's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import Field

from benchctl.analysis.result import Result
from benchctl.data.cell import AttestationRecord, Cell, WatchRecord
from benchctl.data.manifest import ArmIdentity, Manifest, SetupIdentity
from benchctl.recipes.adapters import SYNTHETIC, batch_invariance, reads_prompt_in_round, reserves_device
from benchctl.recipes.speculation import takes_draft

if TYPE_CHECKING:
    from benchctl.analysis.frame import Frame
    from benchctl.data.record import Record


def identity_of(manifest: Manifest | None, arm: str) -> ArmIdentity | None:
    """Return what a manifest says of an arm; `None` where it names no such arm, or there is none."""
    return next((identity for identity in manifest.arms if identity.name == arm), None) if manifest else None


def setup_of(manifest: Manifest | None, name: str | None) -> SetupIdentity | None:
    """Return a setup of a recipe's axes; `None` where there is none of that name."""
    return next((setup for setup in manifest.setups if setup.name == name), None) if manifest else None


def axes_of(manifest: Manifest | None, name: str) -> dict[str, str]:
    """Return the labels of the axes that an arm was measured at; a draft's only where its setup alone has the arm."""
    arm = identity_of(manifest, name)
    if manifest is None or arm is None or (setup := setup_of(manifest, arm.setup)) is None:
        return {}
    drafts = takes_draft(arm.types)
    return {axis: label for axis, label in setup.axes.items() if drafts or not axis.startswith("models.draft")}


def latest_cells(manifest: Manifest | None) -> list[Cell]:
    """Return the attempt of every cell that counts, in the order of the run."""
    return list({(cell.block, cell.arm): cell for cell in manifest.cells}.values()) if manifest else []


def repeated_otherwise(manifest: Manifest | None, arm: str) -> dict[tuple[str, int], int]:
    """Return the prompts that an arm answered otherwise when it was asked again where equality is the rule.

    By (task, prompt_idx) the requests between the two, at most.
    """
    most: dict[tuple[str, int], int] = {}
    for canary in (cell.canary for cell in latest_cells(manifest) if cell.arm == arm):
        if canary is not None and canary.exact and canary.same is False:
            most[canary.prompt] = max(canary.requests, most.get(canary.prompt, 0))
    return most


def failed_cells(frame: Frame) -> list[tuple[str, str, str]]:
    """Return (`block 2, spec_d4`, reason, log) for every cell that failed or did not run as requested."""
    failures = []
    for cell in latest_cells(frame.manifest):
        name, log = f"block {cell.block + 1}, {cell.arm}", cell.log
        if cell.attestation and cell.attestation.state == "failed":
            failures.append((name, cell.attestation.reason or "the attestation failed", log))
        elif cell.status != "finished":
            failures.append((name, cell.error.message if cell.error else cell.status, log))
    return failures


def speculates(frame: Frame, arm: int) -> bool:
    """Whether an arm is set to speculate by the recipe, or has drafted: then it is not the target alone."""
    return bool(speculation_of(frame, frame.arms[arm])) or any(frame.records[row].draft_n for row in frame.rows(arm))


def speculation_of(frame: Frame, arm: str) -> dict[str, Any]:
    """Return an arm's speculation as its recipe has it; empty for the target alone, and where nothing is recorded."""
    identity = identity_of(frame.manifest, arm)
    return (identity.speculation if identity else None) or {}


def attestations(frame: Frame, arm: str) -> list[AttestationRecord]:
    """Return the attestations of an arm's cells, failed ones first, then unverified, active, idle, off.

    Only a finished cell can be called idle: a crashed cell might still have drafted.
    """
    order = ("failed", "unverified", "active", "idle", "off")
    rows = [
        cell.attestation
        for cell in latest_cells(frame.manifest)
        if cell.arm == arm and cell.attestation and (cell.status == "finished" or cell.attestation.state != "idle")
    ]
    return sorted(rows, key=lambda attestation: order.index(attestation.state))


def states(frame: Frame, arm: str) -> list[str]:
    """Return the states of an arm's attestations, the most serious first."""
    return [attestation.state for attestation in attestations(frame, arm)]


def verify_width(manifest: Manifest | None, record: Record) -> int | None:
    """Return how many tokens the rounds of an answer verified at once, that before the draft included.

    The recipe's depth, or the mean draft where that is more (a tree of drafts); 1 for an answer without any draft.
    """
    if record.draft_n == 0:
        return 1
    identity = identity_of(manifest, record.label)
    depth = (identity.speculation or {}).get("max") if identity else None
    widths = [depth + 1] if isinstance(depth, int) else []
    if record.verified and record.rounds:
        widths.append(1 + math.ceil(record.verified / record.rounds))
    return max(widths, default=None)


def first_token_by_round(manifest: Manifest | None, arm: str) -> bool:
    """Whether a round with a draft may have decided an answer's first token, which else the prompt's reading did.

    That reading is the baseline's own, to the last bit, unless the engine reads the prompt together with a draft.
    """
    identity = identity_of(manifest, arm)
    return manifest is None or identity is None or reads_prompt_in_round(manifest.engine.kind, identity.types)


def invariant_by(frame: Frame, arm: str) -> str | None:
    """Return the setting by which the engine promises an arm and its baseline the same numbers in any batch."""
    manifest, settings = frame.manifest, set[str | None]()
    for name in (frame.arms[frame.baseline], arm):
        if manifest is None or (identity := identity_of(manifest, name)) is None:
            return None
        variables = dict(variable.partition("=")[::2] for variable in identity.env)
        settings.add(batch_invariance(manifest.engine.kind, identity.argv, variables))
    return settings.pop() if len(settings) == 1 else None


def is_synthetic(frame: Frame, arm: int) -> bool:
    """Whether an arm's draft tokens were accepted at random, as its manifest says."""
    identity = identity_of(frame.manifest, frame.arms[arm])
    return identity is not None and SYNTHETIC in identity.lossy


ELSEWHERE = "benchctl did not start the engine, and where it runs is not known"
NOT_RECORDED = "not recorded"
TOGETHER = "the engines of all arms ran at the same time (schedule: interleaved)"


class Resources(Result):
    """An arm. `None`: not reported."""

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
    device_reserved: bool = False
    """Whether that is what the engine reserves at its start, whatever the arm needs."""
    device_untold: bool = False
    """Whether the engine was asked to run on a GPU whose driver does not tell what it took there."""
    memory_left: int | None = None
    device_left: int | None = None
    """Bytes that it leaves of the machine's memory, and of the only GPU's."""
    swapped_bytes: int | None
    checkpoint_bytes: int | None
    """Of a sequence's recurrent state, as the engine saves it."""
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
    second = [] if frame.again is None else [rows[frame.again]]
    joules = [row.joules_per_token for row in (rows[frame.baseline], *second) if row.joules_per_token is not None]
    baseline_mean = sum(joules) / len(joules) if joules else None
    for index, row in enumerate(rows):
        if baseline_mean and row.joules_per_token is not None:
            rows[index] = row.model_copy(update={"against_baseline": row.joules_per_token / baseline_mean})
    return rows


def _of_arm(frame: Frame, manifest: Manifest, arm: str, cells: Sequence[Cell]) -> Resources:
    reason, metered = _why(manifest, cells), _metered(manifest, cells)
    joules = sum(sum(watch.energy_j.values()) for _, watch in metered)
    seconds = sum(watch.wall_s for _, watch in metered)
    kinds = list(dict.fromkeys(kind for _, watch in metered for kind in watch.energy_j))
    tokens = _tokens(frame, arm, {(cell.block, cell.attempt) for cell, _ in metered})
    idle = _idle_watts(manifest, kinds)
    memories = [cell.memory for cell in cells if cell.memory is not None]
    resident, device = _most([row.resident for row in memories]), _most([row.device for row in memories])
    gpus = manifest.machine.get("accelerators") or []
    return Resources(
        arm=arm,
        joules_per_token=joules / tokens if tokens else None,
        above_idle_per_token=(joules - idle * seconds) / tokens if tokens and idle is not None else None,
        against_baseline=None,
        told_by=kinds if tokens else [],
        resident_bytes=resident,
        device_bytes=device,
        device_reserved=device is not None and reserves_device(manifest.engine.kind),
        memory_left=_left(manifest.machine.get("memory_bytes"), resident),
        device_left=_left(gpus[0].get("memory_bytes"), device) if len(gpus) == 1 else None,
        device_untold=_on_device(manifest, arm) and any(memory.device is None for memory in memories),
        swapped_bytes=_most([memory.swapped for memory in memories]),
        checkpoint_bytes=_most([memory.checkpoint for memory in memories]),
        means={} if reason in (TOGETHER, ELSEWHERE) else _means(cells),
        untold=None if tokens else reason,
    )


def _left(total: object, used: int | None) -> int | None:
    return total - used if isinstance(total, int) and used is not None and total >= used else None


def _on_device(manifest: Manifest, arm: str) -> bool:
    """Whether an arm's engine was started for a GPU: by the recipe, or, where that leaves it open, by what it lists."""
    identity = identity_of(manifest, arm)
    setup = setup_of(manifest, identity.setup if identity else None)
    device_name = (manifest.recipe.get("engine") or {}).get("device", "auto")
    device = axes_of(manifest, arm).get("engine.device", device_name)
    listed = (setup or manifest).engine.details.get("devices")
    return device != "cpu" and (device != "auto" or bool(listed))


def _means(cells: Sequence[Cell]) -> dict[str, float]:
    """Return each quantity's mean over the cells that have it, weighted by their time."""
    watches = [cell.watch for cell in cells if cell.watch is not None and cell.watch.series]
    means = {}
    for name in dict.fromkeys(name for watch in watches for name in watch.series):
        weighted = [(watch.wall_s, fmean(watch.series[name])) for watch in watches if watch.series.get(name)]
        means[name] = sum(seconds * mean for seconds, mean in weighted) / sum(seconds for seconds, _ in weighted)
    return means


def by_block(frame: Frame, arm: str) -> tuple[list[float], list[float]]:
    """Return an arm's joules a token and its peak bytes (of host and device) in each block; empty: not known in all."""
    manifest = frame.manifest
    cells = [cell for cell in latest_cells(manifest) if cell.arm == arm and cell.status == "finished"]
    if manifest is None or not cells:
        return [], []
    energy = [
        sum(watch.energy_j.values()) / tokens
        for cell, watch in _metered(manifest, cells)
        if (tokens := _tokens(frame, arm, {(cell.block, cell.attempt)}))
    ]
    memory = [(cell.memory.resident or 0) + (cell.memory.device or 0) for cell in cells if cell.memory is not None]
    wholes = [len(values) == len(cells) and min(values) > 0 for values in (energy, memory)]
    return energy if wholes[0] else [], [float(size) for size in memory] if wholes[1] else []


def _metered(manifest: Manifest, cells: Sequence[Cell]) -> list[tuple[Cell, WatchRecord]]:
    """Return the cells whose energy was measured and is their arm's alone, with their watches."""
    if _why(manifest, cells) in (TOGETHER, ELSEWHERE):
        return []
    return [(cell, cell.watch) for cell in cells if cell.watch is not None and cell.watch.energy_j]


def _tokens(frame: Frame, arm: str, processes: set[tuple[int, int]]) -> int:
    """Return the tokens that these processes of an arm generated while they were watched; 0 where any is not known."""
    rows = [row for row in frame.rows(frame.arms.index(arm)).tolist() if frame.answered[row]]
    of_processes = [row for row in rows if (frame.records[row].block, frame.records[row].attempt) in processes]
    tokens = float(frame.predicted[of_processes].sum())
    return 0 if math.isnan(tokens) else int(tokens)


def _idle_watts(manifest: Manifest, kinds: Sequence[str]) -> float | None:
    """Return the idle power of the measured components; `None` where that of any of them was not measured."""
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
