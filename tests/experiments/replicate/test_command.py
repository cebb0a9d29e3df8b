"""`benchctl compare --replicate`: the work of a run is measured here, and it is said which of its claims agree."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import read_manifest
from benchctl.engines.llama_cpp.installation import search
from benchctl.models import gguf_facts
from tests.benchctl_process import benchctl
from tests.cli.test_compare import slower, write_run
from tests.security.test_evidence import edit_manifest

BUNDLED = Path(gguf_facts.__file__).parent / "bundled"
RECIPE = """
name: small
engine: {device: cpu, context: 512, threads: 1}
models: {target: {source: target.gguf}, draft: {source: draft.gguf}}
prompts: {suite: tiny.json, tasks: [code], limit: 2}
sampling: {max_tokens: 24, ignore_eos: true}
blocks: 3
arms: [{name: baseline}, {name: spec, speculation: {type: draft-simple, max: 3, min: 1}}]
"""
Replicate = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def replicate(tmp_path: Path) -> Replicate:
    return lambda *words, **env: benchctl("compare", "--replicate", *words, cwd=tmp_path, **env)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and beside it the models, which another machine has elsewhere."""
    folder = tmp_path_factory.mktemp("there")
    for name, bundled in (("target", "tiny-hybrid"), ("draft", "tiny-hybrid-draft")):
        shutil.copy(BUNDLED / f"{bundled}.gguf", folder / f"{name}.gguf")
    (folder / "small.yaml").write_text(RECIPE)
    done = benchctl("run", "small.yaml", "-o", "results", "-q", cwd=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "results").glob("small/*")
    return run.rename(folder / "run")


def outcomes(document: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {(claim["arm"], claim["what"]): claim["outcome"] for claim in document["claims"]}


@pytest.mark.engine
@pytest.mark.slow
def test_the_work_of_a_run_is_measured_here_and_its_claims_are_compared(
    theirs: Path, tmp_path: Path, replicate: Replicate
) -> None:
    own = tmp_path / "theirs"
    shutil.copytree(theirs, own)
    edit_manifest(own, lambda manifest: manifest["machine"].update(cpu="another"))
    models = theirs.parent.rename(theirs.parent.with_name("moved"))  # found by name no more, but by hash
    try:
        stranger = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
        done = replicate(own, "--models-dir", models, "--json", **stranger)
    finally:
        models.rename(theirs.parent)
    assert done.returncode in (0, 1), done.stderr
    document = json.loads(done.stdout)
    found = outcomes(document)
    assert found["spec", "acceptance code"] == found["spec", "output"] == "agrees"
    assert found["spec", "decode rate"] == found["baseline", "ttft"] == "not compared", "another machine"
    assert found["spec", "speed-up"] in ("agrees", "differs", "cannot tell")
    assert document["agrees"] == (done.returncode == 0) and any("machine cpu" in note for note in document["notes"])
    (measured,) = (tmp_path / "results").glob("small/*/manifest.json")
    assert read_manifest(measured.parent).workload_sha256 == read_manifest(own).workload_sha256
    again = replicate(own, measured.parent)
    assert again.returncode == done.returncode and "another machine" in again.stdout


@pytest.mark.engine
def test_what_is_not_here_is_said_before_anything_is_measured(
    theirs: Path, tmp_path: Path, replicate: Replicate
) -> None:
    shutil.copytree(theirs, tmp_path / "theirs")
    moved = theirs.parent.rename(theirs.parent.with_name("gone"))
    try:
        nothing = {"BENCHCTL_CACHE": str(tmp_path), "HF_HOME": str(tmp_path), "HOME": str(tmp_path)}
        nothing |= {"BENCHCTL_LLAMA_SERVER": str(search().find().path)}
        lacking = replicate("theirs", **nothing)
        assert lacking.returncode == 2 and "--target FILE" in lacking.stderr
        target, draft = ((moved / f"{name}.gguf") for name in ("target", "draft"))
        other = replicate("theirs", "-t", target, "-d", target)
        assert other.returncode == 2 and "draft model" in other.stderr
        engine = replicate("theirs", "-t", target, "-d", draft, BENCHCTL_LLAMA_SERVER=str(tmp_path / "none"))
        assert engine.returncode in (2, 3) and "no such program" in engine.stderr
    finally:
        moved.rename(theirs.parent)
    assert not (tmp_path / "results").exists()


def test_a_claim_that_does_not_hold_here_exits_with_one(tmp_path: Path, replicate: Replicate) -> None:
    there = write_run(tmp_path / "there")
    assert replicate(there, write_run(tmp_path / "same")).returncode == 0
    differing = replicate(there, write_run(tmp_path / "slow", slower))
    assert differing.returncode == 1 and "spec speed-up" in differing.stderr and "differs" in differing.stdout


@pytest.mark.parametrize(("speed", "outcome"), [(1.2, "agrees"), (3.0, "differs")])
def test_of_what_another_program_measured_only_the_speed_up_is_compared(
    tmp_path: Path, replicate: Replicate, speed: float, outcome: str
) -> None:
    for arm, seconds in (("baseline", 1.0), ("spec", 1 / speed)):
        document = {"model_id": "m", "num_prompts": 1, "total_token_throughput": 1.0, "max_concurrency": 1}
        lists = {"input_lens": [5], "output_lens": [11], "ttfts": [0.5], "itls": [[seconds] * 10]}
        lists |= {"generated_texts": ["x"], "errors": [""]}
        (tmp_path / f"{arm}.json").write_text(json.dumps(document | lists))
    words = ("runs", "import", "baseline=baseline.json", "spec=spec.json", "-o", "imported")
    assert benchctl(*words, cwd=tmp_path).returncode == 0
    alone = replicate("imported")
    assert alone.returncode == 2 and "RECIPE" in alone.stderr
    done = replicate("imported", write_run(tmp_path / "here"), "--json")
    found = outcomes(json.loads(done.stdout))
    assert found == {("spec", "speed-up"): outcome}
    assert done.returncode == (outcome == "differs")


def test_it_goes_with_no_gate_and_its_options_need_it(tmp_path: Path, replicate: Replicate) -> None:
    there = write_run(tmp_path / "there")
    assert replicate(there, "--fail-if", "lossy").returncode == 2
    assert benchctl("compare", there, there, "-t", "x.gguf", cwd=tmp_path).returncode == 2
