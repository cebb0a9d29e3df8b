"""NVIDIA's GPUs: what they are, how they are set, what they show. By NVML (the extra `gpu`), else by nvidia-smi.

NVML is a library of the driver: a reading takes 3 ms on an H100, where nvidia-smi is a program that starts each time.
What a GPU or a driver does not report is `None` or absent. Serial numbers and UUIDs are never asked for.
https://docs.nvidia.com/deploy/nvml-api lists the getters and their units (milliwatts, millijoules, MHz).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

from benchctl.machine.system import answer

POWER_CAPPED = 0x4
"""The bit of the clocks' event reasons for the power limit; the two masks are the same in NVML and nvidia-smi."""
SLOWED = 0xEC
"""The bits for power limit (4), hardware slow-down (8), heat (0x20, 0x40) and power brake (0x80)."""
_MIB = 1 << 20
_NVLINKS = 18
"""The most links that a GPU has (NVML_NVLINK_MAX_LINKS)."""
_ACCESSIBLE = 0
"""NVML_P2P_STATUS_OK, and NVML_P2P_CAPS_INDEX_READ."""


class Nvml:
    """NVML as the module `pynvml` of nvidia-ml-py has it, initialised; a question without an answer gives `None`."""

    def __init__(self, library: Any) -> None:  # noqa: ANN401 - a module without types
        self._library = library
        self.gpus: list[Any] = [
            self.ask("DeviceGetHandleByIndex", number) for number in range(self.ask("DeviceGetCount") or 0)
        ]

    def ask(self, getter: str, *arguments: object) -> Any:  # noqa: ANN401 - what a getter returns
        """Return what `nvml<getter>` returns, text as `str`; `None` where it is not supported, here or at all."""
        try:
            value = getattr(self._library, f"nvml{getter}")(*arguments)
        except (AttributeError, self._library.NVMLError):
            return None
        return value.decode(errors="replace") if isinstance(value, bytes) else value


@cache
def nvml() -> Nvml | None:
    """Return NVML where nvidia-ml-py and a driver are there."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except Exception:  # no package, no driver, or one that does not fit: nvidia-smi is asked
        return None
    return Nvml(library)


@dataclass(frozen=True)
class _Setting:
    """A setting of a GPU: how NVML and nvidia-smi name it, and how NVML's value is read."""

    key: str
    getter: str
    field: str
    read: Callable[[Any], Any] = lambda value: value
    arguments: tuple[int, ...] = ()


def _watts(milliwatts: int) -> float:
    return milliwatts / 1e3


def _first(states: Any) -> bool:  # noqa: ANN401 - current and pending state
    return bool(states[0])


_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_POWER = _Setting("power_limit_w", "DeviceGetPowerManagementLimit", "power.limit", _watts)
_SETTINGS = (
    _Setting("power_default_w", "DeviceGetPowerManagementDefaultLimit", "power.default_limit", _watts),
    _Setting("power_max_w", "DeviceGetPowerManagementLimitConstraints", "power.max_limit", lambda ends: ends[1] / 1e3),
    _Setting("clock_max_mhz", "DeviceGetMaxClockInfo", "clocks.max.sm", arguments=(1,)),
    _Setting("clock_limit_mhz", "DeviceGetApplicationsClock", "clocks.applications.graphics", arguments=(0,)),
    _Setting("memory_clock_max_mhz", "DeviceGetMaxClockInfo", "clocks.max.memory", arguments=(2,)),
    _Setting("pcie_generation", "DeviceGetCurrPcieLinkGeneration", "pcie.link.gen.current"),
    _Setting("pcie_generation_max", "DeviceGetMaxPcieLinkGeneration", "pcie.link.gen.max"),
    _Setting("pcie_width", "DeviceGetCurrPcieLinkWidth", "pcie.link.width.current"),
    _Setting("pcie_width_max", "DeviceGetMaxPcieLinkWidth", "pcie.link.width.max"),
    _Setting("compute_mode", "DeviceGetComputeMode", "compute_mode", _COMPUTE_MODES.get),
    _Setting("ecc", "DeviceGetEccMode", "ecc.mode.current", _first),
    _Setting("persistence", "DeviceGetPersistenceMode", "persistence_mode", bool),
    _Setting("mig", "DeviceGetMigMode", "mig.mode.current", _first),
)


