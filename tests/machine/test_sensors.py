"""What GPUs and the processor show, from files as AMD's and Intel's drivers have them and lines of nvidia-smi."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.machine.energy import POINTS, Sensors, of_gpus, parse_nvidia, series_of


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


AMD = {
    "hwmon__hwmon3__power1_average": "71000000",
    "hwmon__hwmon3__temp1_input": "54000",
    "hwmon__hwmon3__freq1_input": "1410000000",
    "mem_info_vram_used": "1073741824",
}


def test_amd_s_files_are_read_in_their_units(tmp_path: Path) -> None:
    write(tmp_path / "sys/class/drm/card0/device", **AMD)
    write(tmp_path / "sys/class/hwmon/hwmon0", name="k10temp", temp1_input="61500", temp2_input="58000")
    write(tmp_path / "sys/class/hwmon/hwmon1", name="nvme", temp1_input="90000")
    result = Sensors(tmp_path).read(1.0)
    assert result.pop("memory_bytes") > 0
    assert result == {"gpu_w": 71.0, "gpu_c": 54.0, "gpu_mhz": 1410.0, "gpu_bytes": float(1 << 30), "processor_c": 61.5}


def test_intel_s_power_is_what_its_counter_rose_by(tmp_path: Path) -> None:
    device = tmp_path / "sys/class/drm/card0/device"
    write(device, hwmon__hwmon2__energy1_input="5000000")
    sensors = Sensors(tmp_path)
    assert "gpu_w" not in sensors.read(10.0)
    write(device, hwmon__hwmon2__energy1_input="65000000")
    assert sensors.read(12.0)["gpu_w"] == 30.0
    write(device, hwmon__hwmon2__energy1_input="1000")  # it wrapped around
    assert "gpu_w" not in sensors.read(13.0)


def test_a_machine_without_sensors_shows_its_memory_alone(tmp_path: Path) -> None:
    assert list(Sensors(tmp_path).read(1.0)) == ["memory_bytes"]


def test_nvidia_s_lines_are_read_as_far_as_reported() -> None:
    assert parse_nvidia("0, 71.23, 1410, 54, 2") == ("0", {"w": 71.23, "mhz": 1410.0, "c": 54.0, "bytes": 2 << 20})
    assert parse_nvidia("1, [N/A], 300, [N/A], 2") == ("1", {"mhz": 300.0, "bytes": 2 << 20})
    assert parse_nvidia("No devices were found")[1] == {}


def test_of_several_gpus_power_adds_up_and_the_hottest_counts() -> None:
    assert of_gpus([{"w": 10.0, "c": 50.0}, {"w": 20.0, "c": 70.0}]) == {"gpu_w": 30.0, "gpu_c": 70.0}


def test_a_series_is_thinned_by_means_and_has_no_gaps() -> None:
    readings = [{"a": float(second), **({"b": 1.0} if second % 2 else {})} for second in range(1 + 2 * POINTS)]
    result = series_of(readings)
    assert list(result) == ["a"]
    assert len(result["a"]) == POINTS
    assert result["a"][:2] == [1.5, 3.5]
    assert series_of([]) == {}
    assert series_of([{"a": 2.0}]) == {"a": [2.0]}


@pytest.mark.parametrize("text", ["", "N/A", "-"])
def test_a_file_that_says_nothing_is_absent(tmp_path: Path, text: str) -> None:
    write(tmp_path / "sys/class/drm/card0/device", hwmon__hwmon3__power1_average=text)
    assert "gpu_w" not in Sensors(tmp_path).read(1.0)
