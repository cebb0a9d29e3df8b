"""A real llama-server that is stopped inside a request, alone and together with benchctl."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from tests.waiting import wait_for

STOPPED_S = 3.0


def answers_in(folder: Path) -> list[float]:
    """The seconds of each answer that is stored so far, half-written lines left out."""
    lines = [line for file in folder.glob("*/*/records.jsonl") for line in file.read_text().splitlines(keepends=True)]
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record["e2e_s"] for record in records if record["phase"] == "measure"]


@pytest.mark.parametrize("with_benchctl", [False, True])
def test_an_engine_that_is_stopped_inside_a_request_is_measured_again(
    with_benchctl: bool, cache: Path, tmp_path: Path
) -> None:
    options = ["--only", "baseline", "--blocks", "1", "--limit", "6", "--set", "sampling.max_tokens=256"]
    options += ["--set", "preflight=off", "--set", "sampling.ignore_eos=true"]
    command = [sys.executable, "-m", "benchctl", "run", "quickstart", "-o", str(tmp_path / "out"), "-q", *options]
    with subprocess.Popen(command) as process:
        wait_for(lambda: len(answers_in(tmp_path / "out")) >= 2 or process.poll() is not None, "two of six answers")
        ours = psutil.Process(process.pid)
        engine = next(child for child in ours.children(recursive=True) if child.name() == "llama-server")
        for _ in range(2):  # where the first stop falls between two requests, the second falls into one
            engine.suspend()
            time.sleep(STOPPED_S / 2)
            if with_benchctl:
                ours.suspend()
            time.sleep(STOPPED_S / 2)
            engine.resume()
            ours.resume()
            time.sleep(min(answers_in(tmp_path / "out")) / 2)
        assert process.wait() == 0
    (folder,) = (tmp_path / "out").glob("*/*/")
    run = open_run(folder)
    assert run.manifest is not None
    first, second = run.manifest.cells
    assert first.discarded is not None
    paused = re.search(r"it paused for ([\d.]+) s", first.discarded)
    assert paused and float(paused[1]) >= STOPPED_S
    assert second.discarded is None
    assert {record.attempt for record in run.records if record.phase == "measure"} == {1}
    assert [warning.id for warning in analyse_run(run).warnings].count("pause") == 1