def devices() -> list[dict[str, Any]]:
    """Return name, memory, driver and power limit of every GPU: with these equal, two machines' GPUs are alike."""
    library = nvml()
    if library is None:
        rows = nvidia_rows(f"--query-gpu=name,memory.total,driver_version,{_POWER.field}")
        return [
            _device(row[0], int(row[1]) * _MIB if row[1].isdigit() else None, row[2], _cell(row[3]))
            for row in rows
            if len(row) == 4
        ]
    driver = library.ask("SystemGetDriverVersion")
    return [
        _device(
            library.ask("DeviceGetName", gpu),
            getattr(library.ask("DeviceGetMemoryInfo", gpu), "total", None),
            driver,
            _setting(library, gpu, _POWER),
        )
        for gpu in library.gpus
    ]


def _device(name: str, memory_bytes: int | None, driver: str, watts: object) -> dict[str, Any]:
    limit = float(watts) if isinstance(watts, int | float) else None
    return {"name": name, "memory_bytes": memory_bytes, "driver": driver, _POWER.key: limit}


def settings() -> list[dict[str, Any]]:
    """Return how every GPU is set and connected: watts, MHz, counts; what is not reported is left out.

    By NVML also `memory_bandwidth` in bytes a second by clock and bus width, `nvlinks` that are up, and `peer_access`:
    the numbers of the GPUs whose memory it reads directly.
    """
    library = nvml()
    if library is None:
        rows = nvidia_rows(f"--query-gpu={','.join(setting.field for setting in _SETTINGS)}")
        rows = [row for row in rows if len(row) == len(_SETTINGS)]
        given: list[dict[str, Any]] = [{s.key: _cell(cell) for s, cell in zip(_SETTINGS, row, strict=True)}
                                       for row in rows]  # fmt: skip
    else:
        given = [{s.key: _setting(library, gpu, s) for s in _SETTINGS} | _links(library, gpu) for gpu in library.gpus]
        for one, other in combinations(range(len(library.gpus)), 2):
            pair = library.gpus[one], library.gpus[other]
            if library.ask("DeviceGetP2PStatus", *pair, _ACCESSIBLE) == _ACCESSIBLE:
                given[one].setdefault("peer_access", []).append(other)
                given[other].setdefault("peer_access", []).append(one)
    return [{key: value for key, value in gpu.items() if value is not None} for gpu in given]


def _setting(library: Nvml, gpu: object, setting: _Setting) -> Any:  # noqa: ANN401 - a number, a switch or a word
    value = library.ask(setting.getter, gpu, *setting.arguments)
    return None if value is None else setting.read(value)


def _links(library: Nvml, gpu: object) -> dict[str, Any]:
    bits, clock = library.ask("DeviceGetMemoryBusWidth", gpu), library.ask("DeviceGetMaxClockInfo", gpu, 2)
    states = [library.ask("DeviceGetNvLinkState", gpu, link) for link in range(_NVLINKS)]
    reported = [state for state in states if state is not None]
    return {
        "memory_bandwidth": bits * 2 * clock * 1_000_000 // 8 if bits and clock else None,  # two transfers a cycle
        "nvlinks": sum(map(bool, reported)) if reported else None,
    }


def _cell(text: str) -> float | bool | str | None:
    """Return what a cell of nvidia-smi says; `None` for `[N/A]` and the like."""
    if text.startswith("[") or text == "N/A":
        return None
    if text in ("Enabled", "Disabled"):
        return text == "Enabled"
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def compute_capabilities() -> list[str]:
    """Return what code of each kind of GPU here is compiled for, such as `90` for 9.0."""
    library = nvml()
    if library is None:
        versions: list[Sequence[object]] = [row[0].split(".") for row in nvidia_rows("--query-gpu=compute_cap")]
    else:
        versions = [library.ask("DeviceGetCudaComputeCapability", gpu) or () for gpu in library.gpus]
    named = ("".join(map(str, version)) for version in versions if len(version) == 2)
    return list(dict.fromkeys(name for name in named if name.isdigit()))


@dataclass(frozen=True)
class GpuState:
    """What a GPU does right now."""

    name: str
    busy_percent: int | None
    celsius: int | None
    reasons: int
    """Bits of why its clocks are lowered; 0 where it is not reported."""


