"""NVIDIA's GPUs as NVML and nvidia-smi reported them on an H100 under load, and what follows from it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.analysis.comparison.compare import MACHINE_CLASS
from benchctl.analysis.comparison.workload import setting_changes
from benchctl.data.manifest import Manifest
from benchctl.machine import doctor, energy, nvidia
from benchctl.machine.describe import describe_machine
from benchctl.machine.monitor import read_engine_memory

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("nvml-h100.json").read_text())
DEVICE = {
    "name": "NVIDIA H100 80GB HBM3",
    "memory_bytes": 81559 << 20,
    "driver": "580.159.04",
    "power_limit_w": 700.0,
}
SMI = {
    "name,memory.total": "NVIDIA H100 80GB HBM3, 81559, 580.159.04, 700.00",
    "power.default_limit": "700.00, 700.00, 1980, 1980, 2619, 5, 5, 16, 16, Default, Enabled, Enabled, Disabled",
}
"""The rows of query-describe.csv of that session, as `nounits` prints them."""


class Library:
    """`pynvml` with stored answers; those that are not stored, or begin with `!`, are not supported."""

    class NVMLError(Exception):
        """Raised as NVML's."""

    def __init__(self, **changed: object) -> None:
        self.answers = ANSWERS | changed

    def __getattr__(self, name: str) -> Any:
        def getter(*arguments: object) -> Any:
            value = "a handle" if name == "nvmlDeviceGetHandleByIndex" else self.answers.get(name, "!")
            if isinstance(value, dict) and len(arguments) > 1:
                value = value.get(str(arguments[1]), "!")
            if isinstance(value, str) and value.startswith("!"):
                raise self.NVMLError(value)
            return plain(value)

        return getter


def plain(value: object) -> Any:
    """Structures as NVML returns them."""
    if isinstance(value, list):
        return [plain(part) for part in value]
    return SimpleNamespace(**value) if isinstance(value, dict) else value


def use(monkeypatch: pytest.MonkeyPatch, **changed: object) -> Library:
    library = Library(**changed)
    monkeypatch.setattr(nvidia, "nvml", lambda: nvidia.Nvml(library))
    return library


def without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def smi(*argv: str) -> str | None:
        return next((row for start, row in SMI.items() if f"--query-gpu={start}" in argv[1]), None)

    monkeypatch.setattr(nvidia, "nvml", lambda: None)
    monkeypatch.setattr(nvidia, "answer", smi)


def test_nvml_and_nvidia_smi_tell_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    settings = nvidia.settings()[0]
    assert nvidia.devices() == [DEVICE]
    assert settings.pop("memory_bandwidth") == 3_352_320_000_000, "2,619 MHz, twice a cycle, 5,120 bits"
    assert "nvlinks" not in settings, "no link is reported"
    without_nvml(monkeypatch)
    assert nvidia.devices() == [DEVICE]
    assert nvidia.settings() == [settings]
    assert (settings["pcie_generation"], settings["pcie_width"]) == (5, 16)
    assert (settings["ecc"], settings["mig"], settings["compute_mode"]) == (True, False, "Default")


def test_links_between_gpus_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    links = dict.fromkeys(map(str, range(4)), 1) | {"4": 0}
    use(monkeypatch, nvmlDeviceGetCount=3, nvmlDeviceGetNvLinkState=links, nvmlDeviceGetP2PStatus=0)
    assert [(gpu["nvlinks"], gpu["peer_access"]) for gpu in nvidia.settings()] == [
        (4, [1, 2]),
        (4, [0, 2]),
        (4, [0, 1]),
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has other GPUs")
def test_another_power_limit_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Path(__file__).parents[2] / "results/padded-cuda/20261127-204443-ee1d/manifest.json"
    manifest = Manifest.model_validate_json(kept.read_text())
    runs = []
    for milliwatts in (700_000, 400_000):
        use(monkeypatch, nvmlDeviceGetPowerManagementLimit=milliwatts)
        runs.append(manifest.model_copy(update={"machine": describe_machine()}))
    changed = [change for change in setting_changes(*runs) if change.what in MACHINE_CLASS]
    assert [change.what for change in changed] == ["machine accelerators"]
    assert "power limit w 400" in changed[0].b.replace("_", " ")
    assert runs[0].machine["accelerator_settings"][0]["pcie_generation_max"] == 5


def test_doctor_tells_a_lowered_limit_and_a_narrow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, nvmlDeviceGetUtilizationRates={"gpu": 0, "memory": 0})
    assert doctor._accelerator().state == "ok"
    assert [check.state for check in doctor._power_limit()] == ["ok"]
    use(monkeypatch, nvmlDeviceGetPowerManagementLimit=400_000, nvmlDeviceGetCurrPcieLinkWidth=4)
    (check,) = doctor._power_limit()
    assert check.state == "warn"
    assert "is 400 W; its default is 700 W" in check.seen
    assert "4 of 16 PCIe lanes" in check.seen
    assert doctor._accelerator().seen == "NVIDIA H100 80GB HBM3 is 78 % busy."


def test_energy_is_the_counters_rise_and_sensors_are_read_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    library = use(monkeypatch)
    clock = iter((100.0, 100.0, 102.0, 102.0))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    meter = energy.Meter(Path("/no/such/folder"))
    library.answers["nvmlDeviceGetTotalEnergyConsumption"] += 424_000
    assert meter.sensors() == {
        "gpu_w": 212.169, "gpu_mhz": 1980, "gpu_c": 53, "gpu_bytes": 13_523_288_064, "gpu_capped": 0
    }  # fmt: skip
    library.answers["nvmlDeviceGetCurrentClocksEventReasons"] = 4
    assert meter.sensors()["gpu_capped"] == 100
    library.answers["nvmlDeviceGetCurrentClocksEventReasons"] = "!NVMLError_NotSupported"
    library.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = 4
    assert meter.sensors()["gpu_capped"] == 100, "as older drivers call it"
    library.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = "!NVMLError_NotSupported"
    assert "gpu_capped" not in meter.sensors(), "not reported is not 0"
    assert meter.stop().joules == {"gpu": 424.0}


def test_a_gpu_that_counts_no_energy_leaves_it_to_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, nvmlDeviceGetTotalEnergyConsumption="!NVMLError_NotSupported")
    assert not nvidia.NvmlPower(nvidia.Nvml(Library(nvmlDeviceGetTotalEnergyConsumption="!"))).counted
    monkeypatch.setattr(energy, "NVIDIA", ("no-such-program-here",))
    assert energy.Meter(Path("/no/such/folder")).sensors() == {}


def test_memory_is_that_of_the_engine_s_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [{"pid": os.getpid(), "usedGpuMemory": 13_010_731_008}, {"pid": 2**31, "usedGpuMemory": 7}]
    use(monkeypatch, nvmlDeviceGetComputeRunningProcesses=processes)
    assert read_engine_memory(os.getpid()).device == 13_010_731_008
    assert nvidia.free_memory() == [71_997_521_920]
