"""Conditions as a user has them: the real engine with several requests in flight, broken off and resumed."""

from __future__ import annotations

import json
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchctl.data.record import Record
from benchctl.data.store import RunData, open_run
from tests.benchctl_process import benchctl as run
from tests.cli.test_run import RECIPE, start
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.engine]


def recipe(folder: Path, *more: str, tokens: int = 24, prompts: int = 4) -> Path:
    text = RECIPE.format(tokens=tokens, prompts=prompts, blocks=1, schedule="blocks")
    file = folder / "small.yaml"
    file.write_text("\n".join([text, *more, ""]))
    return file


def measured(run: RunData) -> list[Record]:
    return [record for record in run.records if record.phase == "measure"]


def only_run(folder: Path) -> RunData:
    (run_folder,) = (folder / "results" / "small").iterdir()
    return open_run(run_folder)


def test_each_condition_is_measured_and_one_request_alone_is_as_ever(tmp_path: Path) -> None:
    for folder, extra_words in (("plain", ()), ("swept", ("concurrency: [1, 2]",))):
        (tmp_path / folder).mkdir()
        done = run("run", recipe(tmp_path / folder, *extra_words), "--quiet", cwd=tmp_path / folder)
        assert done.returncode == 0, done.stderr
    plain, swept = only_run(tmp_path / "plain"), only_run(tmp_path / "swept")
    assert swept.manifest is not None
    assert [(arm.name, arm.of, arm.concurrency) for arm in swept.manifest.arms] == [
        ("baseline-c1", "baseline", 1),
        ("spec-c1", "spec", 1),
        ("baseline-c2", "baseline", 2),
        ("spec-c2", "spec", 2),
    ]
    assert Counter(record.label for record in measured(swept)) == dict.fromkeys(
        ("baseline-c1", "spec-c1", "baseline-c2", "spec-c2"), 4
    )
    assert all(record.token_ids and record.error is None for record in measured(swept))
    before = {(record.label, record.prompt_idx): record.token_sha for record in measured(plain)}
    single_requests = [record for record in measured(swept) if record.label.endswith("-c1")]
    assert {
        (record.label.removesuffix("-c1"), record.prompt_idx): record.token_sha for record in single_requests
    } == before


@pytest.mark.parametrize("condition", ["concurrency: 2", "rate: 1000"])
def test_a_cell_broken_off_in_its_middle_is_measured_anew_as_a_whole(condition: str, tmp_path: Path) -> None:
    file = recipe(tmp_path, condition, tokens=500)
    process = start("run", file, "--only", "baseline", cwd=tmp_path)
    files = partial((tmp_path / "results" / "small").glob, "*/records.jsonl")
    wait_for(lambda: [file for file in files() if b'"phase":"measure"' in file.read_bytes()], "the first answer")
    engines = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate()
    assert process.returncode == 130, output
    _, alive = psutil.wait_procs(engines, timeout=60)
    assert not alive, "an engine is left behind"
    broken = only_run(tmp_path)
    assert all(record.error is None for record in broken.records), "no request is blamed for the interrupt"
    assert 0 < len(measured(broken)) < 4
    repeated = run("run", "--resume", broken.folder, "--quiet", cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    complete_run = measured(open_run(broken.folder))
    assert sorted(record.prompt_idx for record in complete_run) == [0, 1, 2, 3]
    assert {record.attempt for record in complete_run} == {1}, "the last ones alone would have had less company"


def test_the_plan_shows_every_condition(tmp_path: Path) -> None:
    shown = run("run", recipe(tmp_path, "concurrency: [1, 8]"), "--dry-run", "--json", cwd=tmp_path)
    plan = json.loads(shown.stdout)
    assert [cell["arm"] for cell in plan["cells"]] == ["baseline-c1", "spec-c1", "baseline-c8", "spec-c8"]
    argv = plan["commands"]["spec-c8"]
    assert argv[argv.index("-np") + 1] == "8"
    assert argv[argv.index("-c") + 1] == str(8 * 2048)
    assert any("less than 8" in warning for warning in plan["warnings"])
    none = run("run", recipe(tmp_path, "concurrency: [1, 8]"), "--only", "spec-c4", "--dry-run", cwd=tmp_path)
    assert none.returncode == 2
