"""The energy that a machine takes while it is watched, and what its sensors show: power, clocks, temperatures, memory.

RAPL counts microjoules of every processor package, and of its memory where there is a domain for it; the counter wraps
around. NVML counts the millijoules of NVIDIA's GPUs; where it is not there nvidia-smi reports power, and its mean times
the duration is the energy. All values are of the whole machine. For what cannot be read the reason and a remedy are
named.

AMD's and Intel's GPUs and the processor's temperature are read from hwmon below /sys (https://docs.kernel.org/hwmon/
sysfs-interface.html: microwatts, microjoules, hertz, thousandths of a degree), NVIDIA's from `nvidia-smi`, RAPL's power
from its counters. What is not there is absent.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchctl.machine import nvidia
from benchctl.machine.system import ROOT, read

POWERCAP = "sys/class/powercap"
_PACKAGE = re.compile(r"intel-rapl:\d+\Z")
_PART = re.compile(r"intel-rapl:\d+:\d+\Z")
NO_RIGHTS = (
    "RAPL's counters cannot be read without rights: sudo chmod a+r /sys/class/powercap/intel-rapl*/energy_uj, "
    "or run benchctl as root"
)
NO_RAPL = "this system has no RAPL counters (/sys/class/powercap/intel-rapl), as most virtual machines"
NVIDIA = (
    "nvidia-smi",
    f"--query-gpu=index,{','.join(fact.field for fact in nvidia.SHOWN)}",
    "--format=csv,noheader,nounits",
    "-lms",
    "500",
)


@dataclass(frozen=True)
class Energy:
    """Energy over some time."""

    seconds: float
    joules: Mapping[str, float]
    """Joules by consumer (processor, memory, gpu), as far as reported."""
    not_reported: tuple[str, ...]
    """Why other consumers are not reported, as ends of sentences."""

    @property
    def watts(self) -> dict[str, float]:
        """Mean power."""
        return {name: joules / self.seconds for name, joules in self.joules.items()} if self.seconds > 0 else {}


class Meter:
    """Reads every source of this machine from its creation until `stop`."""

    def __init__(self, root: Path = ROOT) -> None:
        self._since = time.monotonic()
        self._rapl = Rapl(root)
        library = nvidia.nvml()
        counters = None if library is None else nvidia.NvmlPower(library)
        self._gpus: nvidia.NvmlPower | NvidiaPower | None = None
        if counters is not None and counters.counted:
            self._gpus = counters
        elif shutil.which(NVIDIA[0]):
            self._gpus = NvidiaPower()

    @property
    def problems(self) -> tuple[str, ...]:
        """Why a source is not reported."""
        sources = (self._rapl, self._gpus)
        return tuple(source.problem for source in sources if source is not None and source.problem)

    def sensors(self) -> dict[str, float]:
        """Return what NVIDIA's GPUs last showed, and joules since the start by consumer, as `processor_j`."""
        joules_of = {f"{kind}_j": joules for kind, joules in self._rapl.joules().items()}
        return joules_of if self._gpus is None else joules_of | of_gpus([*self._gpus.latest.values()])

    def stop(self) -> Energy:
        """End, and return the energy since the start."""
        seconds = time.monotonic() - self._since
        joules = self._rapl.joules()
        watts = None if self._gpus is None else self._gpus.stop()
        return Energy(seconds, joules if watts is None else joules | {"gpu": watts * seconds}, self.problems)


def mean_power(seconds: float, root: Path = ROOT) -> Energy:
    """Measure for `seconds`, doing nothing; returns at once where nothing is reported."""
    meter = Meter(root)
    if meter._gpus is not None or not meter.problems:
        time.sleep(seconds)
    return meter.stop()


class Rapl:
    """The energy counters of the processor packages and their memory, below /sys/class/powercap."""

    def __init__(self, root: Path = ROOT) -> None:
        self.problem: str | None = None
        self._counters: list[_Counter] = []
        try:
            self._counters = _counters(root / POWERCAP)
        except PermissionError:
            self.problem = NO_RIGHTS
        except (OSError, ValueError):
            self.problem = NO_RAPL
        else:
            self.problem = None if self._counters else NO_RAPL

    def joules(self) -> dict[str, float]:
        """Return joules by kind since the start; to be called often enough that no counter wraps around twice."""
        joules: dict[str, float] = {}
        try:
            for counter in self._counters:
                joules[counter.kind] = joules.get(counter.kind, 0.0) + counter.rise() / 1e6
        except (OSError, ValueError):
            self._counters, self.problem = [], "RAPL's counters stopped being readable"
            return {}
        return joules


