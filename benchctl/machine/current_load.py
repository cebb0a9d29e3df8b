"""What goes on in the machine right now: load, other programs, time stolen by the host, memory, swap, disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchctl.machine.check import Check
from benchctl.machine.processor import usable_cores
from benchctl.text import one_line

if TYPE_CHECKING:
    import psutil

_WATCH_S = 0.4
_GIB = 2**30


def check_activity(folder: Path | None = None) -> list[Check]:
    """Watch the machine for a moment. `folder` is where results will be written (default: the current one)."""
    import psutil

    others = _other_processes()
    psutil.cpu_times_percent(None)
    for process in others:
        _percent(process)
    time.sleep(_WATCH_S)
    shares = psutil.cpu_times_percent(None)
    heavy = sorted(((_percent(process), process) for process in others), key=lambda pair: -pair[0])
    return [
        _load(100.0 - shares.idle - getattr(shares, "iowait", 0.0)),
        _processes([(percent, process) for percent, process in heavy if percent >= 20.0][:5]),
        _steal(getattr(shares, "steal", None)),
        _memory(),
        _swap(),
        _disk(folder or Path.cwd()),
    ]


def _load(busy_percent: float) -> Check:
    why = "An engine that shares its cores is slowed unevenly; one that spins on its threads, many times over."
    average, cores = os.getloadavg()[0], usable_cores()
    seen = f"The cores are {busy_percent:.0f} % busy; the load average is {average:.1f} on {cores:g} cores."
    if busy_percent > 75.0:
        return Check("load", "fail", seen, why, "End the other work first, or wait for it.")
    if busy_percent > 15.0 or average > 0.5 * cores:
        return Check("load", "warn", seen, why, "End the other work, or wait a minute after it has ended.")
    return Check("load", "ok", seen, why)


def _processes(heavy: list[tuple[float, psutil.Process]]) -> Check:
    why = "Each program that computes beside the engine takes time, cache and memory bandwidth from it."
    if not heavy:
        return Check("processes", "ok", "No other program that can be seen here computes.", why)
    names = ", ".join(f"{_name(process)} ({percent:.0f} % of a core)" for percent, process in heavy)
    return Check("processes", "warn", f"Other programs compute: {names}.", why, "End them, or wait.")


def _steal(percent: float | None) -> Check:
    why = "The host of a virtual machine gave this time to somebody else; the guest just stood still."
    if percent is None:
        return Check("steal", "unknown", "The system does not tell whether a host takes time away.", why)
    if percent > 1.0:
        todo = "Use a machine of one's own, or more blocks."
        return Check("steal", "warn", f"The host took {percent:.0f} % of the time away.", why, todo)
    return Check("steal", "ok", "No time was stolen while watching.", why)


def _memory() -> Check:
    import psutil

    why = "Models are mapped into memory; without room they are read from disk again and again."
    memory = psutil.virtual_memory()
    seen = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB of memory are free."
    if memory.available < _GIB:
        return Check("memory", "fail", seen, why, "Close programs that hold memory.")
    if memory.available < 0.25 * memory.total:
        return Check("memory", "warn", seen, why, "Both models must fit in what is free; close what holds the rest.")
    return Check("memory", "ok", seen, why)


def _swap() -> Check:
    import psutil

    why = "Memory that was swapped out comes back from disk in the middle of a run."
    swap = psutil.swap_memory()
    if not swap.used:
        return Check("swap", "ok", "No swap is in use." if swap.total else "There is no swap.", why)
    seen = f"{swap.used / _GIB:.1f} of {swap.total / _GIB:.1f} GiB of swap are in use."
    if swap.used < 0.05 * psutil.virtual_memory().total:
        return Check("swap", "ok", seen, why)
    return Check("swap", "warn", seen, why, "Close programs that hold memory; `swapoff -a && swapon -a` empties it.")


def _disk(folder: Path) -> Check:
    import psutil

    why = "Records, engine logs and reports are written here; a full disk ends a run."
    try:
        free = psutil.disk_usage(str(folder)).free
    except OSError as error:
        return Check("disk", "unknown", f"The disk cannot be asked: {error.strerror}.", why)
    seen = f"{free / _GIB:.1f} GiB of disk are free in the current folder."
    if free < 0.2 * _GIB:
        return Check("disk", "fail", seen, why, "Free some space.")
    return Check(
        "disk", "warn" if free < 2 * _GIB else "ok", seen, why, "Free some space." if free < 2 * _GIB else None
    )


def _other_processes() -> list[psutil.Process]:
    import psutil

    return [process for process in psutil.process_iter() if process.pid != os.getpid()]


def _percent(process: psutil.Process) -> float:
    """Return the share of one core since the last call; 0 for what is gone or may not be asked."""
    import psutil

    try:
        return process.cpu_percent(None)
    except psutil.Error:
        return 0.0


def _name(process: psutil.Process) -> str:
    import psutil

    try:
        return one_line(process.name(), 40)
    except psutil.Error:
        return "one that has ended"
