"""The watch: what else happened in the machine while a cell was measured.

Counters of the system are read before and after; in between a thread samples the clocks and the processor's frequency,
at most once a second and never for more than a thousandth of the time. What the system does not report is `None`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from benchctl.machine.describe import ROOT
from benchctl.machine.energy import Meter
from benchctl.machine.sensors import Reading, Sensors, series_of
from benchctl.machine.system_counters import SystemCounters, read_counters

Number = TypeVar("Number", int, float)

INTERVAL_S = 1.0
LARGEST_SHARE = 0.001
"""Of the time that the thread may spend on sampling: slower samples are taken less often."""


@dataclass(frozen=True)
class Disturbance:
    """What else went on in the machine during a watch; `None`: not reported by the system."""

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
    """Clock of the fastest core, the median of one reading a second; `None` for a watch shorter than that."""
    gpu_slowed_s: float | None = None
    """How long heat or the power brake slowed the GPU that was slowed longest."""
    clock_jump_s: float | None = None
    """The largest step of the wall clock against the monotonic one, forward positive."""
    cost_s: float | None = None
    """Processor time that watching took meanwhile."""
    energy_j: Mapping[str, float] = field(default_factory=dict)
    """Joules of the whole machine by consumer, as far as reported: `benchctl.machine.energy`."""
    energy_untold: tuple[str, ...] = ()
    """Why the rest is not reported."""
    series: Mapping[str, list[float]] = field(default_factory=dict)
    """Power, clocks, temperatures and memory over the watch, evenly spread: `benchctl.machine.sensors`."""


class Watch:
    """`with Watch() as watch: measure()`, then `watch.disturbance`; one use each."""

    def __init__(self, root: Path = ROOT) -> None:
        self.disturbance: Disturbance | None = None
        """What was measured, once the block is left."""
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._offsets: list[float] = []
        self._mhz: list[float] = []
        self._sensors = Sensors(root)
        self._readings: list[Reading] = []
        self._joules: tuple[float, dict[str, float]] | None = None
        self._cost_s = 0.0

    def __enter__(self) -> Watch:
        self._meter = Meter(self._root)
        self._before = read_counters(self._root)
        self._offsets.append(clock_offset())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over.set()
        after = read_counters(self._root, at_end=True)
        energy = self._meter.stop()
        self._thread.join()
        self._offsets.append(clock_offset())
        self.disturbance = replace(
            compare_counters(self._before, after),
            cpu_mhz=statistics.median(self._mhz) if self._mhz else None,
            clock_jump_s=largest_jump(self._offsets),
            cost_s=self._cost_s,
            energy_j=energy.joules,
            energy_untold=energy.not_reported,
            series=series_of(self._readings),
        )

    def _sample(self) -> None:
        pause = INTERVAL_S
        while not self._over.wait(pause):
            began = time.thread_time()
            self._offsets.append(clock_offset())
            self._meter.poll()
            mhz = fastest_core_mhz()
            if mhz is not None:
                self._mhz.append(mhz)
            self._read_sensors(mhz)
            cost = time.thread_time() - began
            self._cost_s += cost
            pause = max(INTERVAL_S, cost / LARGEST_SHARE)

    def _read_sensors(self, mhz: float | None) -> None:
        """Add a reading; power from counters is what they rose by since the one before."""
        at, found = time.monotonic(), self._meter.sensors()
        joules = {name: found.pop(name) for name in list(found) if name.endswith("_j")}
        before, self._joules = self._joules, (at, joules)
        if before is not None and at > before[0]:
            found |= {f"{name[:-2]}_w": (value - before[1][name]) / (at - before[0]) for name, value in joules.items()}
        found |= {} if mhz is None else {"processor_mhz": mhz}
        self._readings.append(self._sensors.read(at) | found)


def compare_counters(before: SystemCounters, after: SystemCounters) -> Disturbance:
    """Return what happened between two readings.

    The work of an engine that benchctl did not start, or that has ended, cannot be separated from that of others.
    """
    ours = after.ours_s - before.ours_s if before.ours <= after.ours and len(before.ours) > 1 else None
    busy = _rise(before.busy_s, after.busy_s)
    heat = [_rise(before.throttled[name], count) for name, count in after.throttled.items() if name in before.throttled]
    slowed: list[float] | None = None
    if before.gpu_slowed_s and after.gpu_slowed_s and len(before.gpu_slowed_s) == len(after.gpu_slowed_s):
        slowed = [max(0.0, late - early) for early, late in zip(before.gpu_slowed_s, after.gpu_slowed_s, strict=True)]
    return Disturbance(
        wall_s=after.at - before.at,
        cores=after.cores,
        own_cpu_s=ours,
        other_cpu_s=None if busy is None or ours is None else max(0.0, busy - ours),
        stolen_cpu_s=_rise(before.stolen_s, after.stolen_s),
        engine_major_faults=None if ours is None else _rise(before.major_faults, after.major_faults),
        swapped_bytes=_rise(before.swapped_bytes, after.swapped_bytes),
        throttled=max((reading for reading in heat if reading is not None), default=None),
        gpu_slowed_s=max(slowed) if slowed else None,
    )


def clock_offset() -> float:
    """Return the wall clock minus the monotonic clock in seconds, read without a pause between the two."""
    for _ in range(10):
        early, wall, late = time.monotonic(), time.time(), time.monotonic()
        if late - early < 0.001:
            break
    return wall - (early + late) / 2


def largest_jump(offsets: list[float]) -> float:
    """Return the largest change, by size, from one offset to the next; slow steering of the clock stays small."""
    return max((late - early for early, late in pairwise(offsets)), key=abs)


def fastest_core_mhz() -> float | None:
    """Return the clock of the fastest core, which is a busy one where something computes."""
    import psutil

    try:
        clocks = psutil.cpu_freq(percpu=True) if hasattr(psutil, "cpu_freq") else None
    except (OSError, RuntimeError, NotImplementedError):
        return None
    return max((clock.current for clock in clocks or [] if clock.current), default=None)


def _rise(before: Number | None, after: Number | None) -> Number | None:
    """Return how far a counter rose; `None` where it is not reported, or was reset."""
    return after - before if before is not None and after is not None and after >= before else None
