"""Is this machine fit to measure? Its settings (clock, power, heat, sharing), and what goes on in it right now."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from benchctl.machine import nvidia
from benchctl.machine.describe import boost, container, cpu_quota, governors, usable_cores, virtualised
from benchctl.machine.system import ROOT, answer, read
from benchctl.text import one_line

_GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource"})
_NEAR_LIMIT_CELSIUS = 10.0
_WATCH_S = 0.4
_GIB = 2**30

CheckState = Literal["ok", "warn", "fail", "unknown"]


@dataclass(frozen=True)
class Check:
    """What was checked, what was found, why it matters for a measurement, and what to do about it.

    `fail`: measuring here makes no sense. `warn`: it does, with that in mind. `unknown`: not reported by the system.
    `seen`, `why` and `todo` are sentences; `seen` may quote names that others chose (of processes, of files).
    """

    id: str
    state: CheckState
    seen: str
    why: str
    todo: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)


def check_machine(root: Path = ROOT) -> list[Check]:
    """Check everything that makes measurements on this machine less trustworthy; takes about half a second."""
    mac = sys.platform == "darwin"
    return [
        _low_power_mode() if mac else _governor(root),
        _boost(root),
        _heat(root),
        _battery(),
        _clock(root),
        _sharing(root),
        *check_load(),
        _accelerator(),
        *_power_limit(),
    ]


def _governor(root: Path) -> Check:
    reason = "A governor that changes the clock with the load makes short measurements slower and more spread out."
    active = governors(root)
    if not active:
        return Check("governor", "unknown", "The system reports no frequency governor.", reason)
    names = ", ".join(sorted(active))
    if active == {"performance"}:
        return Check("governor", "ok", "The frequency governor is performance.", reason)
    todo = "Run `sudo cpupower frequency-set -g performance` for the time of the measurement."
    return Check("governor", "warn", f"The frequency governor is {names}.", reason, todo)


def _low_power_mode() -> Check:
    reason = "Low power mode lowers the clock."
    mode = re.search(r"lowpowermode\s+(\d)", answer("pmset", "-g") or "")
    if mode is None:
        return Check("governor", "unknown", "macOS does not report whether low power mode is on.", reason)
    if mode[1] == "0":
        return Check("governor", "ok", "Low power mode is off.", reason)
    return Check("governor", "warn", "Low power mode is on.", reason, "Switch it off in System Settings › Battery.")


def _boost(root: Path) -> Check:
    reason = "A boosted clock depends on temperature and on what other cores do, so runs differ more from each other."
    allowed = boost(root)
    if allowed is None:
        return Check("boost", "unknown", "The system does not report whether cores may boost their clock.", reason)
    if not allowed:
        return Check("boost", "ok", "Cores keep to their base clock.", reason)
    switch = "intel_pstate/no_turbo" if read(root / "sys/devices/system/cpu/intel_pstate/no_turbo") else "cpufreq/boost"
    value = "1" if switch.endswith("no_turbo") else "0"
    todo = (
        f"For the steadiest figures: `echo {value} | sudo tee /sys/devices/system/cpu/{switch}`; else use more blocks."
    )
    return Check("boost", "warn", "Cores may boost their clock.", reason, todo)


def _heat(root: Path) -> Check:
    reason = "A processor that gets too hot slows itself down in the middle of a run."
    todo = "Let the machine cool, give it air, and put a pause between runs."
    counters = list((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    throttled = max((int(text) for file in counters if (text := read(file)).isdigit()), default=0)
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    readings = [
        (sensor.current, sensor.high or sensor.critical)
        for group in sensors.values()
        for sensor in group
        if sensor.current
    ]
    near = [current for current, limit in readings if limit and current > limit - _NEAR_LIMIT_CELSIUS]
    if near:
        return Check("heat", "warn", f"A sensor reads {max(near):.0f} °C, which is close to its limit.", reason, todo)
    if throttled:
        return Check("heat", "warn", f"Cores were throttled by heat {throttled} times since the start.", reason, todo)
    if not readings and not counters:
        return Check("heat", "unknown", "The system reports neither temperatures nor throttling.", reason)
    hottest = f" The hottest sensor reads {max(current for current, _ in readings):.0f} °C." if readings else ""
    return Check("heat", "ok", f"No throttling was reported.{hottest}", reason)


def _battery() -> Check:
    reason = "On battery the system saves power and lowers the clock as the charge falls."
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None:
        return Check("battery", "ok", "There is no battery.", reason)
    if battery.power_plugged is None:
        return Check("battery", "unknown", "The system does not report whether it runs on battery.", reason)
    if battery.power_plugged:
        return Check("battery", "ok", "The machine is plugged in.", reason)
    return Check("battery", "warn", f"The machine runs on battery ({battery.percent:.0f} %).", reason, "Plug it in.")


def _clock(root: Path) -> Check:
    reason = "Every token is timed; a clock that is coarse or slow to read blurs what it measures."
    source = read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    resolution = time.get_clock_info("perf_counter").resolution
    if resolution > 1e-6:
        return Check("clock", "warn", f"The clock moves in steps of {resolution * 1e6:.0f} µs.", reason)
    if source and source not in _GOOD_CLOCKS:
        todo = "See whether the kernel calls the faster one unstable: `dmesg | grep -i clocksource`."
        return Check("clock", "warn", f"The clock source is {source}, which is slow to read.", reason, todo)
    return Check("clock", "ok", f"The clock has steps below 1 µs{f' (source {source})' if source else ''}.", reason)


def _sharing(root: Path) -> Check:
    reason = "Other guests of the machine take time and cache, unseen from inside."
    todo = "Use more blocks, and do not trust small differences."
    quota = cpu_quota(root)
    if quota is not None:
        observed = f"A quota of {quota:g} cores is set on this process's group; above it, the kernel pauses it."
        return Check("sharing", "warn", observed, reason, "Raise the quota, or use no more threads than it has cores.")
    kind = virtualised(root)
    inside = container(root)
    if kind is None:
        this = "this container is in" if inside else "this is"
        return Check("sharing", "unknown", f"The system does not report whether {this} a virtual machine.", reason)
    if kind != "no":
        return Check("sharing", "warn", f"This is a {'container in a ' if inside else ''}{kind}.", reason, todo)
    return Check("sharing", "ok", f"This is {'a container, ' if inside else ''}not a virtual machine.", reason)


def _accelerator() -> Check:
    reason = "Work of others on the accelerator, or a clock it lowered because of heat or power, changes every figure."
    states = nvidia.states()
    if not states:
        return Check("accelerator", "ok", "No accelerator reports its state here.", reason)
    problems = []
    for state in states:
        if (state.busy_percent or 0) > 5:
            problems.append(f"{state.name} is {state.busy_percent} % busy.")
        if (state.reasons or 0) & nvidia.SLOWED:
            problems.append(f"{state.name} has lowered its clock because of heat or power ({state.celsius} °C).")
    if problems:
        return Check(
            "accelerator", "warn", " ".join(problems), reason, "See `nvidia-smi`: end what runs there, or wait."
        )
    return Check("accelerator", "ok", f"Idle: {', '.join(state.name for state in states)}.", reason)


def _power_limit() -> list[Check]:
    """Return a check of the GPUs' power limits and links; none where none is reported."""
    reason = "A lower power limit slows wide verifies more than steps; a narrow link slows loading and copies."
    lowered, limits = [], []
    for device, setting in zip(nvidia.devices(), nvidia.settings(), strict=False):
        limit, usual = device["power_limit_w"], setting.get("power_default_w")
        if limit is not None:
            limits.append(f"{device['name']}: {limit:g} W")
        if limit is not None and usual is not None and limit < usual:
            lowered.append(f"The power limit of {device['name']} is {limit:g} W; its default is {usual:g} W.")
        width, widest = setting.get("pcie_width"), setting.get("pcie_width_max")
        if width and widest and width < widest:
            lowered.append(f"{device['name']} has {width} of {widest} PCIe lanes.")
    if lowered:
        todo = "To compare with runs of other machines: `sudo nvidia-smi -pl WATTS`; runs record the limit."
        return [Check("power limit", "warn", " ".join(lowered), reason, todo)]
    return [Check("power limit", "ok", f"Power limits: {', '.join(limits)}.", reason)] if limits else []


