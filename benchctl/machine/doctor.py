"""Is this machine fit to measure? Its settings: clock, power, heat, sharing. What goes on in it: `activity`."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

from benchctl.machine.check import Check
from benchctl.machine.current_load import check_activity
from benchctl.machine.describe import ROOT, answer, boost, container, governors, read, virtualised
from benchctl.machine.processor import cpu_quota

_GOOD_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "riscv_clocksource"})
_NEAR_LIMIT_CELSIUS = 10.0


def check_machine(root: Path = ROOT) -> list[Check]:
    """Look at everything that makes measurements on this machine less trustworthy; takes about half a second."""
    mac = sys.platform == "darwin"
    return [
        _low_power_mode() if mac else _governor(root),
        _boost(root),
        _mac_heat() if mac else _heat(root),
        _battery(),
        _clock(root),
        _sharing(root),
        *check_activity(),
        _accelerator(),
    ]


def _governor(root: Path) -> Check:
    why = "A governor that changes the clock with the load makes short measurements slower and more spread out."
    found = governors(root)
    if not found:
        return Check("governor", "unknown", "The system tells no frequency governor.", why)
    names = ", ".join(sorted(found))
    if found == {"performance"}:
        return Check("governor", "ok", "The frequency governor is performance.", why)
    todo = "Run `sudo cpupower frequency-set -g performance` for the time of the measurement."
    return Check("governor", "warn", f"The frequency governor is {names}.", why, todo)


def _low_power_mode() -> Check:
    why = "Low power mode lowers the clock."
    mode = re.search(r"lowpowermode\s+(\d)", answer("pmset", "-g") or "")
    if mode is None:
        return Check("governor", "unknown", "macOS does not tell whether low power mode is on.", why)
    if mode[1] == "0":
        return Check("governor", "ok", "Low power mode is off.", why)
    return Check("governor", "warn", "Low power mode is on.", why, "Switch it off in System Settings › Battery.")


def _boost(root: Path) -> Check:
    why = "A boosted clock depends on temperature and on what other cores do, so runs differ more from each other."
    allowed = boost(root)
    if allowed is None:
        return Check("boost", "unknown", "The system does not tell whether cores may boost their clock.", why)
    if not allowed:
        return Check("boost", "ok", "Cores keep to their base clock.", why)
    switch = "intel_pstate/no_turbo" if read(root / "sys/devices/system/cpu/intel_pstate/no_turbo") else "cpufreq/boost"
    value = "1" if switch.endswith("no_turbo") else "0"
    todo = (
        f"For the steadiest figures: `echo {value} | sudo tee /sys/devices/system/cpu/{switch}`; else use more blocks."
    )
    return Check("boost", "warn", "Cores may boost their clock.", why, todo)


def _heat(root: Path) -> Check:
    import psutil

    why = "A processor that gets too hot slows itself down in the middle of a run."
    todo = "Let the machine cool, give it air, and put a pause between runs."
    counters = list((root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count"))
    throttled = max((int(text) for file in counters if (text := read(file)).isdigit()), default=0)
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    readings = [(one.current, one.high or one.critical) for group in sensors.values() for one in group if one.current]
    near = [current for current, limit in readings if limit and current > limit - _NEAR_LIMIT_CELSIUS]
    if near:
        return Check("heat", "warn", f"A sensor reads {max(near):.0f} °C, which is close to its limit.", why, todo)
    if throttled:
        return Check("heat", "warn", f"Cores were throttled by heat {throttled} times since the start.", why, todo)
    if not readings and not counters:
        return Check("heat", "unknown", "The system tells neither temperatures nor throttling.", why)
    hottest = f" The hottest sensor reads {max(current for current, _ in readings):.0f} °C." if readings else ""
    return Check("heat", "ok", f"No throttling was seen.{hottest}", why)


def _mac_heat() -> Check:
    why = "A processor that gets too hot slows itself down in the middle of a run."
    told = answer("pmset", "-g", "therm")
    if told is None:
        return Check("heat", "unknown", "macOS does not tell about heat.", why)
    limit = re.search(r"CPU_Speed_Limit\s*=\s*(\d+)", told)
    if limit and int(limit[1]) < 100:
        return Check(
            "heat", "warn", f"The clock is held at {limit[1]} % because of heat.", why, "Let the machine cool."
        )
    return Check("heat", "ok", "No throttling was seen.", why)


def _battery() -> Check:
    import psutil

    why = "On battery the system saves power and lowers the clock as the charge falls."
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None:
        return Check("battery", "ok", "There is no battery.", why)
    if battery.power_plugged is None:
        return Check("battery", "unknown", "The system does not tell whether it runs on battery.", why)
    if battery.power_plugged:
        return Check("battery", "ok", "The machine is plugged in.", why)
    return Check("battery", "warn", f"The machine runs on battery ({battery.percent:.0f} %).", why, "Plug it in.")


def _clock(root: Path) -> Check:
    why = "Every token is timed; a clock that is coarse or slow to read blurs what it measures."
    source = read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
    resolution = time.get_clock_info("perf_counter").resolution
    if resolution > 1e-6:
        return Check("clock", "warn", f"The clock moves in steps of {resolution * 1e6:.0f} µs.", why)
    if source and source not in _GOOD_CLOCKS:
        todo = "See whether the kernel calls the faster one unstable: `dmesg | grep -i clocksource`."
        return Check("clock", "warn", f"The clock source is {source}, which is slow to read.", why, todo)
    return Check("clock", "ok", f"The clock has steps below 1 µs{f' (source {source})' if source else ''}.", why)


def _sharing(root: Path) -> Check:
    why = "On a shared machine others take time and cache that no tool inside can see."
    todo = "Use more blocks, and do not trust small differences."
    quota = cpu_quota(root)
    if quota is not None:
        seen = f"A quota of {quota:g} cores is set on this process's group; above it, it is stopped for moments."
        return Check("sharing", "warn", seen, why, "Raise the quota, or run with no more threads than it has cores.")
    kind = virtualised(root)
    inside = " In it, this is a container." if container(root) else ""
    if kind is None:
        return Check("sharing", "unknown", f"The system does not tell whether it is virtual.{inside}", why)
    if kind != "no":
        return Check("sharing", "warn", f"This is a {kind}.{inside}", why, todo)
    return Check("sharing", "ok", f"This is no virtual machine.{inside}", why)


def _accelerator() -> Check:
    why = "Work of others on the accelerator, or a clock it lowered because of heat or power, changes every figure."
    fields = "name,utilization.gpu,temperature.gpu,clocks_throttle_reasons.active"
    told = answer("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    rows = [[cell.strip() for cell in line.split(",")] for line in (told or "").splitlines()]
    if not rows:
        return Check("accelerator", "ok", "No accelerator tells of its state here.", why)
    problems = []
    for name, busy, celsius, reasons in (row for row in rows if len(row) == 4):
        if busy.isdigit() and int(busy) > 5:
            problems.append(f"{name} is {busy} % busy.")
        if _slowed(reasons):
            problems.append(f"{name} has lowered its clock because of heat or power ({celsius} °C).")
    if problems:
        return Check("accelerator", "warn", " ".join(problems), why, "See `nvidia-smi`: end what runs there, or wait.")
    return Check("accelerator", "ok", f"Idle: {', '.join(row[0] for row in rows)}.", why)


def _slowed(reasons: str) -> bool:
    """Whether NVIDIA's bit mask has power cap (4), hardware slow-down (8), heat (0x20, 0x40) or power brake (0x80)."""
    try:
        return bool(int(reasons, 16) & 0xEC)
    except ValueError:
        return False
