"""What kind of machine this is: the facts that a manifest records beside every run.

No user name, no host name, no serial number. What cannot be read is `None`, never a guess. Every reader takes the
root folder below which /proc and /sys lie, so that other machines can be tried here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

import psutil

from benchctl.machine import nvidia
from benchctl.machine.system import ROOT, answer, read


def describe_machine(root: Path = ROOT) -> dict[str, Any]:
    """Return the machine as flat, JSON-able facts; sizes in bytes, cores as logical cores unless named physical."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "cpu": cpu_model(root),
        "cores": os.cpu_count(),
        "physical_cores": psutil.cpu_count(logical=False),
        "usable_cores": usable_cores(root),
        "cpu_quota": cpu_quota(root),
        "architecture": platform.machine(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "swap_bytes": swap.total,
        "swap_used_bytes": swap.used,
        "accelerators": accelerators(),
        "accelerator_settings": [] if sys.platform == "darwin" else nvidia.settings(),
        "os": _operating_system(root),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "governor": ", ".join(sorted(governors(root))) or None,
        "boost": boost(root),
        "virtualised": virtualised(root),
        "container": container(root),
    }


def governors(root: Path = ROOT) -> set[str]:
    """Return the frequency governors in use over all cores; empty where the system reports none."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    return {text for file in files if (text := read(file))}


def boost(root: Path = ROOT) -> bool | None:
    """Return whether cores may run above their base clock, or `None` where the system does not report it."""
    cpu = root / "sys/devices/system/cpu"
    if no_turbo := read(cpu / "intel_pstate/no_turbo"):
        return no_turbo == "0"
    if allowed := read(cpu / "cpufreq/boost"):
        return allowed == "1"
    return None


def virtualised(root: Path = ROOT) -> str | None:
    """Return what kind of virtual machine this is, `no` on bare metal, `None` where the system does not report it."""
    if sys.platform == "darwin":
        return {"1": "virtual machine", "0": "no"}.get(answer("sysctl", "-n", "kern.hv_vmm_present") or "")
    if "microsoft" in read(root / "proc/sys/kernel/osrelease").lower():
        return "WSL"
    dmi = " ".join(read(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")).strip()
    flags = re.search(r"^flags\s*:(.*)$", read(root / "proc/cpuinfo"), re.MULTILINE)
    if flags and "hypervisor" in flags[1].split():
        return f"virtual machine ({dmi})" if dmi else "virtual machine"
    if re.search(r"QEMU|KVM|VMware|VirtualBox|Xen|Bochs|Virtual Machine|Google Compute|Amazon EC2|Parallels", dmi):
        # Amazon's bare-metal instances carry the vendor's name, too.
        return "no" if ".metal" in dmi else f"virtual machine ({dmi})"
    return "no" if flags or dmi else None


def container(root: Path = ROOT) -> bool:
    """Return whether this process runs in a container, by the usual marks."""
    marks = (root / ".dockerenv", root / "run/.containerenv")
    groups = read(root / "proc/1/cgroup")
    return any(mark.exists() for mark in marks) or bool(re.search(r"docker|kubepods|containerd|lxc", groups))


def accelerators() -> list[dict[str, Any]]:
    """Return the GPUs as `{name, memory_bytes, driver}`; NVIDIA's also with their power limit."""
    if sys.platform == "darwin":
        output = answer("system_profiler", "SPDisplaysDataType") or ""
        names = re.findall(r"Chipset Model: (.+)", output)
        metal = re.search(r"Metal(?: Support| Family)?: (.+)", output)
        return [{"name": name, "memory_bytes": None, "driver": metal and metal[1]} for name in names]
    return nvidia.devices()


def _operating_system(root: Path) -> str:
    if sys.platform == "darwin":
        return f"macOS {platform.mac_ver()[0]}"
    name = re.search(r'^PRETTY_NAME="?([^"\n]+)', read(root / "etc/os-release"), re.MULTILINE)
    return name[1] if name else platform.system()


def cpu_model(root: Path = ROOT) -> str:
    """Return the processor's name as the system reports it, at worst the architecture. `root` is where /proc lies."""
    if sys.platform == "darwin":
        return answer("sysctl", "-n", "machdep.cpu.brand_string") or platform.machine()
    first_core = _first_core(root)
    for key in ("model name", "Model Name", "Hardware", "cpu model", "cpu"):
        if first_core.get(key):
            return first_core[key]
    if "CPU part" in first_core:  # most ARM kernels give numbers only
        return (
            f"{platform.machine()} implementer {first_core.get('CPU implementer', '?')} part {first_core['CPU part']}"
        )
    return platform.machine()


def cpu_identity(root: Path = ROOT) -> str:
    """Return the name and eight hex digits of the instruction set: where both are equal, code built on either machine
    runs on both.

    The name alone is not enough, since virtual machines call several generations by the same name.
    """
    if sys.platform == "darwin":
        features = answer("sysctl", "-n", "machdep.cpu.features") or ""
    else:
        first_core = _first_core(root)
        features = first_core.get("flags") or first_core.get("Features") or first_core.get("isa") or ""
    digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:8]
    return f"{cpu_model(root)} [{digest}]"


def usable_cores(root: Path = ROOT) -> float:
    """Return how many logical cores this process may keep busy: its affinity, capped by the cgroup's quota."""
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return float(cores) if quota is None else min(float(cores), quota)


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the cgroup's CPU quota in cores, or `None` without any (version 2 and version 1 hierarchies)."""
    groups = root / "sys/fs/cgroup"
    cgroup = re.search(r"^0::(/.*)$", read(root / "proc/self/cgroup"), re.MULTILINE)
    quotas = []
    folder = groups / cgroup.group(1).strip("/") if cgroup else groups
    for parent in (folder, *folder.parents):  # every ancestor's limit holds
        limit, _, period = read(parent / "cpu.max").strip().partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            quotas.append(int(limit) / int(period))
        if parent == groups:
            break
    limit, period = (read(groups / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if limit.isdigit() and period.isdigit() and int(period):
        quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def _first_core(root: Path) -> dict[str, str]:
    lines = read(root / "proc/cpuinfo").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}
