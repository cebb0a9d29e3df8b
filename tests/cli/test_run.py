"""`benchctl run` as a user has it: the real engine, the bundled pair, whole processes, real signals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from benchctl.data.store import open_run
from benchctl.lossless.judge.run import analyse_run
from benchctl.paths import shipped_folder
from benchctl.words.stopping import first_sentence
from tests.benchctl_process import benchctl as run
from tests.resealed import reseal
from tests.waiting import has_ended, wait_for

pytestmark = pytest.mark.engine

RECIPE = """\
name: small
engine: {{device: cpu, context: 2048, threads: 1}}
models:
  target: {{source: "bundled:tiny-hybrid"}}
  draft: {{source: "bundled:tiny-hybrid-draft"}}
prompts: {{suite: tiny.json, tasks: [code], limit: {prompts}}}
sampling: {{max_tokens: {tokens}, ignore_eos: true}}
blocks: {blocks}
schedule: {schedule}
preflight: "off"
arms:
  - name: baseline
  - name: spec
    speculation: {{type: draft-simple, max: 2}}
"""


def write_recipe(
    folder: Path, *, tokens: int = 24, prompts: int = 2, blocks: int | str = 1, schedule: str = "blocks"
) -> Path:
    file = folder / "small.yaml"
    file.write_text(RECIPE.format(tokens=tokens, prompts=prompts, blocks=blocks, schedule=schedule))
    return file


def start(*words: object, cwd: Path) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "benchctl", *map(str, words)]
    return subprocess.Popen(argv, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def the_run(results: Path) -> Path:
    """The folder with a manifest; a listing may miss that for a moment, while it is replaced."""
    (manifest,) = wait_for(lambda: list(results.glob("*/*/manifest.json")), "the manifest")
    return manifest.parent


def engines_of(folder: Path) -> list[psutil.Process]:
    """The llama-servers whose log lies in `folder`: those of this test, and of no other running beside it."""
    engines = []
    for process in psutil.process_iter():
        try:
            log = Path(f"/proc/{process.pid}/fd/2").readlink()
            if process.name() == "llama-server" and log.is_relative_to(folder.resolve()):
                engines.append(process)
        except (OSError, psutil.Error):
            continue
    return engines


def measured(results: Path) -> list[tuple[int, str, str, int]]:
    """The measurements in the file; one whose token ids were fetched later stands there twice and counts once."""
    lines = (the_run(results) / "records.jsonl").read_text().splitlines(keepends=True)
    whole = (json.loads(line) for line in lines if line.endswith("\n"))  # the last is just being written
    records = [record for record in whole if record["phase"] == "measure"]
    unique = {(r["block"], r["label"], r["task"], r["prompt_idx"], r["started_at"]): None for r in records}
    return [(block, label, task, index) for block, label, task, index, _ in unique]


def outcomes(results: Path) -> set[str]:
    (analysis,) = analyse_run(open_run(the_run(results))).losslessness
    return set(analysis.counts)


def test_a_run_from_recipe_to_verdict(tmp_path: Path) -> None:
    done = run("run", write_recipe(tmp_path, blocks=2), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "baseline: 2 answers" in done.stderr
    data = open_run(the_run(tmp_path / "results"))
    assert data.manifest is not None
    assert data.manifest.status == "finished"
    assert [(c.block, c.arm) for c in data.manifest.cells] == [
        (0, "baseline"),
        (0, "spec"),
        (1, "spec"),
        (1, "baseline"),
    ]
    canaries = [c.canary for c in data.manifest.cells]
    assert [(c.requests, c.exact, c.same) for c in canaries if c] == [(1, True, True)] * 4, "asked again, unmeasured"
    states = {c.arm: c.attestation.state for c in data.manifest.cells if c.attestation}
    assert states == {"baseline": "off", "spec": "active"}
    baseline = [r for r in data.records if r.label == "baseline"]
    assert {r.draft_n for r in baseline} == {None}
    spec = [r for r in data.records if r.label == "spec" and r.phase == "measure"]
    assert all(r.draft_n and r.rounds and r.accepted_by_position for r in spec)
    assert all(r.n_predicted == 24 == len(r.token_ids or ()) for r in spec)
    text = (data.folder / "manifest.json").read_text()
    assert str(Path.home()) not in text.replace(str(tmp_path), ""), "paths below the home are written with ~"

    verified = run("verify-lossless", "--json", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)


def test_a_dry_run_prints_commands_and_starts_nothing(tmp_path: Path) -> None:
    done = run("run", write_recipe(tmp_path, blocks=3), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "at most 288 tokens" in done.stdout
    assert "block 2: spec → baseline" in done.stdout
    assert "--spec-type draft-simple" in done.stdout
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("number", "code", "status"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGKILL, -9, "started")]
)
@pytest.mark.skipif(not Path("/proc").exists(), reason="finds engines through /proc")
@pytest.mark.slow
def test_a_run_that_is_cut_off_leaves_no_engine_and_resumes(
    tmp_path: Path, number: signal.Signals, code: int, status: str
) -> None:
    """With the engines of a block beside each other; one after the other is killed in `test_kill_and_resume`."""
    recipe = write_recipe(tmp_path, tokens=200, prompts=4, blocks=2, schedule="interleaved")
    process = start("run", recipe, cwd=tmp_path)
    results = tmp_path / "results"
    wait_for(lambda: list(results.glob("*/*/records.jsonl")), "the records")
    wait_for(lambda: len(measured(results)) >= 3, "a part of the first block")
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code, err
    assert ("run --resume" in err) == (number == signal.SIGINT)
    wait_for(lambda: not engines_of(tmp_path), "the engine's end")
    assert json.loads((the_run(results) / "manifest.json").read_text())["status"] == status
    before = measured(results)

    resumed = run("run", "--resume", "small", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    after = measured(results)
    assert after[: len(before)] == before
    assert len(after) == len(set(after)) == 16, "nothing is lost and nothing is measured twice"
    assert "undetermined" not in outcomes(results), "nothing is missing any more"


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds engines through /proc")
@pytest.mark.slow
def test_a_killed_engine_costs_its_cell_only(tmp_path: Path) -> None:
    process = start("run", write_recipe(tmp_path, tokens=500, prompts=2, blocks=1), cwd=tmp_path)
    results = tmp_path / "results"
    wait_for(lambda: list(results.glob("*/*/records.jsonl")), "the records")
    wait_for(lambda: measured(results), "the first of two answers")
    (engine,) = engines_of(tmp_path)
    engine.kill()
    _, err = process.communicate()
    assert process.returncode == 3, err
    assert "signal SIGKILL" in err
    data = open_run(the_run(tmp_path / "results"))
    assert data.manifest is not None
    assert [(c.arm, c.status) for c in data.manifest.cells] == [("baseline", "failed"), ("spec", "finished")]
    verified = run("verify-lossless", cwd=tmp_path)
    assert verified.returncode == 1, "what is missing is never equal"
    assert "undetermined" in verified.stdout

    healed = run("run", "--resume", "small", cwd=tmp_path)
    assert healed.returncode == 0, healed.stderr
    assert "undetermined" not in outcomes(tmp_path / "results")


@pytest.mark.skipif(not Path("/proc").exists(), reason="finds engines through /proc")
@pytest.mark.slow
def test_a_killed_engine_among_interleaved_ones_costs_its_cell_only(tmp_path: Path) -> None:
    process = start("run", write_recipe(tmp_path, tokens=200, prompts=4, schedule="interleaved"), cwd=tmp_path)
    results = tmp_path / "results"
    wait_for(lambda: list(results.glob("*/*/records.jsonl")), "the records")
    wait_for(lambda: len(measured(results)) >= 2, "an answer of each")
    engines = {Path(f"/proc/{engine.pid}/fd/2").readlink().name: engine for engine in engines_of(tmp_path)}
    assert set(engines) == {"block0-baseline.log", "block0-spec.log"}, "both are up at once"
    engines["block0-baseline.log"].kill()
    _, err = process.communicate()
    assert process.returncode == 3, err
    data = open_run(the_run(results))
    assert data.manifest is not None
    assert [(c.arm, c.status) for c in data.manifest.cells] == [("baseline", "failed"), ("spec", "finished")]
    assert sum(r.label == "spec" and r.phase == "measure" for r in data.records) == 4

    healed = run("run", "--resume", "small", cwd=tmp_path)
    assert healed.returncode == 0, healed.stderr
    assert len(measured(results)) == 8 + 1, "the request that the engine died in is in the file, too"


@pytest.mark.slow
def test_blocks_as_many_as_it_takes(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, prompts=1, blocks="{half_width: 0.5, max: 6}")
    plan = run("run", recipe, "--dry-run", cwd=tmp_path)
    assert "10 engine starts" in plan.stdout
    assert "12 cells" in plan.stdout
    recipe = write_recipe(tmp_path, prompts=1, blocks="{half_width: 0.5, max: 5, budget_min: 60}")
    done = run("run", recipe, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    data = open_run(the_run(tmp_path / "results"))
    assert data.manifest is not None
    assert data.manifest.stopped is not None
    assert data.manifest.stopped.reason in {"reached", "maximum"}, "how narrow it got is the machine's affair"
    assert (data.manifest.blocks, len(data.manifest.cells)) == (5, 10)
    stopping = analyse_run(data).stopping
    assert stopping is not None
    assert stopping.half_widths == data.manifest.stopped.half_widths, "a report comes to what the run decided by"
    shown = run("report", "small", "-v", cwd=tmp_path)
    assert first_sentence(stopping) in " ".join(shown.stdout.split())
    assert "more repetitions" not in run("run", "--resume", "small", "--dry-run", cwd=tmp_path).stdout
    repeated = run("run", "--resume", "small", cwd=tmp_path)
    assert repeated.returncode == 0, repeated.stderr
    assert len(measured(tmp_path / "results")) == 10, "a run that has ended stays as it is"


def test_two_processes_do_not_write_one_run(tmp_path: Path) -> None:
    process = start("run", write_recipe(tmp_path, tokens=1500, prompts=4), cwd=tmp_path)
    wait_for(lambda: list((tmp_path / "results").glob("*/*/manifest.json")), "the run folder")
    process.send_signal(signal.SIGSTOP)  # so that it is not over before the second begins
    second = run("run", "--resume", "small", cwd=tmp_path)
    process.send_signal(signal.SIGCONT)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    assert process.returncode == 130
    assert second.returncode == 4, second.stderr
    assert f"Another benchctl (process {process.pid}) is writing this run." in second.stderr


def test_a_run_is_resumed_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "elsewhere").mkdir()
    recipe = write_recipe(tmp_path / "recipes")
    recipe.write_text(recipe.read_text().replace("tiny.json", "mine.json"))
    shutil.copyfile(shipped_folder("prompts") / "tiny.json", recipe.with_name("mine.json"))
    assert run("run", "recipes/small.yaml", "--quiet", cwd=tmp_path).returncode == 0
    records = the_run(tmp_path / "results") / "records.jsonl"
    records.write_text("".join(records.read_text().splitlines(keepends=True)[:-1]))
    reseal(records.parent)
    resumed = run("run", "--resume", the_run(tmp_path / "results"), cwd=tmp_path / "elsewhere")
    assert resumed.returncode == 0, resumed.stderr
    assert len(measured(tmp_path / "results")) == 4


def test_a_preparation_that_is_cut_off_leaves_nothing_running(tmp_path: Path) -> None:
    slow = tmp_path / "llama-server"
    slow.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 900\n")
    slow.chmod(0o755)
    process = start("run", write_recipe(tmp_path), "--engine-binary", slow, cwd=tmp_path)
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the probe"))
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 130, err
    wait_for(lambda: has_ended(pid), "the probe's end")


def test_json_is_one_document_on_stdout(tmp_path: Path) -> None:
    done = run("run", write_recipe(tmp_path), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "finished"
    assert document["failed"] == []
    assert document["analysis"]["baseline"] == "baseline"
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "Name a recipe, a target, two servers, or a run to resume."),
        (["small.yaml", "--resume", "x"], 2, "Name a recipe, a target, two servers, or a run to resume."),
        (["small.yaml", "--only", "spek"], 2, "There is no arm 'spek'."),
        (["nothing.yaml"], 2, "nothing.yaml"),
        (["small.yaml", "--engine-binary", "/bin/true"], 3, "/bin/true"),
        (["small.yaml", "--output", "small.yaml"], 4, "cannot write here"),
        (["--resume", "small"], 2, "There is no such run."),
        (["small.yaml", "--blocks", "0"], 2, "--blocks"),
    ],
)
def test_bad_input_is_one_message(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    write_recipe(tmp_path)
    done = run("run", *words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
