"""A cell of a run as the manifest holds it: one engine process, its attestation, and the machine while it ran."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from benchctl.data.chain import Mark
from benchctl.data.versions import Part

CellStatus = Literal["finished", "failed", "interrupted"]


class CellError(Part):
    """Why a cell failed; `log_tail` is untrusted text."""

    kind: str
    message: str
    remedy: str | None = None
    log_tail: list[str] = Field(default_factory=list)


UNCHECKED_ACCEPTANCE = "acceptance is unchecked"
"""In the evidence of a cell where nothing confirms how many tokens were accepted."""


class AttestationRecord(Part):
    """`benchctl.engines.base.Attestation` as it is stored."""

    state: Literal["off", "active", "idle", "unverified", "failed"]
    evidence: list[str]
    reason: str | None = None
    remedy: str | None = None


class WatchRecord(Part):
    """`benchctl.machine.monitor.Disturbance` as it is stored: other activity while a cell was measured.

    It covers the measured requests, without launch and warm-up. The cells of an interleaved block share one, in which
    all their engines are benchctl's own.
    """

    wall_s: float
    cores: int | None = None
    own_cpu_s: float | None = None
    other_cpu_s: float | None = None
    stolen_cpu_s: float | None = None
    engine_major_faults: int | None = None
    swapped_bytes: int | None = None
    throttled: int | None = None
    cpu_mhz: float | None = None
    gpu_slowed_s: float | None = None
    clock_jump_s: float | None = None
    cost_s: float | None = None
    energy_j: dict[str, float] = Field(default_factory=dict)
    energy_untold: list[str] = Field(default_factory=list)
    series: dict[str, list[float]] = Field(default_factory=dict)


class MemoryRecord(Part):
    """The machine's memory that an engine used, in bytes; `None`: not reported."""

    resident: int | None = None
    """The most that was in memory at a time: `benchctl.machine.engine_memory.EngineMemory`."""
    swapped: int | None = None
    """The larger of two readings: once the engine was ready, and after its last answer."""
    device: int | None = None
    """Likewise."""
    checkpoint: int | None = None
    """Of one sequence's recurrent state, from the engine's log: target and draft together."""
    spilled: str | None = None
    """Which part of the model is not on the device of the rest, from the engine's log; a sentence."""


class Cell(Part):
    """One process: an arm in a block. A resumed cell has several entries with rising `attempt`; the last counts."""

    block: int
    arm: str
    order: int
    attempt: int = 0
    status: CellStatus
    started_at: str
    wall_s: float
    """From launch to the end of stopping."""
    startup_s: float | None = None
    """From launch to healthy."""
    load_before: float | None = None
    """One-minute load average before the launch."""
    exit_status: int | None = None
    log: str
    """File name below the run folder."""
    attestation: AttestationRecord | None = None
    error: CellError | None = None
    watch: WatchRecord | None = None
    memory: MemoryRecord | None = None
    machine: str | None = None
    """The kind of machine it ran on, by the name of `Manifest.machines`; `None` where there is no cluster."""
    node: str | None = None
    """The cluster's node."""
    discarded: str | None = None
    """Why none of its records counts: its group could not be finished where it was begun, and is measured again."""
    mark: Mark | None = None
    """How far the records were written when this was added; `None` for a run without digests."""