class _Counter:
    """Microjoules of a package, or of its memory."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self._file = folder / "energy_uj"
        self._range = int((folder / "max_energy_range_uj").read_text())
        self._last = int(self._file.read_text())
        self._risen = 0

    def rise(self) -> int:
        """Return what it rose by since the start; a counter that went down has wrapped around once."""
        now = int(self._file.read_text())
        self._risen += now - self._last if now >= self._last else now - self._last + self._range + 1
        self._last = now
        return self._risen


def _counters(powercap: Path) -> list[_Counter]:
    names = {folder: (folder / "name").read_text().strip() for folder in sorted(powercap.glob("intel-rapl:*"))}
    packages = [folder for folder, name in names.items() if _PACKAGE.match(folder.name) and name.startswith("package")]
    memory = [folder for folder, name in names.items() if _PART.match(folder.name) and name == "dram" and packages]
    return [*(_Counter("processor", folder) for folder in packages), *(_Counter("memory", folder) for folder in memory)]


class NvidiaPower:
    """`nvidia-smi`, which prints what each GPU shows again and again, for as long as it runs."""

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self.problem: str | None = None
        self.latest: dict[str, Mapping[str, float]] = {}
        """What each GPU showed last."""
        self._watts: dict[str, list[float]] = {}
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(  # in a session of its own, so that what it starts ends with it
                command or NVIDIA,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError as error:
            self.problem = f"nvidia-smi cannot be run: {error.strerror}"
            return
        self._thread = threading.Thread(target=self._read, name="power of GPUs", daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """End the program; return the mean power in watts, of several GPUs added up, `None` where none is reported."""
        if self._process is None:
            return None
        for end in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, end)
            self._thread.join(timeout=5)
            if not self._thread.is_alive():
                break
        self._process.wait(timeout=5)
        if not self._watts:
            self.problem = "nvidia-smi reported no power"
            return None
        return sum(sum(samples) / len(samples) for samples in self._watts.values())

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                gpu, reading = parse_nvidia(line)
                if reading:
                    self.latest[gpu] = reading
                if "w" in reading:
                    self._watts.setdefault(gpu, []).append(reading["w"])


def parse_nvidia(line: str) -> tuple[str, dict[str, float]]:
    """Return a GPU's number and what it shows, of `0, 71.23, 1410, 54, 10240`; what it does not report is `[N/A]`."""
    index, *cells = (cell.strip() for cell in line.split(","))
    readings = {fact.key: fact.of_cell(cell) for fact, cell in zip(nvidia.SHOWN, cells, strict=False)}
    return index, {key: float(value) for key, value in readings.items() if value is not None}


SensorReading = dict[str, float]
"""By quantity: `processor_w`, `processor_c`, `processor_mhz`, `memory_bytes`, `gpu_w`, `gpu_c`, `gpu_mhz`,
`gpu_bytes`, `gpu_capped` (percent of the time at its power limit). Power and memory of several GPUs are added up; of
the others it is the highest."""
POINTS = 120
"""Most points of a stored series."""

_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_GPU_FILES = {
    "w": ("power1_average", "power1_input", 1e6),
    "c": ("temp1_input", "temp2_input", 1e3),
    "mhz": ("freq1_input", "freq2_input", 1e6),
}


class Sensors:
    """The sensor files that this machine had at the start."""

    def __init__(self, root: Path = ROOT) -> None:
        self._gpus: list[dict[str, tuple[Path, float]]] = []
        self._joules: dict[Path, tuple[float, float]] = {}
        for folder in sorted((root / "sys/class/drm").glob("card[0-9]*/device/hwmon/hwmon*")):
            files = {
                quantity: (next((folder / name for name in names if read(folder / name)), None), unit)
                for quantity, (*names, unit) in _GPU_FILES.items()
            }
            files |= {"bytes": (folder.parents[1] / "mem_info_vram_used", 1.0), "uj": (folder / "energy1_input", 1e6)}
            self._gpus.append(
                {quantity: (file, unit) for quantity, (file, unit) in files.items() if file and read(file)}
            )
        self._processor = [
            file
            for folder in sorted((root / "sys/class/hwmon").glob("hwmon*"))
            if read(folder / "name").strip() in _CPU_CHIPS
            for file in sorted(folder.glob("temp*_input"))
        ]

    def read(self, time_s: float) -> SensorReading:
        """Return what can be read now; `time_s`: seconds by a monotonic clock, for power from counters of energy."""
        reading = {"memory_bytes": float(psutil.virtual_memory().used)}
        if temperatures := [value / 1e3 for value in map(_number, self._processor) if value is not None]:
            reading["processor_c"] = max(temperatures)
        return reading | of_gpus([self._of(gpu, time_s) for gpu in self._gpus])

    def _of(self, gpu: Mapping[str, tuple[Path, float]], time_s: float) -> SensorReading:
        values = {
            quantity: value / unit for quantity, (file, unit) in gpu.items() if (value := _number(file)) is not None
        }
        joules = values.pop("uj", None)
        if joules is not None and "w" not in values:
            before = self._joules.get(gpu["uj"][0])
            self._joules[gpu["uj"][0]] = (joules, time_s)
            if before is not None and time_s > before[1] and joules >= before[0]:
                values["w"] = (joules - before[0]) / (time_s - before[1])
        return values


def of_gpus(gpus: Sequence[Mapping[str, float]]) -> SensorReading:
    """Return what several GPUs show together: `w`, `c`, `mhz`, `bytes` and `capped` of each."""
    combined = {}
    for quantity in ("w", "c", "mhz", "bytes", "capped"):
        values = [gpu[quantity] for gpu in gpus if quantity in gpu]
        if values:
            combined[f"gpu_{quantity}"] = sum(values) if quantity in ("w", "bytes") else max(values)
    return combined


def series_of(readings: Sequence[SensorReading], points: int = POINTS) -> dict[str, list[float]]:
    """Return each quantity over time in at most so many points, evenly spread, each the mean of its readings.

    The first reading has no power from counters, and counts for nothing but that; a quantity that another reading lacks
    is left out.
    """
    later = readings[1:] or readings
    names: Iterable[str] = set.intersection(*(set(reading) for reading in later)) if later else ()
    size = -(-len(later) // points) or 1
    parts = [later[start : start + size] for start in range(0, len(later), size)]
    return {name: [round(sum(r[name] for r in part) / len(part), 3) for part in parts] for name in sorted(names)}


def _number(file: Path) -> float | None:
    try:
        return float(read(file))
    except ValueError:
        return None
