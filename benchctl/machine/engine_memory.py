"""The memory of an engine: its process and all that descend from it."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchctl.machine.describe import ROOT, answer, read

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
    """Of it, what is in swap now."""
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
    output = answer("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
    sizes = []
    for line in (output or "").splitlines():
        pid, _, size = (part.strip() for part in line.partition(","))
        if pid.isdigit() and size.isdigit() and int(pid) in pids:
            sizes.append(int(size) * _MIB)
    return sum(sizes) if sizes else None


def _on_kernel_devices(pids: set[int], root: Path) -> int | None:
    """Return the memory of these processes on GPUs whose driver tells the kernel; `None` where none does.

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
