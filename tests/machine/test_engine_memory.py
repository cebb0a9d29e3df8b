"""The memory of a process and of what descends from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchctl.machine.monitor import EngineMemory, read_engine_memory

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
child.stdout.readline()
print(flush=True)
sys.stdin.readline()
child.kill()
"""
CHILD = "big = bytearray(96 << 20); del big; print(flush=True); import time; time.sleep(60)"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems tell no high-water mark")
def test_the_peak_of_a_child_counts_when_it_is_over() -> None:
    words = [sys.executable, "-c", f"CHILD = {CHILD!r}{PARENT}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdin is not None
        parent.stdout.readline()
        engine_memory = read_engine_memory(parent.pid)
        parent.stdin.close()
    assert engine_memory.resident is not None
    assert 96 << 20 < engine_memory.resident < 400 << 20
    assert engine_memory.swapped is not None


def test_what_the_system_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        status = tmp_path / f"proc/{process.pid}/status"
        status.parent.mkdir(parents=True)
        status.write_text("Name:\tpython\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nVmSwap:\t   512 kB\n")
        for number, text in enumerate(
            (
                "drm-pdev:\ta\ndrm-client-id:\t7\ndrm-memory-vram:\t1000 KiB\ndrm-resident-vram:\t2048 KiB\n",
                "drm-pdev:\ta\ndrm-client-id:\t7\ndrm-resident-vram:\t2048 KiB\n",
                "drm-pdev:\tb\ndrm-client-id:\t7\ndrm-resident-local0:\t3 MiB\ndrm-resident-system0:\t9 MiB\n",
                "pos:\t0\n",
            )
        ):
            file = status.with_name("fdinfo") / str(number)
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        assert read_engine_memory(process.pid, tmp_path).device == 5 << 20, "a client once, without RAM"
        smi = tmp_path / "nvidia-smi"
        smi.write_text(f"#!/bin/sh\nprintf '{process.pid}, 1500\\n99999999, 7000\\n{process.pid}, 24\\n'\n")
        smi.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path))
        engine_memory = read_engine_memory(process.pid, tmp_path)
        assert process.stdin is not None
        process.stdin.close()
    assert engine_memory.device == 1524 << 20
    if sys.platform == "linux":
        assert (engine_memory.resident, engine_memory.swapped) == (2 << 20, 512 << 10)


def test_a_process_that_is_gone_tells_nothing_and_earlier_readings_stay() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    gone = read_engine_memory(process.pid)
    assert gone == EngineMemory()
    assert gone.at_least(EngineMemory(5, None, 7)) == EngineMemory(5, None, 7)
    assert EngineMemory(9, 1, None).at_least(EngineMemory(5, None, 7)) == EngineMemory(9, 1, 7)