def states() -> list[GpuState]:
    """Return what every GPU does right now."""
    library = nvml()
    if library is not None:
        return [
            GpuState(
                library.ask("DeviceGetName", gpu),
                getattr(library.ask("DeviceGetUtilizationRates", gpu), "gpu", None),
                library.ask("DeviceGetTemperature", gpu, 0),
                _reasons(library, gpu),
            )
            for gpu in library.gpus
        ]
    rows = nvidia_rows("--query-gpu=name,utilization.gpu,temperature.gpu,clocks_throttle_reasons.active")
    return [
        GpuState(name, _count(busy), _count(celsius), _mask(mask))
        for name, busy, celsius, mask in (row for row in rows if len(row) == 4)
    ]


def _reasons(library: Nvml, gpu: object) -> int:
    reasons = library.ask("DeviceGetCurrentClocksEventReasons", gpu)
    return reasons if reasons is not None else library.ask("DeviceGetCurrentClocksThrottleReasons", gpu) or 0


def _count(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _mask(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def process_bytes() -> dict[int, int]:
    """Return the bytes of each computing process on all GPUs; empty where the driver lists none, as in containers."""
    library = nvml()
    listed: list[tuple[int, int]]
    if library is None:
        rows = nvidia_rows("--query-compute-apps=pid,used_memory")
        listed = [(int(row[0]), int(row[1]) * _MIB) for row in rows if len(row) == 2 and all(map(str.isdigit, row))]
    else:
        processes = [
            process for gpu in library.gpus for process in library.ask("DeviceGetComputeRunningProcesses", gpu) or ()
        ]
        listed = [(process.pid, process.usedGpuMemory) for process in processes if process.usedGpuMemory is not None]
    sizes: dict[int, int] = {}
    for pid, size in listed:
        sizes[pid] = sizes.get(pid, 0) + size
    return sizes


def free_memory() -> list[int]:
    """Return the free bytes of every GPU that reports them."""
    library = nvml()
    if library is None:
        return [int(row[0]) * _MIB for row in nvidia_rows("--query-gpu=memory.free") if row[0].isdigit()]
    reports = [library.ask("DeviceGetMemoryInfo", gpu) for gpu in library.gpus]
    return [report.free for report in reports if report is not None]


class NvmlPower:
    """Energy and sensors of all GPUs, from its creation until `stop`; every GPU must count its energy (`counted`)."""

    problem = None

    def __init__(self, library: Nvml) -> None:
        self._library = library
        self._since = time.monotonic()
        self._began = self._millijoules()

    @property
    def counted(self) -> bool:
        """Whether there is a GPU, and all of them count their energy: from Volta on."""
        return bool(self._began) and None not in self._began

    def stop(self) -> float | None:
        """Return the mean power in watts of all GPUs together, by their counters of energy."""
        seconds = time.monotonic() - self._since
        rises = [late - early for late, early in zip(self._millijoules(), self._began, strict=True)
                 if late is not None and early is not None]  # fmt: skip
        return sum(rises) / 1e3 / seconds if rises and seconds > 0 else None

    @property
    def latest(self) -> dict[str, Mapping[str, float]]:
        """What each GPU shows now: `w`, `mhz`, `c`, `bytes`, and `capped`, 100 at its power limit and else 0."""
        shown: dict[str, Mapping[str, float]] = {}
        for number, gpu in enumerate(self._library.gpus):
            milliwatts = self._library.ask("DeviceGetPowerUsage", gpu)
            reading = {
                "w": None if milliwatts is None else milliwatts / 1e3,
                "mhz": self._library.ask("DeviceGetClockInfo", gpu, 1),
                "c": self._library.ask("DeviceGetTemperature", gpu, 0),
                "bytes": getattr(self._library.ask("DeviceGetMemoryInfo", gpu), "used", None),
                "capped": 100.0 * bool(_reasons(self._library, gpu) & POWER_CAPPED),
            }
            shown[str(number)] = {key: float(value) for key, value in reading.items() if value is not None}
        return shown

    def _millijoules(self) -> list[int | None]:
        return [self._library.ask("DeviceGetTotalEnergyConsumption", gpu) for gpu in self._library.gpus]


def nvidia_rows(query: str) -> list[list[str]]:
    """Return what nvidia-smi prints for a query, a list of cells a row; nothing where it is not there or fails."""
    output = answer("nvidia-smi", query, "--format=csv,noheader,nounits") or ""
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
