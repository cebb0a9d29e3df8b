"""Each check in each of its states; what goes on in the machine is played by stand-ins for psutil's answers."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchctl.machine import doctor
from benchctl.machine.doctor import Check, check_machine

CPU = "sys/devices/system/cpu"
GIB = 2**30


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def named(checks: list[Check], name: str) -> Check:
    (check,) = (check for check in checks if check.id == name)
    return check


def test_every_check_tells_all_it_should() -> None:
    checks = check_machine()
    assert len({check.id for check in checks}) == len(checks) >= 12
    for check in checks:
        assert check.seen.endswith(".")
        assert check.why.endswith(".")
        assert check.state in {"ok", "warn", "fail", "unknown"}
        if check.state == "fail":
            assert check.todo


@pytest.mark.parametrize(
    ("files", "check", "state", "words"),
    [
        ({}, "governor", "unknown", "no frequency governor"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "performance"}, "governor", "ok", "performance"),
        ({f"{CPU}/cpu0/cpufreq/scaling_governor": "powersave"}, "governor", "warn", "powersave"),
        ({}, "boost", "unknown", "does not report"),
        ({f"{CPU}/intel_pstate/no_turbo": "0"}, "boost", "warn", "may boost"),
        ({f"{CPU}/intel_pstate/no_turbo": "1"}, "boost", "ok", "base clock"),
        ({f"{CPU}/cpufreq/boost": "0"}, "boost", "ok", "base clock"),
        ({f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "7"}, "heat", "warn", "7 times"),
        ({f"{CPU}/cpu1/thermal_throttle/core_throttle_count": "0"}, "heat", "ok", "No throttling"),
        ({}, "heat", "unknown", "neither"),
        ({"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"}, "clock", "warn", "hpet"),
        ({"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc"}, "clock", "ok", "tsc"),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, "sharing", "warn", "1.5 cores"),
        ({"proc/cpuinfo": "flags: fpu hypervisor\n"}, "sharing", "warn", "virtual machine"),
        ({"proc/cpuinfo": "flags: fpu\n"}, "sharing", "ok", "not a virtual machine"),
        ({}, "sharing", "unknown", "does not report"),
    ],
)
def test_settings_of_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], check: str, state: str, words: str
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(psutil, "sensors_temperatures", dict, raising=False)
    monkeypatch.setattr(doctor, "check_load", list)
    result = named(check_machine(write(tmp_path, files)), check)
    assert result.state == state
    assert words in result.seen


@pytest.mark.parametrize(
    ("program", "prints", "check", "state"),
    [
        ("pmset", " lowpowermode         1", "governor", "warn"),
        ("pmset", " lowpowermode         0", "governor", "ok"),
        ("pmset", " womp 1", "governor", "unknown"),
        ("sysctl", "1", "sharing", "warn"),
        ("sysctl", "0", "sharing", "ok"),
        ("nvidia-smi", "NVIDIA L4, 0, 40, 0x0000000000000001", "accelerator", "ok"),
        ("nvidia-smi", "NVIDIA L4, 97, 70, 0x0000000000000000", "accelerator", "warn"),
        ("nvidia-smi", "NVIDIA L4, 0, 90, 0x0000000000000020", "accelerator", "warn"),
        ("nvidia-smi", "NVIDIA L4, [N/A], [N/A], [N/A]", "accelerator", "ok"),
    ],
)
def test_settings_told_by_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, prints: str, check: str, state: str
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(doctor, "check_load", list)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / program).write_text(f"#!/bin/sh\necho '{prints}'\n")
    (tmp_path / program).chmod(0o755)
    assert named(check_machine(tmp_path / "root"), check).state == state


def test_hot_sensor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(doctor, "check_load", list)
    for current, state in ((95.0, "warn"), (45.0, "ok")):
        sensor = SimpleNamespace(current=current, high=100.0, critical=None)
        monkeypatch.setattr(psutil, "sensors_temperatures", lambda sensor=sensor: {"k10temp": [sensor]}, raising=False)
        assert named(check_machine(tmp_path), "heat").state == state


@pytest.mark.parametrize(("plugged", "state"), [(True, "ok"), (False, "warn"), (None, "unknown")])
def test_battery(plugged: bool | None, state: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    battery = SimpleNamespace(percent=50.0, power_plugged=plugged)
    monkeypatch.setattr(psutil, "sensors_battery", lambda: battery, raising=False)
    monkeypatch.setattr(doctor, "check_load", list)
    assert named(check_machine(tmp_path), "battery").state == state


class FakeProcess:
    """A process that always computes as much."""

    pid = -1

    def __init__(self, name: str, percent: float) -> None:
        self._name, self._percent = name, percent

    def cpu_percent(self, interval: float | None) -> float:
        if self._name == "gone":
            raise psutil.NoSuchProcess(1)
        return self._percent

    def name(self) -> str:
        return self._name


def watch(monkeypatch: pytest.MonkeyPatch, **seen: Any) -> list[Check]:
    """Run the checks of the load on a machine that answers as `seen` says; idle and roomy where it does not."""
    times = namedtuple("times", "user idle iowait steal")
    busy, steal = seen.get("busy", 1.0), seen.get("steal", 0.0)
    memory = SimpleNamespace(total=16 * GIB, available=int(seen.get("free", 12.0) * GIB))
    swap = SimpleNamespace(total=8 * GIB, used=int(seen.get("swapped", 0.0) * GIB))
    monkeypatch.setattr(doctor, "_WATCH_S", 0.0)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 4.0)
    monkeypatch.setattr("os.getloadavg", lambda: (seen.get("average", 0.1), 0.0, 0.0))
    monkeypatch.setattr(psutil, "cpu_times_percent", lambda interval: times(busy, 100.0 - busy, 0.0, steal))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    monkeypatch.setattr(psutil, "swap_memory", lambda: swap)
    monkeypatch.setattr(psutil, "disk_usage", lambda path: SimpleNamespace(free=int(seen.get("disk", 50.0) * GIB)))
    monkeypatch.setattr(psutil, "process_iter", lambda: iter(seen.get("processes", [])))
    return doctor.check_load()


@pytest.mark.parametrize(
    ("seen", "check", "state"),
    [
        ({}, "load", "ok"),
        ({"busy": 40.0}, "load", "warn"),
        ({"average": 3.0}, "load", "ok"),
        ({"average": 5.0}, "load", "warn"),
        ({"busy": 99.0}, "load", "fail"),
        ({}, "steal", "ok"),
        ({"steal": 4.0}, "steal", "warn"),
        ({"steal": None}, "steal", "unknown"),
        ({}, "memory", "ok"),
        ({"free": 2.0}, "memory", "warn"),
        ({"free": 0.5}, "memory", "fail"),
        ({}, "swap", "ok"),
        ({"swapped": 0.1}, "swap", "ok"),
        ({"swapped": 3.0}, "swap", "warn"),
        ({}, "disk", "ok"),
        ({"disk": 1.0}, "disk", "warn"),
        ({"disk": 0.1}, "disk", "fail"),
        ({}, "processes", "ok"),
        ({"processes": [FakeProcess("idle", 1.0), FakeProcess("gone", 0.0)]}, "processes", "ok"),
        ({"processes": [FakeProcess("training", 190.0)]}, "processes", "warn"),
    ],
)
def test_activity(monkeypatch: pytest.MonkeyPatch, seen: dict[str, Any], check: str, state: str) -> None:
    assert named(watch(monkeypatch, **seen), check).state == state


def test_a_process_cannot_act_through_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    check = named(watch(monkeypatch, processes=[FakeProcess("\x1b[2Jevil\n[bold]", 99.0)]), "processes")
    assert "␛[2Jevil⏎[bold]" in check.seen
