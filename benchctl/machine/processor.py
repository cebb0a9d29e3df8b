"""The processor of this machine: its name, its instruction set, and how many cores a process may really use."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from pathlib import Path


def cpu_model(root: Path = Path("/")) -> str:
    """Return the processor's name as the system reports it, at worst the architecture. `root` is where /proc lies."""
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    first_core = _first_core(root)
    for key in ("model name", "Model Name", "Hardware", "cpu model", "cpu"):
        if first_core.get(key):
            return first_core[key]
    if "CPU part" in first_core:  # most ARM kernels give numbers only
        return (
            f"{platform.machine()} implementer {first_core.get('CPU implementer', '?')} part {first_core['CPU part']}"
        )
    return platform.machine()


def cpu_identity(root: Path = Path("/")) -> str:
    """Return the name and eight hex digits of the instruction set: code built for one runs on the other when equal.

    The name alone is not enough, since virtual machines call several generations by one name.
    """
    if sys.platform == "darwin":
        features = _sysctl("machdep.cpu.features") or ""
    else:
        first_core = _first_core(root)
        features = first_core.get("flags") or first_core.get("Features") or first_core.get("isa") or ""
    digest = hashlib.sha256(" ".join(sorted(features.split())).encode()).hexdigest()[:8]
    return f"{cpu_model(root)} [{digest}]"


def usable_cores(root: Path = Path("/")) -> float:
    """Return how many logical cores this process may keep busy: its affinity, capped by the cgroup's quota."""
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota(root)
    return float(cores) if quota is None else min(float(cores), quota)


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the cgroup's CPU quota in cores, or `None` without one (version 2 and version 1 hierarchies)."""
    groups = root / "sys/fs/cgroup"
    own = re.search(r"^0::(/.*)$", _read(root / "proc/self/cgroup"), re.MULTILINE)
    quotas = []
    folder = groups / own.group(1).strip("/") if own else groups
    for parent in (folder, *folder.parents):  # every ancestor's limit holds
        limit, _, period = _read(parent / "cpu.max").strip().partition(" ")
        if limit.isdigit() and period.isdigit() and int(period):
            quotas.append(int(limit) / int(period))
        if parent == groups:
            break
    limit, period = (_read(groups / "cpu" / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
    if limit.isdigit() and period.isdigit() and int(period):
        quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def _first_core(root: Path) -> dict[str, str]:
    lines = _read(root / "proc/cpuinfo").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _sysctl(name: str) -> str | None:
    try:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
