"""What goes on in the machine while a cell is measured: a watch of everything else, and the engine's own memory.

Counters of the system are read before and after; in between a thread samples the clocks and the processor's frequency,
at most once a second and never for more than a thousandth of the time. What the system does not report is `None`.
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import psutil

from benchctl.data.cell import WatchRecord
from benchctl.machine.describe import cpu_quota
from benchctl.machine.energy import Meter, SensorReading, Sensors, series_of
from benchctl.machine.nvidia import nvidia_rows, process_bytes
from benchctl.machine.system import ROOT, read

Number = TypeVar("Number", int, float)

INTERVAL_S = 1.0
LARGEST_SHARE = 0.001
"""Share of the time that the thread may spend on sampling. Slower samples are taken less often."""


class Watch:
    """`with Watch() as watch: measure()`, then `watch.disturbance`; for a single use each."""

    def __init__(self, root: Path = ROOT) -> None:
        self.disturbance: WatchRecord | None = None
        """What was measured, once the block is left."""
        self._root = root
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="watch", daemon=True)
        self._offsets: list[float] = []
        self._mhz: list[float] = []
        self._sensors = Sensors(root)
        self._readings: list[SensorReading] = []
        self._joules: tuple[float, dict[str, float]] | None = None
        self._cost_s = 0.0

    def __enter__(self) -> Watch:
        self._meter = Meter(self._root)
        self._before = read_counters(self._root)
        self._offsets.append(clock_offset())
        self._suspended_before = suspended_s()
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
        before, asleep = self._suspended_before, suspended_s()
        self.disturbance = compare_counters(self._before, after).model_copy(
            update={
                "cpu_mhz": statistics.median(self._mhz) if self._mhz else None,
                "clock_jump_s": largest_jump(self._offsets),
                "suspended_s": None if before is None or asleep is None else max(0.0, asleep - before),
                "cost_s": self._cost_s,
                "energy_j": dict(energy.joules),
                "energy_untold": list(energy.not_reported),
                "series": series_of(self._readings),
            }
        )

    def _sample(self) -> None:
        pause = INTERVAL_S
        while not self._over.wait(pause):
            began = time.thread_time()
            self._offsets.append(clock_offset())
            mhz = fastest_core_mhz()
            if mhz is not None:
                self._mhz.append(mhz)
            self._read_sensors(mhz)
            cost = time.thread_time() - began
            self._cost_s += cost
            pause = max(INTERVAL_S, cost / LARGEST_SHARE)

    def _read_sensors(self, mhz: float | None) -> None:
        """Add a reading; power from counters is what they rose by since the reading before."""
        read_at, reading = time.monotonic(), self._meter.sensors()
        joules = {name: reading.pop(name) for name in list(reading) if name.endswith("_j")}
        before, self._joules = self._joules, (read_at, joules)
        if before is not None and read_at > before[0]:
            reading |= {
                f"{name[:-2]}_w": (value - before[1][name]) / (read_at - before[0]) for name, value in joules.items()
            }
        reading |= {} if mhz is None else {"processor_mhz": mhz}
        self._readings.append(self._sensors.read(read_at) | reading)


def compare_counters(before: SystemCounters, after: SystemCounters) -> WatchRecord:
    """Return what happened between two readings.

    The work of an engine that benchctl did not start, or that has ended, cannot be separated from that of others.
    """
    ours = after.ours_s - before.ours_s if before.ours <= after.ours and len(before.ours) > 1 else None
    busy = _rise(before.busy_s, after.busy_s)
    heat = [_rise(before.throttled[name], count) for name, count in after.throttled.items() if name in before.throttled]
    slowed: list[float] | None = None
    if before.gpu_slowed_s and after.gpu_slowed_s and len(before.gpu_slowed_s) == len(after.gpu_slowed_s):
        slowed = [max(0.0, late - early) for early, late in zip(before.gpu_slowed_s, after.gpu_slowed_s, strict=True)]
    return WatchRecord(
        wall_s=after.read_at - before.read_at,
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


def suspended_s() -> float | None:
    """Return the seconds that this machine was suspended since its start; `None` where no clock reports it.

    CLOCK_BOOTTIME counts them and CLOCK_MONOTONIC does not (man 2 clock_gettime); on macOS CLOCK_MONOTONIC does and
    CLOCK_UPTIME_RAW does not.
    """
    names = (
        ("CLOCK_MONOTONIC", "CLOCK_UPTIME_RAW") if sys.platform == "darwin" else ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC")
    )
    with suppress(AttributeError, OSError):
        counting, stopping = (getattr(time, name) for name in names)
        return time.clock_gettime(counting) - time.clock_gettime(stopping)
    return None


def largest_jump(offsets: list[float]) -> float:
    """Return the largest change, by size, from an offset to the next; slow steering of the clock stays small."""
    return max((late - early for early, late in pairwise(offsets)), key=abs)


def fastest_core_mhz() -> float | None:
    """Return the clock of the fastest core, which is busy where something computes."""
    try:
        clocks = psutil.cpu_freq(percpu=True) if hasattr(psutil, "cpu_freq") else None
    except (OSError, RuntimeError, NotImplementedError):
        return None
    return max((clock.current for clock in clocks or [] if clock.current), default=None)


def _rise(before: Number | None, after: Number | None) -> Number | None:
    """Return how far a counter rose; `None` where it is not reported, or was reset."""
    return after - before if before is not None and after is not None and after >= before else None


_IDLE = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})
"""Kinds of processor time in which no program of this machine ran; a guest's is counted in `user`, too."""
_GPU_SLOWED = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


