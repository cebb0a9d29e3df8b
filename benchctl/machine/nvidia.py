"""NVIDIA's GPUs: what they are, how they are set, what they show. By NVML (the extra `gpu`), else by nvidia-smi.

NVML is a library of the driver: a reading takes 3 ms on an H100, where nvidia-smi is a program that starts each time.
What a GPU or a driver does not report is `None` or absent. Serial numbers and UUIDs are never asked for.
https://docs.nvidia.com/deploy/nvml-api lists the getters and their units (milliwatts, millijoules, MHz).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
_OLDER = {"DeviceGetCurrentClocksEventReasons": "DeviceGetCurrentClocksThrottleReasons"}
"""What drivers before 535 call a getter."""


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
            return self.ask(_OLDER[getter], *arguments) if getter in _OLDER else None
        return value.decode(errors="replace") if isinstance(value, bytes) else value

    def facts(self, facts: Sequence[_Fact], gpu: object) -> dict[str, Any]:
        """Return facts of a GPU by their keys; `None` for what is not reported."""
        values = {
            fact: self.ask(fact.getter, *() if fact.getter.startswith("System") else (gpu,), *fact.arguments)
            for fact in facts
        }
        return {fact.key: None if value is None else fact.read(value) for fact, value in values.items()}


@cache
def nvml() -> Nvml | None:
    """Return NVML where nvidia-ml-py and a driver are there."""
    try:
        library = importlib.import_module("pynvml")
        library.nvmlInit()
    except Exception:  # no package, no driver, or one that does not fit: nvidia-smi is asked
        return None
    return Nvml(library)


def _cell(text: str) -> float | bool | str:
    if text in ("Enabled", "Disabled"):
        return text == "Enabled"
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


def _number(text: str) -> float | None:
    value = _cell(text)
    return None if isinstance(value, str) else value


def _mebibytes(text: str) -> int | None:
    return int(text) * _MIB if text.isdigit() else None


def _mask(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None


def _watts(milliwatts: int) -> float:
    return milliwatts / 1e3


def _first(states: Any) -> bool:  # noqa: ANN401 - current and pending state
    return bool(states[0])


@dataclass(frozen=True)
class _Fact:
    """A fact of a GPU: how NVML and nvidia-smi name it, and how the value of each is read."""

    key: str
    getter: str
    field: str
    read: Callable[[Any], Any] = lambda value: value
    arguments: tuple[int, ...] = ()
    parse: Callable[[str], Any] = _cell

    def of_cell(self, cell: str) -> Any:  # noqa: ANN401 - a number, a switch or a word
        """Return what a cell of nvidia-smi says; `None` for `[N/A]` and the like."""
        return None if cell.startswith("[") or cell == "N/A" else self.parse(cell)


def _of_all(facts: Sequence[_Fact]) -> list[dict[str, Any]]:
    """Return facts of every GPU by their keys; `None` for what is not reported."""
    library = nvml()
    if library is not None:
        return [library.facts(facts, gpu) for gpu in library.gpus]
    rows = nvidia_rows(f"--query-gpu={','.join(fact.field for fact in facts)}")
    rows = [row for row in rows if len(row) == len(facts)]
    return [{fact.key: fact.of_cell(cell) for fact, cell in zip(facts, row, strict=True)} for row in rows]


_COMPUTE_MODES = {0: "Default", 1: "Exclusive_Thread", 2: "Prohibited", 3: "Exclusive_Process"}
_NAME = _Fact("name", "DeviceGetName", "name", parse=str)
_DEVICE = (
    _NAME,
    _Fact("memory_bytes", "DeviceGetMemoryInfo", "memory.total", lambda memory: memory.total, parse=_mebibytes),
    _Fact("driver", "SystemGetDriverVersion", "driver_version", parse=str),
    _Fact("power_limit_w", "DeviceGetPowerManagementLimit", "power.limit", _watts, parse=_number),
)
_SETTINGS = (
    _Fact("power_default_w", "DeviceGetPowerManagementDefaultLimit", "power.default_limit", _watts),
    _Fact("power_max_w", "DeviceGetPowerManagementLimitConstraints", "power.max_limit", lambda ends: ends[1] / 1e3),
    _Fact("clock_max_mhz", "DeviceGetMaxClockInfo", "clocks.max.sm", arguments=(1,)),
    _Fact("clock_limit_mhz", "DeviceGetApplicationsClock", "clocks.applications.graphics", arguments=(0,)),
    _Fact("memory_clock_max_mhz", "DeviceGetMaxClockInfo", "clocks.max.memory", arguments=(2,)),
    _Fact("pcie_generation", "DeviceGetCurrPcieLinkGeneration", "pcie.link.gen.current"),
    _Fact("pcie_generation_max", "DeviceGetMaxPcieLinkGeneration", "pcie.link.gen.max"),
    _Fact("pcie_width", "DeviceGetCurrPcieLinkWidth", "pcie.link.width.current"),
    _Fact("pcie_width_max", "DeviceGetMaxPcieLinkWidth", "pcie.link.width.max"),
    _Fact("compute_mode", "DeviceGetComputeMode", "compute_mode", _COMPUTE_MODES.get),
    _Fact("ecc", "DeviceGetEccMode", "ecc.mode.current", _first),
    _Fact("persistence", "DeviceGetPersistenceMode", "persistence_mode", bool),
    _Fact("mig", "DeviceGetMigMode", "mig.mode.current", _first),
)


_CAPABILITY = _Fact(
    "capability",
    "DeviceGetCudaComputeCapability",
    "compute_cap",
    lambda parts: "".join(map(str, parts)),
    parse=lambda text: text.replace(".", ""),
)
_FREE = _Fact("free", "DeviceGetMemoryInfo", "memory.free", lambda memory: memory.free, parse=_mebibytes)
_CELSIUS = _Fact("celsius", "DeviceGetTemperature", "temperature.gpu", arguments=(0,), parse=_number)
_REASONS = _Fact("reasons", "DeviceGetCurrentClocksEventReasons", "clocks_throttle_reasons.active", parse=_mask)
_STATE = (
    _NAME,
    _Fact("busy_percent", "DeviceGetUtilizationRates", "utilization.gpu", lambda rates: rates.gpu, parse=_number),
    _CELSIUS,
    _REASONS,
)
SHOWN = (
    _Fact("w", "DeviceGetPowerUsage", "power.draw", _watts, parse=_number),
    _Fact("mhz", "DeviceGetClockInfo", "clocks.sm", arguments=(1,), parse=_number),
    replace(_CELSIUS, key="c"),
    _Fact("bytes", "DeviceGetMemoryInfo", "memory.used", lambda memory: memory.used, parse=_mebibytes),
)
"""What a GPU shows at a time."""
_CAPPED = replace(_REASONS, key="capped", read=lambda reasons: 100 * bool(reasons & POWER_CAPPED))


def devices() -> list[dict[str, Any]]:
    """Return name, memory, driver and power limit of every GPU: with these equal, two machines' GPUs are alike."""
    return _of_all(_DEVICE)


