"""What processor, memory and GPUs show at a moment: power, clock, temperature, memory in use.

AMD's and Intel's GPUs and the processor's temperature are read from hwmon below /sys (https://docs.kernel.org/hwmon/
sysfs-interface.html: microwatts, microjoules, hertz, thousandths of a degree), NVIDIA's from `nvidia-smi`, RAPL's power
from its counters (`benchctl.machine.energy`). What is not there is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from benchctl.machine.describe import ROOT, read

Reading = dict[str, float]
"""By quantity: `processor_w`, `processor_c`, `processor_mhz`, `memory_bytes`, `gpu_w`, `gpu_c`, `gpu_mhz`,
`gpu_bytes`. Power and memory of several GPUs are added up; of their clocks and temperatures it is the highest."""
POINTS = 120
"""Of a stored series."""

_CPU_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_GPU_FILES = {
    "w": ("power1_average", "power1_input", 1e6),
    "c": ("temp1_input", "temp2_input", 1e3),
    "mhz": ("freq1_input", "freq2_input", 1e6),
}


class Sensors:
    """Those files of this machine that were there at the start."""

    def __init__(self, root: Path = ROOT) -> None:
        self._gpus: list[dict[str, tuple[Path, float]]] = []
        self._joules: dict[Path, tuple[float, float]] = {}
        for folder in sorted((root / "sys/class/drm").glob("card[0-9]*/device/hwmon/hwmon*")):
            files = {
                what: (next((folder / name for name in names if read(folder / name)), None), unit)
                for what, (*names, unit) in _GPU_FILES.items()
            }
            files |= {"bytes": (folder.parents[1] / "mem_info_vram_used", 1.0), "uj": (folder / "energy1_input", 1e6)}
            self._gpus.append({what: (file, unit) for what, (file, unit) in files.items() if file and read(file)})
        self._processor = [
            file
            for folder in sorted((root / "sys/class/hwmon").glob("hwmon*"))
            if read(folder / "name").strip() in _CPU_CHIPS
            for file in sorted(folder.glob("temp*_input"))
        ]

    def read(self, at: float) -> Reading:
        """Return what can be read now; `at`: seconds by a monotonic clock, for power from counters of energy."""
        import psutil

        found = {"memory_bytes": float(psutil.virtual_memory().used)}
        if temperatures := [value / 1e3 for value in map(_number, self._processor) if value is not None]:
            found["processor_c"] = max(temperatures)
        return found | of_gpus([self._of(gpu, at) for gpu in self._gpus])

    def _of(self, gpu: Mapping[str, tuple[Path, float]], at: float) -> Reading:
        values = {what: value / unit for what, (file, unit) in gpu.items() if (value := _number(file)) is not None}
        joules = values.pop("uj", None)
        if joules is not None and "w" not in values:
            before = self._joules.get(gpu["uj"][0])
            self._joules[gpu["uj"][0]] = (joules, at)
            if before is not None and at > before[1] and joules >= before[0]:
                values["w"] = (joules - before[0]) / (at - before[1])
        return values


def of_gpus(gpus: Sequence[Mapping[str, float]]) -> Reading:
    """Return what several GPUs show together: `w`, `c`, `mhz` and `bytes` of each."""
    found = {}
    for what in ("w", "c", "mhz", "bytes"):
        values = [gpu[what] for gpu in gpus if what in gpu]
        if values:
            found[f"gpu_{what}"] = sum(values) if what in ("w", "bytes") else max(values)
    return found


def series_of(readings: Sequence[Reading], most: int = POINTS) -> dict[str, list[float]]:
    """Return each quantity over time in at most so many points, evenly spread, each the mean of its readings.

    The first reading has no power from counters, and counts for nothing but that; a quantity that another reading lacks
    is left out.
    """
    later = readings[1:] or readings
    names: Iterable[str] = set.intersection(*(set(reading) for reading in later)) if later else ()
    size = -(-len(later) // most) or 1
    parts = [later[start : start + size] for start in range(0, len(later), size)]
    return {name: [round(sum(r[name] for r in part) / len(part), 3) for part in parts] for name in sorted(names)}


def _number(file: Path) -> float | None:
    try:
        return float(read(file))
    except ValueError:
        return None