@dataclass(frozen=True)
class SystemCounters:
    """Counters since the system's start, at a moment."""

    read_at: float
    """When processor time was read, by the monotonic clock."""
    cores: int | None
    busy_s: float | None
    """Processor time of all programs on the cores that we may use."""
    stolen_s: float | None
    """Time that the host of a virtual machine gave to other guests (steal)."""
    ours: frozenset[int]
    """benchctl's process and all that descend from it, the engine's among them."""
    ours_s: float
    major_faults: int | None
    """Page faults from disk of the processes in `ours`, without benchctl itself."""
    swapped_bytes: int | None
    throttled: Mapping[str, int]
    """How often each core and package was throttled by heat."""
    gpu_slowed_s: tuple[float, ...] | None
    """How long heat or the power brake slowed each GPU."""


def read_counters(root: Path = ROOT, *, at_end: bool = False) -> SystemCounters:
    """Read every counter that this system has; some milliseconds, more where `nvidia-smi` is run.

    Processor time is read next to the measurement: last before it, first `at_end`.
    """
    heat = None if at_end else (_throttled(root), _gpu_slowed())
    ours_s, faults, pids = _own_tree(root)
    cores, busy, stolen = _processor_time(root)
    read_at = time.monotonic()
    throttled, gpu_slowed = heat or (_throttled(root), _gpu_slowed())
    return SystemCounters(
        read_at=read_at,
        cores=cores,
        busy_s=busy,
        stolen_s=stolen,
        ours=frozenset(pids),
        ours_s=ours_s,
        major_faults=faults,
        swapped_bytes=_swapped_bytes(root),
        throttled=throttled,
        gpu_slowed_s=gpu_slowed,
    )


def _processor_time(root: Path) -> tuple[int | None, float | None, float | None]:
    """Return (cores, busy, stolen) of the cores that we may use: others' work elsewhere takes nothing from us.

    Under a quota on processor time `busy` is `None`: others then use cores that would not have been ours.
    """
    times = psutil.cpu_times(percpu=True)
    process = psutil.Process()
    allowed = process.cpu_affinity() if hasattr(process, "cpu_affinity") else None
    if allowed is not None and len(allowed) < len(times):
        if read(root / "sys/devices/system/cpu/offline") or max(allowed) >= len(times):
            return None, None, None  # the list has gaps, so a place in it is not a core's number
        times = [times[core] for core in allowed]
    busy = sum(value for core in times for kind, value in core._asdict().items() if kind not in _IDLE)
    stolen = sum(core.steal for core in times) if hasattr(times[0], "steal") else None
    return len(times), busy if cpu_quota(root) is None else None, stolen


def _own_tree(root: Path) -> tuple[float, int | None, list[int]]:
    """Return (processor time, major page faults, process ids) of benchctl and what descends from it."""
    benchctl = psutil.Process()
    total, faults, pids = 0.0, [], []
    for process in (benchctl, *benchctl.children(recursive=True)):
        try:
            used = sum(process.cpu_times()[:4])  # its own and that of its ended children, each as user and system
            if process.pid != benchctl.pid:
                faults.append(_major_faults(process, root))
        except psutil.Error:
            continue
        total += used
        pids.append(process.pid)
    reported = [fault for fault in faults if fault is not None]
    return total, sum(reported) if reported and len(reported) == len(faults) else None, pids


def _major_faults(process: psutil.Process, root: Path) -> int | None:
    """Return how often a process waited for a page from disk."""
    if sys.platform == "linux":
        fields = read(root / f"proc/{process.pid}/stat").rpartition(")")[2].split()
        return int(fields[9]) if len(fields) > 9 else None
    reported: int | None = getattr(process.memory_info(), "pageins", None)
    return reported


def _swapped_bytes(root: Path) -> int | None:
    """Return what the system has swapped in and out since its start."""
    if sys.platform == "linux":
        lines = dict(line.split()[:2] for line in read(root / "proc/vmstat").splitlines())
        if not {"pswpin", "pswpout"} <= set(lines):
            return None
        return (int(lines["pswpin"]) + int(lines["pswpout"])) * os.sysconf("SC_PAGE_SIZE")
    return psutil.swap_memory().sout  # what macOS calls swapped in is every page read from a file, too


