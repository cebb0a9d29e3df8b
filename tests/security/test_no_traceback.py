"""Ctrl-C at any moment, a limit of memory, damaged stored scores: one message and its exit code, no traceback."""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchctl.data.scores import SCORES, read_scores
from benchctl.errors import StorageError
from benchctl.lossless.judge.noise import noise_of
from tests.benchctl_process import PACKAGE, benchctl
from tests.resealed import reseal

MOMENTS = 12
KEPT = next((Path(__file__).parents[2] / "results" / "qwen2.5-coder").glob("*/manifest.json")).parent


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run", "quickstart", "--dry-run"), ("verify-lossless", str(KEPT), "--offline")])
def test_ctrl_c_in_the_first_second_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """Seconds of the process itself: no other work of the machine moves them."""
    lines = 0
    for attempt in range(MOMENTS):
        with subprocess.Popen(
            [sys.executable, "-m", "benchctl", *words],
            cwd=tmp_path,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            while process.poll() is None and sum(psutil.Process(process.pid).cpu_times()[:2]) < attempt / MOMENTS:
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate()
        where = f"after {attempt / MOMENTS:.2f} s, exit {process.returncode}:\n{stderr}"
        if "Traceback" in stderr:  # Python itself was starting: no line of benchctl had been read
            assert str(PACKAGE) not in stderr and attempt < MOMENTS / 2, where
            continue
        assert process.returncode in {130, -signal.SIGINT, 0}, where
        interrupted = sum("Interrupted" in line for line in stderr.splitlines())
        assert interrupted == (process.returncode == 130) or process.returncode == -signal.SIGINT, where
        lines += interrupted
    assert lines > MOMENTS / 4, "else this shows nothing"


IN_C_CODE = """
class Pattern:
    def __del__(self): raise KeyboardInterrupt
def run():
    Pattern()
    for _ in range(100): time.sleep(0.1)
"""
IN_A_HALF_MADE_LOOP = """
class Selector:
    def __init__(self): raise KeyboardInterrupt
def run():
    selectors.DefaultSelector = Selector
    asyncio.run(asyncio.sleep(0))
"""


@pytest.mark.parametrize("run", [IN_C_CODE, IN_A_HALF_MADE_LOOP])
def test_ctrl_c_where_nothing_can_take_it_is_one_line(run: str) -> None:
    imports = "import asyncio, selectors, time, benchctl.cli.app, benchctl.__main__ as program"
    code = f"{imports}\n{run}\nbenchctl.cli.app.app = run\nprogram.main()"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="macOS does not enforce these limits")
@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_a_limit_of_memory_is_never_a_verdict(limit: int, tmp_path: Path) -> None:
    labels = ("baseline", "spec")
    lines = [
        {"label": name, "task": "code", "prompt_idx": 0, "rep": 0, "content": "a", "n_predicted": 1} for name in labels
    ]
    (tmp_path / "equal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    codes = {}
    for megabytes in (32, 128, 256, 511, 512, 550, 700, 2000):
        done = subprocess.run(
            [sys.executable, "-m", "benchctl", "verify-lossless", "equal.jsonl", "--offline"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=partial(resource.setrlimit, limit, (megabytes * 10**6, megabytes * 10**6)),
        )
        assert done.returncode in {0, 70}, f"{megabytes} MB, exit {done.returncode}:\n{done.stderr}"
        assert "Traceback" not in done.stderr and "bug" not in done.stderr, f"{megabytes} MB:\n{done.stderr}"
        assert done.returncode == 0 or "not enough memory" in done.stderr
        codes[megabytes] = done.returncode
    assert codes == {megabytes: 70 if megabytes < 512 else 0 for megabytes in codes}


def spoil_losses(audit: dict[str, Any]) -> None:
    audit["passes"][0]["losses"].pop()


def spoil_place(audit: dict[str, Any]) -> None:
    audit["passes"][0]["places"][-1] = 10**6


def spoil_sign(audit: dict[str, Any]) -> None:
    audit["passes"][0]["places"][0] = -1


def spoil_margin(audit: dict[str, Any]) -> None:
    audit["answers"][0]["margins"][0] = float("nan")


def spoil_divergence(audit: dict[str, Any]) -> None:
    next(answer for answer in audit["answers"] if answer["diverged"])["diverged"][0]["index"] = 10**6


@pytest.mark.parametrize("spoil", [spoil_losses, spoil_place, spoil_sign, spoil_margin, spoil_divergence])
def test_damaged_scores_are_named(spoil: Callable[[dict[str, Any]], None], tmp_path: Path) -> None:
    document = json.loads((KEPT / SCORES).read_text())
    spoil(document)
    (tmp_path / SCORES).write_text(json.dumps(document))
    with pytest.raises(StorageError, match="is damaged") as damage:
        read_scores(tmp_path)
    assert damage.value.where == str(tmp_path / SCORES) and damage.value.exit_code == 4


def test_a_flipped_bit_of_scores_is_read_or_named(tmp_path: Path) -> None:
    seeded = random.Random(1)
    sound, file = (KEPT / SCORES).read_bytes(), tmp_path / SCORES
    for _ in range(80):
        damaged = bytearray(sound)
        damaged[seeded.randrange(len(damaged))] ^= 1 << seeded.randrange(8)
        file.write_bytes(damaged)
        try:
            scores = read_scores(file.parent)
        except StorageError as damage:
            assert str(file) in str(damage)
            continue
        if scores is not None:
            noise_of(scores, [read.width for read in scores.passes])


@pytest.mark.slow
@pytest.mark.parametrize("sealed", [False, True])
def test_the_command_names_a_damaged_file(sealed: bool, tmp_path: Path) -> None:
    """Changed after it was written, the file is named, not used, and no arm is explained; a sealed one is an error."""
    run = tmp_path / KEPT.name
    shutil.copytree(KEPT, run, ignore=shutil.ignore_patterns("logs"))
    document = json.loads((run / SCORES).read_text())
    spoil_losses(document)
    (run / SCORES).write_text(json.dumps(document))
    if sealed:
        done = benchctl("verify-lossless", reseal(run), "--offline")
        assert done.returncode == 4 and "Traceback" not in done.stderr
        assert "scores.json" in done.stderr and "is damaged" in done.stderr
        return
    done = benchctl("verify-lossless", run, "--offline", "--json")
    assert done.returncode == 1 and not done.stderr
    answer = json.loads(done.stdout)
    (change,) = answer["integrity"]["scores"]
    assert change == "scores.json was changed after it was written, and is not used."
    differing = [arm for arm in answer["arms"] if arm["verdict"] != "identical"]
    assert differing and all(arm["verdict"] == "undetermined" for arm in differing)
    assert all(change.rstrip(".") in arm["reason"] for arm in differing)
