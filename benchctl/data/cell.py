"""A cell of a run as the manifest holds it: an engine process, its attestation, and the machine while it ran."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

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
CONTRADICTED = re.compile(r"(?:.*: a )?contradiction\b")
"""An observation of a cell in which counters of drafts contradict each other."""


class AttestationRecord(Part):
    """`benchctl.engines.base.Attestation` as it is stored."""

    state: Literal["off", "active", "idle", "unverified", "failed"]
    evidence: list[str]
    reason: str | None = None
    remedy: str | None = None


class WatchRecord(Part):
    """What else went on in the machine while a cell was measured; `None`: not reported by the system.

    It covers the measured requests, without launch and warm-up. The cells of an interleaved block share a record, in
    which all their engines are benchctl's own.
    """

    wall_s: float
    """How long the watch lasted."""
    cores: int | None = None
    """Logical cores that benchctl and the engine may run on; the times below are sums over them."""
    own_cpu_s: float | None = None
    """Processor time of benchctl, the engine and everything that they started."""
    other_cpu_s: float | None = None
    """Processor time of all other programs, the kernel's own work included."""
    stolen_cpu_s: float | None = None
    """Time that the host of a virtual machine gave to other guests (steal)."""
    engine_major_faults: int | None = None
    """How often the engine waited for a page of its memory to come from disk."""
    swapped_bytes: int | None = None
    """What the whole system swapped in and out; on macOS only out."""
    throttled: int | None = None
    """How often heat slowed the core, or package, that was slowed most often."""
    cpu_mhz: float | None = None
    """Clock of the fastest core, the median of a reading a second; `None` for a watch shorter than that."""
    gpu_slowed_s: float | None = None
    """How long heat or the power brake slowed the GPU that was slowed longest."""
    clock_jump_s: float | None = None
    """The largest step of the wall clock against the monotonic clock, forward positive."""
    suspended_s: float | None = None
    """How long the machine was suspended; `None`: not reported by the system."""
    cost_s: float | None = None
    """Processor time that watching took meanwhile."""
    energy_j: dict[str, float] = Field(default_factory=dict)
    """Joules of the whole machine by consumer, as far as reported: `benchctl.machine.energy`."""
    energy_untold: list[str] = Field(default_factory=list)
    """Why the rest is not reported."""
    series: dict[str, list[float]] = Field(default_factory=dict)
    """Power, clocks, temperatures and memory over the watch, evenly spread: `benchctl.machine.energy`."""


class MemoryRecord(Part):
    """The machine's memory that an engine used, in bytes; `None`: not reported."""

    resident: int | None = None
    """The most that was in memory at a time: `benchctl.machine.monitor.EngineMemory`."""
    swapped: int | None = None
    """The larger of two readings: once the engine was ready, and after its last answer."""
    device: int | None = None
    """Likewise."""
    checkpoint: int | None = None
    """Bytes of a checkpoint of a sequence's recurrent state, from the engine's log: target and draft together."""
    spilled: str | None = None
    """Which part of the model is not on the device of the rest, from the engine's log; a sentence."""


class Canary(Part):
    """The first prompt of a process, asked once more at its end. It is not measured: no record and no number has it."""

    task: str
    prompt_idx: int
    requests: int
    """Answered between the two, by the same process."""
    exact: bool
    """Whether the answers must be equal: the engine repeats itself, greedily, without a cache, and drafts nothing
    from earlier requests."""
    same: bool | None = None
    """Whether they are; `None`: the second request failed."""
    index: int | None = None
    """The first token (without token ids: character) at which they differ."""
    text: str | None = None
    """The second answer, where it is another; untrusted."""
    error: str | None = None
    """Why the second request failed."""

    @property
    def prompt(self) -> tuple[str, int]:
        """Which prompt it was."""
        return self.task, self.prompt_idx


class Cell(Part):
    """A process: an arm in a block. A resumed cell has several entries with rising `attempt`; the last counts."""

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
    canary: Canary | None = None
    """`None` where requests overlap, benchctl did not start the engine, or it answered fewer than two prompts."""
    machine: str | None = None
    """The kind of machine it ran on, by the name of `Manifest.machines`; `None` where there is no cluster."""
    node: str | None = None
    """The cluster's node."""
    discarded: str | None = None
    """Why none of its records counts, and it is measured again: it paused, or its group could not be finished where it
    was begun."""

    @property
    def name(self) -> str:
        """Its name in sentences."""
        return f"block {self.block + 1}, {self.arm}"
