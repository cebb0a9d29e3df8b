"""What the watch sees of this machine, and what it makes of other machines' system files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchctl.data.store import open_run
from benchctl.data.writer import RunWriter
from benchctl.engines.base import Completion, Launch
from benchctl.machine import monitor as module
from benchctl.machine.monitor import (
    SystemCounters,
    Watch,
    compare_counters,
    fastest_core_mhz,
    largest_jump,
    read_counters,
)
from benchctl.measurement.plan import make_plan
from benchctl.measurement.progress import RunProgress
from benchctl.measurement.runner import Runner
from benchctl.prompts.suite import PromptItem
from benchctl.recipes.schema import Recipe
from tests.measurement.toy_engine import ToyEngine, answer

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux system files")

BEFORE = SystemCounters(
    read_at=0.0,
    cores=4,
    busy_s=100.0,
    stolen_s=5.0,
    ours=frozenset({1, 2, 3}),
    ours_s=40.0,
    major_faults=7,
    swapped_bytes=0,
    throttled={"cpu0/core_throttle_count": 3, "cpu1/core_throttle_count": 9},
    gpu_slowed_s=(1.0, 2.0),
)
NOTHING = SystemCounters(0.0, None, None, None, frozenset(), 0.0, None, None, {}, None)


def write(root: Path, file: str, text: str) -> None:
    path = root / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def spinner() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes until it is ended: an engine, as far as the watch can see."""
    with subprocess.Popen(
        [sys.executable, "-c", "print(flush=True)\nwhile True: pass"], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_watch_tells_our_own_work_from_others(spinner: subprocess.Popen[bytes]) -> None:
    with Watch() as watch:
        until = psutil.Process(spinner.pid).cpu_times().user + 0.3
        while psutil.Process(spinner.pid).cpu_times().user < until:
            time.sleep(0.02)
    disturbance = watch.disturbance
    assert disturbance is not None
    assert disturbance.wall_s > 0
    assert disturbance.own_cpu_s is not None and disturbance.own_cpu_s >= 0.25
    assert disturbance.other_cpu_s is not None and disturbance.cores is not None
    assert disturbance.own_cpu_s + disturbance.other_cpu_s <= disturbance.cores * disturbance.wall_s * 1.2 + 0.5, (
        "no more time than there was"
    )
    assert abs(disturbance.clock_jump_s or 0.0) < 0.1


def test_a_thread_looks_between_the_readings_and_says_what_it_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "INTERVAL_S", 0.01)
    monkeypatch.setattr(module, "LARGEST_SHARE", 1.0)
    looked: list[float] = []

    def look() -> float:
        looked.append(2000.0 + 100 * len(looked))
        return looked[-1]

    monkeypatch.setattr(module, "fastest_core_mhz", look)
    with Watch() as watch:
        while len(looked) < 3:
            time.sleep(0.01)
    assert watch.disturbance is not None
    assert watch.disturbance.cpu_mhz == pytest.approx((looked[0] + looked[-1]) / 2)
    assert watch.disturbance.cost_s is not None and watch.disturbance.cost_s > 0


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this process: what earlier tests had forked is a child of it, too."""
    monkeypatch.setattr(psutil.Process, "children", lambda process, recursive=False: [])


@pytest.mark.usefixtures("no_engine")
def test_a_watch_that_an_error_ends_has_seen_what_was_before_it() -> None:
    watch = Watch()
    with pytest.raises(KeyboardInterrupt), watch:
        raise KeyboardInterrupt
    assert watch.disturbance is not None
    assert watch.disturbance.own_cpu_s is None, "there is no engine, so its work cannot be told from that of others"
    assert watch.disturbance.other_cpu_s is None
    assert watch.disturbance.cpu_mhz is None, "it was over before the first look"


def test_what_happened_is_the_rise_of_the_counters() -> None:
    after = replace(
        BEFORE,
        read_at=10.0,
        busy_s=112.0,
        stolen_s=5.5,
        ours_s=48.0,
        major_faults=9,
        swapped_bytes=4096,
        throttled={"cpu0/core_throttle_count": 5, "cpu1/core_throttle_count": 10},
        gpu_slowed_s=(1.0, 2.5),
    )
    disturbance = compare_counters(BEFORE, after)
    assert disturbance.wall_s == 10.0
    assert (disturbance.own_cpu_s, disturbance.other_cpu_s, disturbance.stolen_cpu_s) == (8.0, 4.0, 0.5)
    assert (disturbance.engine_major_faults, disturbance.swapped_bytes) == (2, 4096)
    assert (disturbance.throttled, disturbance.gpu_slowed_s) == (2, 0.5)


def test_an_engine_that_ended_meanwhile_leaves_its_time_unknown() -> None:
    after = replace(BEFORE, busy_s=112.0, ours=frozenset({1, 2}), ours_s=41.0)
    disturbance = compare_counters(BEFORE, after)
    assert (disturbance.own_cpu_s, disturbance.other_cpu_s, disturbance.engine_major_faults) == (None, None, None)


def test_a_counter_that_was_reset_says_nothing() -> None:
    disturbance = compare_counters(BEFORE, replace(BEFORE, stolen_s=1.0, throttled={"cpu0/core_throttle_count": 0}))
    assert (disturbance.stolen_cpu_s, disturbance.throttled) == (None, None)


def test_what_a_system_does_not_tell_is_none_and_never_0() -> None:
    disturbance = compare_counters(NOTHING, replace(NOTHING, read_at=10.0))
    assert {name for name, value in disturbance.model_dump().items() if value not in (None, {}, [])} == {"wall_s"}


@linux_only
def test_counters_of_another_machines_files(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "nr_free_pages 1\npswpin 3\npswpout 4\npgmajfault 9\n")
    for core, count in ((0, "2"), (1, "5")):
        folder = f"sys/devices/system/cpu/cpu{core}/thermal_throttle"
        write(tmp_path, f"{folder}/core_throttle_count", f"{count}\n")
        write(tmp_path, f"{folder}/package_throttle_count", "7\n")
    counters = read_counters(tmp_path)
    assert counters.swapped_bytes == 7 * os.sysconf("SC_PAGE_SIZE")
    assert counters.throttled == {
        "cpu0/core_throttle_count": 2,
        "cpu0/package_throttle_count": 7,
        "cpu1/core_throttle_count": 5,
        "cpu1/package_throttle_count": 7,
    }
    bare = read_counters(tmp_path / "nothing")
    assert (bare.swapped_bytes, bare.throttled) == (None, {})


@linux_only
def test_only_the_cores_that_we_may_use_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    core = psutil.cpu_times(percpu=True)[0]
    times = [core._replace(user=float(user), nice=0.0, system=0.0, irq=0.0, softirq=0.0) for user in (10, 20, 40)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda self: [0, 2])
    counters = read_counters(tmp_path)
    assert (counters.cores, counters.busy_s) == (2, 50.0)
    limited = tmp_path / "limited"
    write(limited, "proc/self/cgroup", "0::/\n")
    write(limited, "sys/fs/cgroup/cpu.max", "150000 100000\n")
    assert read_counters(limited).busy_s is None, "others use time that the quota keeps from us anyway"
    write(tmp_path, "sys/devices/system/cpu/offline", "1\n")  # then the third in the list is not core 2
    gaps = read_counters(tmp_path)
    assert (gaps.cores, gaps.busy_s, gaps.stolen_s) == (None, None, None)


@linux_only
def test_the_gpus_counters_are_read_where_the_driver_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(prints: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{prints}\nEND\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    installed("0, 1500000, 0\n250000, 0, 0")
    assert read_counters().gpu_slowed_s == (1.5, 0.25)
    installed("[N/A], [N/A], [N/A]")
    assert read_counters().gpu_slowed_s is None


def test_a_clock_that_is_set_is_a_jump_and_one_that_is_steered_is_not() -> None:
    steered = [100.0 + 0.0005 * second for second in range(60)]
    assert abs(largest_jump(steered)) < 0.001
    assert largest_jump([*steered[:30], *(values - 3600 for values in steered[30:])]) == pytest.approx(-3600, abs=0.01)


def test_a_machine_without_frequencies(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(percpu: bool) -> None:
        raise NotImplementedError

    monkeypatch.setattr(psutil, "cpu_freq", fails, raising=False)
    assert fastest_core_mhz() is None
    monkeypatch.setattr(psutil, "cpu_freq", lambda percpu: [])
    assert fastest_core_mhz() is None


@pytest.mark.usefixtures("no_engine")
def test_every_cell_keeps_what_its_watch_saw(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    one_block = recipe.model_copy(update={"blocks": 1})
    Runner(one_block, ToyEngine(), launches, writer).run(make_plan(one_block, prompts), RunProgress())
    run = open_run(folder)
    assert run.manifest is not None
    for cell in run.manifest.cells:
        assert cell.watch is not None
        assert 0 < cell.watch.wall_s <= cell.wall_s
        assert cell.watch.other_cpu_s is None, "the toy engine is no process"
    assert {record.prompt_sha is None for record in run.records if record.phase == "warmup"} == {False}


def test_an_interrupted_cell_keeps_it_too(
    recipe: Recipe, prompts: list[PromptItem], writer: RunWriter, folder: Path
) -> None:
    def answers(arm: str, number: int) -> Completion:
        if number == 3:
            raise KeyboardInterrupt
        return answer()

    launches = {arm.name: Launch(argv=("toy", arm.name), env={}) for arm in recipe.arms}
    with pytest.raises(KeyboardInterrupt):
        Runner(recipe, ToyEngine(answers=answers), launches, writer).run(make_plan(recipe, prompts), RunProgress())
    run = open_run(folder)
    assert run.manifest is not None
    assert [(cell.status, cell.watch is None) for cell in run.manifest.cells] == [("interrupted", False)]
