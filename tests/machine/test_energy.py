"""Energy by counters of a machine that is only files, and by programs that are only scripts."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from benchctl.machine import energy as module
from benchctl.machine import monitor
from benchctl.machine.energy import (
    NO_RAPL,
    NO_RIGHTS,
    Energy,
    NvidiaPower,
    Rapl,
    mean_power,
)
from benchctl.machine.monitor import Watch

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux system files")
RANGE = 262_143_328_850


def domain(root: Path, folder: str, name: str, microjoules: int) -> Path:
    """A RAPL domain, as the kernel lays it out; all of them lie side by side in /sys/class/powercap."""
    directory = root / "sys/class/powercap" / folder
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "name").write_text(f"{name}\n")
    (directory / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (directory / "energy_uj").write_text(f"{microjoules}\n")
    return directory / "energy_uj"


@pytest.fixture
def two_sockets(tmp_path: Path) -> dict[str, Path]:
    return {
        "package-0": domain(tmp_path, "intel-rapl:0", "package-0", 1_000_000),
        "core": domain(tmp_path, "intel-rapl:0:0", "core", 500),
        "dram-0": domain(tmp_path, "intel-rapl:0:1", "dram", 7_000_000),
        "package-1": domain(tmp_path, "intel-rapl:1", "package-1", RANGE - 2_000_000),
        "psys": domain(tmp_path, "intel-rapl:2", "psys", 0),
        "mmio": domain(tmp_path, "intel-rapl-mmio:0", "package-0", 0),
    }


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NVIDIA", ("no-such-program-here",))


def test_packages_and_their_memory_are_added_up_once(tmp_path: Path, two_sockets: dict[str, Path]) -> None:
    rapl = Rapl(tmp_path)
    two_sockets["package-0"].write_text("31000000\n")
    two_sockets["dram-0"].write_text("11500000\n")
    for counted_elsewhere in ("core", "psys", "mmio"):
        two_sockets[counted_elsewhere].write_text("900000000\n")
    assert rapl.joules() == {"processor": 30.0, "memory": 4.5}
    assert rapl.problem is None


def test_a_counter_that_wraps_around_is_counted_on(tmp_path: Path, two_sockets: dict[str, Path]) -> None:
    rapl = Rapl(tmp_path)
    for value in (1_000_000, RANGE - 10, 4_999_999):
        two_sockets["package-1"].write_text(f"{value}\n")
        rapl.joules()
    expected = 2_000_000 + 1_000_001 + (RANGE - 10 - 1_000_000) + 11 + 4_999_999
    assert rapl.joules()["processor"] == pytest.approx(expected / 1e6)


def test_counters_that_need_rights_say_so(
    tmp_path: Path, two_sockets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_text

    def refused(path: Path, *words: object, **more: object) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_text", refused)
    rapl = Rapl(tmp_path)
    assert rapl.problem == NO_RIGHTS
    assert "sudo chmod" in NO_RIGHTS
    assert rapl.joules() == {}


@pytest.mark.parametrize("broken", ["gone", "no number", "nothing"])
def test_a_machine_without_counters_is_no_error(tmp_path: Path, two_sockets: dict[str, Path], broken: str) -> None:
    rapl = Rapl(tmp_path / "elsewhere")
    assert (rapl.problem, rapl.joules()) == (NO_RAPL, {})
    if broken == "gone":
        rapl = Rapl(tmp_path)
        two_sockets["package-0"].unlink()
        assert rapl.joules() == {}
        assert "stopped being readable" in str(rapl.problem)
    else:
        two_sockets["package-0"].write_text("" if broken == "nothing" else "?")
        assert Rapl(tmp_path).problem == NO_RAPL


@linux_only
def test_a_watch_tells_the_energy_meanwhile(
    tmp_path: Path, two_sockets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "INTERVAL_S", 0.01)
    monkeypatch.setattr(monitor, "LARGEST_SHARE", 1.0)
    with Watch(tmp_path) as watch:
        for value in (2_000_000, 500_000, 600_000):  # once around
            file = tmp_path / "next"
            file.write_text(f"{value}\n")
            file.replace(two_sockets["package-0"])  # at once, as the kernel answers
            time.sleep(0.1)
    assert watch.disturbance is not None
    assert watch.disturbance.energy_j["processor"] == pytest.approx((RANGE + 1 + 600_000 - 1_000_000) / 1e6, rel=1e-6)
    assert watch.disturbance.energy_untold == []


def test_idle_power_takes_no_time_where_nothing_tells_it(tmp_path: Path, two_sockets: dict[str, Path]) -> None:
    began = time.monotonic()
    if sys.platform == "linux":
        result = mean_power(30.0, tmp_path / "nothing")
        assert (result.watts, result.not_reported) == ({}, (NO_RAPL,))
    assert time.monotonic() - began < 25
    assert Energy(4.0, {"gpu": 100.0}, ()).watts == {"gpu": 25.0}


def script(folder: Path, text: str) -> str:
    directory = folder / "tells-power"
    directory.write_text(f"#!/bin/sh\n{text}\n")
    directory.chmod(0o755)
    return str(directory)


def test_the_power_of_every_gpu_is_averaged_and_added_up(tmp_path: Path) -> None:
    lines = "printf '0, 60.5\\n1, [N/A]\\n0, 79.5\\n2, 30\\n'; sleep 60"
    stream = NvidiaPower((script(tmp_path, lines),))
    while len(stream._watts.get("2", [])) < 1:
        time.sleep(0.01)
    assert stream.stop() == pytest.approx(70 + 30)
    assert stream._process is not None
    assert stream._process.poll() is not None, "it does not outlive the watch"


@pytest.mark.parametrize(("text", "said"), [("exit 9", "reported no power"), (None, "cannot be run")])
def test_a_program_that_tells_no_power_is_a_reason(tmp_path: Path, text: str | None, said: str) -> None:
    command = (str(tmp_path / "absent"),) if text is None else (script(tmp_path, text),)
    stream = NvidiaPower(command)
    assert stream.stop() is None
    assert said in str(stream.problem)
