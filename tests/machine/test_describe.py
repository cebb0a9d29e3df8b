"""Facts of machines other than this one, from copies of their system files."""

from __future__ import annotations

import getpass
import json
import platform
import sys
from pathlib import Path

import pytest

from benchctl.machine.describe import (
    accelerators,
    boost,
    container,
    cpu_identity,
    cpu_model,
    cpu_quota,
    describe_machine,
    governors,
    usable_cores,
    virtualised,
)

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux system files")

X86 = (
    "processor\t: 0\nmodel name\t: AMD Ryzen 9 7950X\nflags\t\t: fpu avx2 avx512f\n\n"
    "processor\t: 1\nmodel name\t: other\n"
)
ARM = "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"


def write(root: Path, **files: str) -> Path:
    """Write system files: double underscores stand for slashes, single ones stay."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def fake_program(folder: Path, name: str, prints: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / name
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_this_machine_is_described_without_names_of_people_or_hosts() -> None:
    facts = describe_machine()
    text = json.dumps(facts)
    assert facts["cpu"]
    assert facts["cores"] >= facts["usable_cores"] > 0
    assert facts["memory_bytes"] > facts["memory_available_bytes"] > 0
    assert set(facts) >= {"os", "kernel", "python", "accelerators", "governor", "boost", "virtualised", "swap_bytes"}
    assert f'"{platform.node()}"' not in text
    assert f'"{getpass.getuser()}"' not in text


@linux_only
def test_cpu_model(tmp_path: Path) -> None:
    assert cpu_model(write(tmp_path / "x86", proc__cpuinfo=X86)) == "AMD Ryzen 9 7950X"
    assert cpu_model(write(tmp_path / "arm", proc__cpuinfo=ARM)).endswith("implementer 0x41 part 0xd40")
    assert cpu_model(tmp_path / "nothing") == platform.machine()


@linux_only
def test_cpu_identity_tells_instruction_sets_apart(tmp_path: Path) -> None:
    first = cpu_identity(write(tmp_path / "one", proc__cpuinfo=X86))
    reordered = cpu_identity(write(tmp_path / "same", proc__cpuinfo=X86.replace("fpu avx2", "avx2 fpu")))
    poorer = cpu_identity(write(tmp_path / "poorer", proc__cpuinfo=X86.replace(" avx512f", "")))
    assert first == reordered
    assert first != poorer
    assert first.startswith("AMD Ryzen 9 7950X [")


def test_cpu_quota(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert cpu_quota(write(tmp_path / "max", **{"sys__fs__cgroup__cpu.max": "max 100000"})) is None
    root = write(
        tmp_path / "v2",
        proc__self__cgroup="0::/a/b\n",
        **{"sys__fs__cgroup__a__b__cpu.max": "max 100000", "sys__fs__cgroup__a__cpu.max": "150000 100000"},
    )
    assert cpu_quota(root) == 1.5
    v1 = {"sys__fs__cgroup__cpu__cpu.cfs_quota_us": "50000", "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000"}
    assert cpu_quota(write(tmp_path / "v1", **v1)) == 0.5
    assert usable_cores(tmp_path / "v1") == 0.5


def test_governors_and_boost(tmp_path: Path) -> None:
    assert governors(tmp_path) == set()
    assert boost(tmp_path) is None
    root = write(
        tmp_path,
        sys__devices__system__cpu__cpu0__cpufreq__scaling_governor="powersave\n",
        sys__devices__system__cpu__cpu1__cpufreq__scaling_governor="performance\n",
        sys__devices__system__cpu__cpufreq__boost="1\n",
    )
    assert governors(root) == {"powersave", "performance"}
    assert boost(root) is True
    assert boost(write(root, sys__devices__system__cpu__intel_pstate__no_turbo="1\n")) is False


@linux_only
def test_virtualised(tmp_path: Path) -> None:
    guest = X86.replace("fpu", "fpu hypervisor")
    vendor = {"sys__class__dmi__id__sys_vendor": "QEMU\n", "sys__class__dmi__id__product_name": "Standard PC\n"}
    metal = {"sys__class__dmi__id__sys_vendor": "Amazon EC2\n", "sys__class__dmi__id__product_name": "m7g.metal\n"}
    assert virtualised(tmp_path) is None
    assert virtualised(write(tmp_path / "metal", proc__cpuinfo=X86)) == "no"
    assert virtualised(write(tmp_path / "guest", proc__cpuinfo=guest)) == "virtual machine"
    assert virtualised(write(tmp_path / "qemu", proc__cpuinfo=guest, **vendor)) == "virtual machine (QEMU Standard PC)"
    assert virtualised(write(tmp_path / "arm", proc__cpuinfo=ARM)) is None
    assert virtualised(write(tmp_path / "graviton", proc__cpuinfo=ARM, **metal)) == "no"
    assert virtualised(write(tmp_path / "wsl", proc__sys__kernel__osrelease="6.6-microsoft-standard-WSL2")) == "WSL"


def test_container(tmp_path: Path) -> None:
    assert not container(tmp_path)
    assert container(write(tmp_path / "a", **{".dockerenv": ""}))
    assert container(write(tmp_path / "b", proc__1__cgroup="0::/kubepods/pod1\n"))


def test_nvidia_accelerators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accelerators() == []
    rows = "NVIDIA H200, 143771, 570.86.15, 700.00\nNVIDIA L4, [N/A], 570.86.15, [N/A]"
    fake_program(tmp_path, "nvidia-smi", rows, monkeypatch)
    assert accelerators() == [
        {"name": "NVIDIA H200", "memory_bytes": 143771 * 2**20, "driver": "570.86.15", "power_limit_w": 700.0},
        {"name": "NVIDIA L4", "memory_bytes": None, "driver": "570.86.15", "power_limit_w": None},
    ]


def test_apple(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    fake_program(tmp_path, "system_profiler", "  Chipset Model: Apple M3 Max\n  Metal Support: Metal 3", monkeypatch)
    fake_program(tmp_path, "sysctl", "Apple M3 Max", monkeypatch)
    assert accelerators() == [{"name": "Apple M3 Max", "memory_bytes": None, "driver": "Metal 3"}]
    assert cpu_model() == "Apple M3 Max"
    assert virtualised() is None
    fake_program(tmp_path, "sysctl", "0", monkeypatch)
    assert virtualised() == "no"