def _throttled(root: Path) -> dict[str, int]:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    return {f"{file.parts[-3]}/{file.name}": int(text) for file in files if (text := read(file)).isdigit()}


def _gpu_slowed() -> tuple[float, ...] | None:
    """Return the seconds that heat or the power brake slowed each NVIDIA GPU; `None` where its driver counts none."""
    fields = ",".join(f"clocks_event_reasons_counters.{name}" for name in _GPU_SLOWED)
    rows = nvidia_rows(f"--query-gpu={fields}")
    if not rows or not all(len(row) == len(_GPU_SLOWED) and all(cell.isdigit() for cell in row) for row in rows):
        return None
    return tuple(max(map(int, row)) / 1e6 for row in rows)


_KIB = 1024
_MIB = 1 << 20
_DRM = re.compile(r"^drm-([\w-]+):[ \t]+(\S+(?: [KM]iB)?)", re.MULTILINE)
_ON_BOARD = re.compile(r"^(?:resident|memory)-(?:vram|local)\d*$")
_FIELD = re.compile(r"^(VmHWM|VmSwap):\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class EngineMemory:
    """Bytes. `None`: not reported by the system."""

    resident: int | None = None
    """The most that was in memory at a time since the start, of every process for itself, added up: of an engine of
    several processes the most that it can have been. Pages of a mapped model file count, as in `top`."""
    swapped: int | None = None
    """The part of it that is in swap now."""
    device: int | None = None
    """What it uses now on GPUs, as NVIDIA's driver reports it, else the kernel's: those of AMD and Intel, on Linux."""

    def at_least(self, earlier: EngineMemory) -> EngineMemory:
        """Return the larger of two readings, number by number."""
        pairs = ((getattr(self, name), getattr(earlier, name)) for name in ("resident", "swapped", "device"))
        reported = [[size for size in pair if size is not None] for pair in pairs]
        return EngineMemory(*(max(pair) if pair else None for pair in reported))


def read_engine_memory(pid: int, root: Path = ROOT) -> EngineMemory:
    """Read the memory of the process `pid` and its descendants; all `None` where it has ended."""
    try:
        first = psutil.Process(pid)
        family = [first, *first.children(recursive=True)]
    except psutil.Error:
        return EngineMemory()
    pids = {process.pid for process in family}
    resident, swapped = [], []
    for process in family:
        peak, swap = _of_process(process, root)
        if peak is not None:
            resident.append(peak)
        if swap is not None:
            swapped.append(swap)
    return EngineMemory(
        resident=sum(resident) if resident else None,
        swapped=sum(swapped) if swapped else None,
        device=_on_devices(pids) or _on_kernel_devices(pids, root),
    )


def _of_process(process: object, root: Path) -> tuple[int | None, int | None]:
    """Return (peak resident, swapped) of a process."""
    assert isinstance(process, psutil.Process)
    if sys.platform == "linux":
        fields = {name: int(size) * _KIB for name, size in _FIELD.findall(read(root / f"proc/{process.pid}/status"))}
        return fields.get("VmHWM"), fields.get("VmSwap")
    try:
        return process.memory_info().rss, None
    except psutil.Error:
        return None, None


def _on_devices(pids: set[int]) -> int | None:
    """Return the memory of these processes on all GPUs; `None` where the driver lists none, as in containers."""
    sizes = [size for pid, size in process_bytes().items() if pid in pids]
    return sum(sizes) if sizes else None


def _on_kernel_devices(pids: set[int], root: Path) -> int | None:
    """Return the memory of these processes on GPUs whose driver reports it to the kernel; `None` where none does.

    https://docs.kernel.org/gpu/drm-usage-stats.html; a client of a GPU may have several files open.
    """
    clients: dict[tuple[str, ...], int] = {}
    for pid in pids:
        with suppress(OSError):
            for file in (root / f"proc/{pid}/fdinfo").iterdir():
                fields = dict(_DRM.findall(read(file)))
                regions = {key.rpartition("-")[2]: key for key in sorted(fields) if _ON_BOARD.search(key)}
                if "client-id" in fields and regions:  # `resident-vram` sorts after its older name, `memory-vram`
                    client = (fields.get("pdev", ""), fields["client-id"])
                    clients[client] = sum(_bytes_in(fields[key]) for key in regions.values())
    return sum(clients.values()) if clients else None


def _bytes_in(text: str) -> int:
    size, _, unit = text.partition(" ")
    return int(size) * {"KiB": _KIB, "MiB": _MIB}.get(unit, 1) if size.isdigit() else 0