def check_load() -> list[Check]:
    """Watch the machine for a moment, and the disk of the current folder, where results are written."""
    processes = _other_processes()
    psutil.cpu_times_percent(None)
    for process in processes:
        _percent(process)
    time.sleep(_WATCH_S)
    shares = psutil.cpu_times_percent(None)
    heavy = sorted(((_percent(process), process) for process in processes), key=lambda pair: -pair[0])
    return [
        _load(100.0 - shares.idle - getattr(shares, "iowait", 0.0)),
        _processes([(percent, process) for percent, process in heavy if percent >= 20.0][:5]),
        _steal(getattr(shares, "steal", None)),
        _memory(),
        _swap(),
        _disk(),
    ]


def _load(busy_percent: float) -> Check:
    reason = "Other programs distort the timing, sometimes severely."
    average, cores = os.getloadavg()[0], usable_cores()
    observed = f"The cores are {busy_percent:.0f} % busy; the load average is {average:.1f} on {cores:g} cores."
    if busy_percent > 75.0:
        return Check("load", "fail", observed, reason, "End the other work first, or wait for it.")
    if busy_percent > 15.0 or average > cores:  # below: also what has ended, such as an engine that was just built
        return Check("load", "warn", observed, reason, "End the other work, or wait a minute after it has ended.")
    return Check("load", "ok", observed, reason)