def settings() -> list[dict[str, Any]]:
    """Return how every GPU is set and connected: watts, MHz, counts; what is not reported is left out.

    By NVML also `memory_bandwidth` in bytes a second by clock and bus width, `nvlinks` that are up, and `peer_access`:
    the numbers of the GPUs whose memory it reads directly.
    """
    rows, library = _of_all(_SETTINGS), nvml()
    if library is not None:
        for row, gpu in zip(rows, library.gpus, strict=True):
            row.update(_links(library, gpu))
        for (index, gpu), (peer_index, peer) in combinations(enumerate(library.gpus), 2):
            if library.ask("DeviceGetP2PStatus", gpu, peer, _ACCESSIBLE) == _ACCESSIBLE:
                rows[index].setdefault("peer_access", []).append(peer_index)
                rows[peer_index].setdefault("peer_access", []).append(index)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


def _links(library: Nvml, gpu: object) -> dict[str, Any]:
    bits, clock = library.ask("DeviceGetMemoryBusWidth", gpu), library.ask("DeviceGetMaxClockInfo", gpu, 2)
    states = [library.ask("DeviceGetNvLinkState", gpu, link) for link in range(_NVLINKS)]
    reported = [state for state in states if state is not None]
    return {
        "memory_bandwidth": bits * 2 * clock * 1_000_000 // 8 if bits and clock else None,  # two transfers a cycle
        "nvlinks": sum(map(bool, reported)) if reported else None,
    }


def compute_capabilities() -> list[str]:
    """Return what code of each kind of GPU here is compiled for, such as `90` for 9.0."""
    named = (gpu["capability"] or "" for gpu in _of_all((_CAPABILITY,)))
    return list(dict.fromkeys(name for name in named if name.isdigit()))


@dataclass(frozen=True)
class GpuState:
    """What a GPU does right now."""

    name: str
    busy_percent: int | None
    celsius: int | None
    reasons: int | None
    """Bits of why its clocks are lowered."""


def states() -> list[GpuState]:
    """Return what every GPU does right now."""
    return [GpuState(**gpu) for gpu in _of_all(_STATE)]


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
    return [gpu["free"] for gpu in _of_all((_FREE,)) if gpu["free"] is not None]


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
        shown = [self._library.facts((*SHOWN, _CAPPED), gpu) for gpu in self._library.gpus]
        return {
            str(number): {key: float(value) for key, value in reading.items() if value is not None}
            for number, reading in enumerate(shown)
        }

    def _millijoules(self) -> list[int | None]:
        return [self._library.ask("DeviceGetTotalEnergyConsumption", gpu) for gpu in self._library.gpus]


def nvidia_rows(query: str) -> list[list[str]]:
    """Return what nvidia-smi prints for a query, a list of cells a row; nothing where it is not there or fails."""
    output = answer("nvidia-smi", query, "--format=csv,noheader,nounits") or ""
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
