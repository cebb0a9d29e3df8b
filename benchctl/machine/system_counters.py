"""The system's counters of what went on in it: processor time, memory, heat.

What the system does not report is `None`, never 0. Every reader takes the root folder below which /proc and /sys lie.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.machine.describe import ROOT, answer, read
from benchctl.machine.processor import cpu_quota

if TYPE_CHECKING:
    import psutil

_IDLE = frozenset({"idle", "iowait", "steal", "guest", "guest_nice"})
"""Kinds of processor time in which no program of this machine ran; a guest's is counted in `user`, too."""
_GPU_SLOWED = ("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")


@dataclass(frozen=True)
class SystemCounters:
    """Counters since the system's start, at one moment."""

    at: float
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
    """Of `ours` without benchctl itself."""
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
    at = time.monotonic()
    throttled, gpu_slowed = heat or (_throttled(root), _gpu_slowed())
    return SystemCounters(
        at=at,
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
    import psutil

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
    import psutil

    own = psutil.Process()
    total, faults, pids = 0.0, [], []
    for process in (own, *own.children(recursive=True)):
        try:
            used = sum(process.cpu_times()[:4])  # its own and that of its ended children, each as user and system
            if process.pid != own.pid:
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
    import psutil

    return psutil.swap_memory().sout  # what macOS calls swapped in is every page read from a file, too


def _throttled(root: Path) -> dict[str, int]:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/*_throttle_count")
    return {f"{file.parts[-3]}/{file.name}": int(text) for file in files if (text := read(file)).isdigit()}


def _gpu_slowed() -> tuple[float, ...] | None:
    """Return the seconds that heat or the power brake slowed each NVIDIA GPU; `None` where its driver counts none."""
    fields = ",".join(f"clocks_event_reasons_counters.{name}" for name in _GPU_SLOWED)
    output = answer("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in (output or "").splitlines()]
    if not rows or not all(len(row) == len(_GPU_SLOWED) and all(cell.isdigit() for cell in row) for row in rows):
        return None
    return tuple(max(map(int, row)) / 1e6 for row in rows)
