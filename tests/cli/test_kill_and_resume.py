"""A run that is killed at any moment, again and again, and finished: nothing lost, nothing twice, the same verdicts.

`BENCHCTL_KILLS=50` kills so often where the suite does it five times.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import RunData, open_run
from benchctl.lossless.judge.run import analyse_run
from tests.benchctl_process import PACKAGE
from tests.benchctl_process import benchctl as run
from tests.cli.test_run import engines_of, start, the_run, write_recipe
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.engine]

KILLS = int(os.environ.get("BENCHCTL_KILLS", "5"))
LONG_RUN = os.environ.get("BENCHCTL_LONG_RUN")
PROMPTS, BLOCKS, ARMS = 3, 2, 2
SIGNALS = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def answers(run_data: RunData) -> dict[tuple[int, str, str, int], str | None]:
    return {
        record.key: record.content_sha
        for record in run_data.records
        if record.phase == "measure" and record.error is None
    }


def verdicts(run_data: RunData) -> dict[str, tuple[str, dict[Any, int]]]:
    return {row.arm: (row.verdict, dict(row.counts)) for row in analyse_run(run_data).losslessness}


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds engines through /proc")
@pytest.mark.timeout(60 * max(10, 2 * KILLS))
def test_whenever_it_is_killed_it_is_finished_as_if_it_had_not_been(tmp_path: Path) -> None:
    chance = random.Random(KILLS)
    recipe = write_recipe(tmp_path, tokens=120, prompts=PROMPTS, blocks=BLOCKS)
    began = time.monotonic()
    assert run("run", recipe, "--output", "undisturbed", cwd=tmp_path).returncode == 0
    whole_s = time.monotonic() - began
    complete_run = open_run(the_run(tmp_path / "undisturbed"))
    outcomes: Counter[str] = Counter()
    results, stored = tmp_path / "results", dict[Any, Any]()
    for _ in range(KILLS):
        if results.exists() and open_run(the_run(results)).manifest.status == "finished":  # type: ignore[union-attr]
            finish(tmp_path, complete_run, outcomes)
            shutil.rmtree(results)
            stored = {}
        words = ("run", "--resume", the_run(results)) if list(results.glob("*/*/manifest.json")) else ("run", recipe)
        process = start(*words, cwd=tmp_path)
        number = chance.choice(SIGNALS)
        time.sleep(chance.uniform(0.0, whole_s))
        process.send_signal(number)
        _, stderr = process.communicate()
        outcomes[f"{number.name}: {'finished before' if process.returncode == 0 else 'cut off'}"] += 1
        assert "Traceback" not in stderr or str(PACKAGE) not in stderr, stderr
        wait_for(lambda: not engines_of(tmp_path), "the engine's end")
        if list(results.glob("*/*/manifest.json")):
            answers_now = answers(open_run(the_run(results)))
            assert stored.items() <= answers_now.items(), "what was measured stays"
            stored = answers_now
        elif results.exists():
            shutil.rmtree(results)  # killed before the manifest was there: nothing was measured yet
    finish(tmp_path, complete_run, outcomes)
    if LONG_RUN:
        document = {"kills": KILLS, "undisturbed_s": round(whole_s, 1), "outcomes": dict(sorted(outcomes.items()))}
        Path(LONG_RUN).write_text(json.dumps(document, indent=1) + "\n")


def finish(folder: Path, whole: RunData, told: Counter[str]) -> None:
    """Finish the run, and hold it against the undisturbed one."""
    results = folder / "results"
    words = ("--resume", the_run(results)) if list(results.glob("*/*/manifest.json")) else (folder / "small.yaml",)
    done = run("run", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    data = open_run(the_run(results))
    assert data.manifest is not None
    assert data.manifest.status == "finished"
    assert data.damaged == []
    assert answers(data) == answers(whole), "nothing is lost, and every answer is the undisturbed one's"
    assert len(answers(data)) == PROMPTS * BLOCKS * ARMS
    lines = [json.loads(line) for line in (data.folder / "records.jsonl").read_text().splitlines()]
    good = [line for line in lines if line["phase"] == "measure" and line["error"] is None]
    times = Counter((row["block"], row["label"], row["task"], row["prompt_idx"], row["started_at"]) for row in good)
    assert len(times) == PROMPTS * BLOCKS * ARMS, "nothing is measured twice"
    last = {(cell.block, cell.arm): cell for cell in data.manifest.cells}
    assert {cell.status for cell in last.values()} == {"finished"}
    assert {(arm, cell.attestation.state) for (_, arm), cell in last.items() if cell.attestation} == {
        ("baseline", "off"),
        ("spec", "active"),
    }
    assert verdicts(data) == verdicts(whole)
    told["finished runs held against the undisturbed one"] += 1