def _processes(heavy: list[tuple[float, psutil.Process]]) -> Check:
    reason = "Each program that computes beside the engine takes time, cache and memory bandwidth from it."
    if not heavy:
        return Check("processes", "ok", "No other visible program uses the processor.", reason)
    names = ", ".join(f"{_name(process)} ({percent:.0f} % of a core)" for percent, process in heavy)
    return Check("processes", "warn", f"Other programs use the processor: {names}.", reason, "End them, or wait.")


def _steal(percent: float | None) -> Check:
    reason = "The host of a virtual machine gave this time to other guests, so this guest stood still."
    if percent is None:
        return Check("steal", "unknown", "The system does not report stolen time.", reason)
    if percent > 1.0:
        todo = "Use a machine that is not shared, or more blocks."
        return Check("steal", "warn", f"The host took away {percent:.0f} % of the time (steal).", reason, todo)
    return Check("steal", "ok", "No CPU time was taken by the host of this virtual machine.", reason)


def _memory() -> Check:
    reason = "Models are mapped into memory; with too little of it they are read from disk again and again."
    memory = psutil.virtual_memory()
    observed = f"{memory.available / _GIB:.1f} of {memory.total / _GIB:.1f} GiB of memory are free."
    if memory.available < _GIB:
        return Check("memory", "fail", observed, reason, "Close programs that use much memory.")
    if memory.available < 0.25 * memory.total:
        return Check(
            "memory", "warn", observed, reason, "Both models must fit in what is free; close what uses the rest."
        )
    return Check("memory", "ok", observed, reason)


def _swap() -> Check:
    reason = "Memory that was swapped out comes back from disk in the middle of a run."
    swap = psutil.swap_memory()
    if not swap.used:
        return Check("swap", "ok", "No swap is in use." if swap.total else "There is no swap.", reason)
    observed = f"{swap.used / _GIB:.1f} of {swap.total / _GIB:.1f} GiB of swap are in use."
    if swap.used < 0.05 * psutil.virtual_memory().total:
        return Check("swap", "ok", observed, reason)
    return Check(
        "swap", "warn", observed, reason, "Close programs that use much memory; `swapoff -a && swapon -a` empties it."
    )


def _disk() -> Check:
    reason = "Records, engine logs and reports are written here; a full disk ends a run."
    try:
        free = psutil.disk_usage(".").free
    except OSError as error:
        return Check("disk", "unknown", f"Free disk space cannot be read: {error.strerror}.", reason)
    observed = f"{free / _GIB:.1f} GiB of disk are free in the current folder."
    if free < 0.2 * _GIB:
        return Check("disk", "fail", observed, reason, "Free some space.")
    return Check(
        "disk", "warn" if free < 2 * _GIB else "ok", observed, reason, "Free some space." if free < 2 * _GIB else None
    )


def _other_processes() -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if process.pid != os.getpid()]


def _percent(process: psutil.Process) -> float:
    """Return the share of a core since the last call; 0 where a process has ended or may not be read."""
    try:
        return process.cpu_percent(None)
    except psutil.Error:
        return 0.0


def _name(process: psutil.Process) -> str:
    try:
        return one_line(process.name(), 40)
    except psutil.Error:
        return "a process that has ended"
