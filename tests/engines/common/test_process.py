"""No engine outlives benchctl, however either of them ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchctl.engines.common.process import Access, EngineProcess, describe_exit
from benchctl.errors import EngineError, StorageError
from tests.waiting import LIMIT_S, has_ended, wait_for

STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(900)"
FAMILY = (
    "import subprocess,sys,time; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(900)']);"
    "print(p.pid, flush=True); time.sleep(900)"
)


def python(code: str, log: Path) -> EngineProcess:
    return EngineProcess([sys.executable, "-c", code], dict(os.environ), log)


def wait_until_gone(*pids: int) -> bool:
    return wait_for(lambda: all(map(has_ended, pids)), "the end of all")


def wait_for_text(log: Path) -> str:
    wait_for(lambda: log.exists() and log.read_text().endswith("\n"), "a line in the log")
    return log.read_text()


def test_output_and_exit_status_are_known(tmp_path: Path) -> None:
    process = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)", tmp_path / "log")
    assert process.wait(LIMIT_S)
    assert process.status == 7
    assert process.stop() == 7
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_death_by_signal_is_distinguished(tmp_path: Path) -> None:
    process = python("import os; os.abort()", tmp_path / "log")
    assert process.wait(LIMIT_S)
    assert process.status == -signal.SIGABRT
    assert describe_exit(process.stop()) == "signal SIGABRT"
    assert describe_exit(None) == "an unknown status"
    assert describe_exit(-250) == "signal 250"


def test_stop_is_gentle_first_and_safe_to_repeat(tmp_path: Path) -> None:
    process = python("import time; print('up', flush=True); time.sleep(900)", tmp_path / "log")
    assert process.alive()
    assert process.stop() == -signal.SIGTERM
    assert process.stop() == -signal.SIGTERM
    assert not process.alive()


def test_who_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    process = python(STUBBORN, tmp_path / "log")
    wait_for_text(tmp_path / "log")
    assert process.stop(grace_s=0.3) == -signal.SIGKILL
    assert wait_until_gone(process.pid)


def test_children_of_the_engine_go_with_it(tmp_path: Path) -> None:
    process = python(FAMILY, tmp_path / "log")
    child = int(wait_for_text(tmp_path / "log"))
    process.stop()
    assert wait_until_gone(process.pid, child)


def test_a_program_that_cannot_start(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="No such file") as caught:
        EngineProcess([str(tmp_path / "none")], dict(os.environ), tmp_path / "log")
    assert caught.value.kind == "launch"


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        python("pass", tmp_path / "file" / "log")


def test_the_terminals_interrupt_does_not_reach_the_engine(tmp_path: Path) -> None:
    process = python("import time; time.sleep(900)", tmp_path / "log")
    try:
        assert os.getpgid(process.pid) == process.pid != os.getpgrp()
        assert os.getsid(process.pid) == os.getsid(0)  # Linux would schedule another session against ours.
    finally:
        process.stop()


PARENT = """
import os, sys, time
from pathlib import Path
from benchctl.engines.common.process import EngineProcess
process = EngineProcess([sys.executable, "-c", {engine!r}], dict(os.environ), Path({log!r}))
print(process.pid, process._supervisor.pid, flush=True)
time.sleep(900)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("engine", [STUBBORN, FAMILY])
def test_the_engine_dies_with_benchctl(tmp_path: Path, number: signal.Signals, engine: str) -> None:
    log = tmp_path / "log"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT.format(engine=engine, log=str(log))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    text = wait_for_text(log).strip()
    if text != "up":
        pids.append(int(text))
    parent.send_signal(number)
    parent.wait()
    parent.stdout.close()
    assert wait_until_gone(*pids)


def test_the_engine_dies_with_its_supervisor(tmp_path: Path) -> None:
    process = python("import time; time.sleep(900)", tmp_path / "log")
    os.kill(process._supervisor.pid, signal.SIGKILL)
    assert process.wait(LIMIT_S)
    assert process.status is None
    assert process.stop() is None
    assert wait_until_gone(process.pid)


def test_the_supervisor_stops_the_engine_on_sigterm(tmp_path: Path) -> None:
    process = python(STUBBORN, tmp_path / "log")
    wait_for_text(tmp_path / "log")
    os.kill(process._supervisor.pid, signal.SIGTERM)
    assert process.wait(LIMIT_S)
    assert process.stop() == -signal.SIGKILL


def test_an_engine_that_was_killed_from_outside(tmp_path: Path) -> None:
    process = python("import time; time.sleep(900)", tmp_path / "log")
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
    assert process.wait(LIMIT_S)
    assert process.stop() == -signal.SIGKILL


SIGTERM_IS_SWALLOWED = "import signal,time; signal.signal(signal.SIGTERM, lambda *_: None); print('up', flush=True)\n"
OWN_SESSION = (
    "import subprocess,sys,time; p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(900)'],"
    "start_new_session=True); print(p.pid, flush=True); time.sleep(900)"
)
SHARES = """
import os, signal, sys, time
from multiprocessing import shared_memory
held = shared_memory.SharedMemory(create=True, size=4096)
open(sys.argv[1] + "/socket", "w").close()
print(held._name, flush=True)
time.sleep(900)
"""


def test_who_swallows_sigterm_is_interrupted(tmp_path: Path) -> None:
    process = python(SIGTERM_IS_SWALLOWED + "while True: time.sleep(0.1)", tmp_path / "log")
    wait_for_text(tmp_path / "log")
    assert process.stop(grace_s=0.3, interrupt_s=5.0) == -signal.SIGINT


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets the supervisor adopt such children")
def test_a_child_in_a_session_of_its_own_goes_with_the_engine(tmp_path: Path) -> None:
    process = python(OWN_SESSION, tmp_path / "log")
    child = int(wait_for_text(tmp_path / "log"))
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(LIMIT_S)
    assert has_ended(child)
    process.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="shared memory is no file elsewhere")
@pytest.mark.parametrize("end", ["stop", "kill", "benchctl dies"])
def test_nothing_of_a_killed_engine_stays(tmp_path: Path, end: str) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    command = [sys.executable, "-c", SHARES, str(scratch)]
    process = EngineProcess(command, os.environ, tmp_path / "log", Access(scratch, None, "key"))
    shared = Path("/dev/shm") / wait_for_text(tmp_path / "log").strip().lstrip("/")
    assert shared.exists()
    family = psutil.Process(process.pid).children()  # Python's tracker of shared memory, which is to be gone, too
    if end == "kill":
        process.remember_shared_memory()
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(LIMIT_S)
    elif end == "benchctl dies":
        process._requests.close()  # as the kernel does it
        process._supervisor.wait(LIMIT_S)
    process.stop()
    assert not shared.exists()
    assert not scratch.exists()
    assert all(map(has_ended, [process.pid, *(member.pid for member in family)]))


def test_a_folder_that_the_environment_names_is_not_deleted(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").mkdir()
    process = EngineProcess(["true"], {**os.environ, "BENCHCTL_SCRATCH": str(mine)}, tmp_path / "log")
    assert process.wait(LIMIT_S)
    process.stop()
    assert mine.is_dir()
