"""A complete adapter of another package: benchctl runs, verifies and reports with it."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENTRY_POINT = "[benchctl.engines]\ntoy = tests.engines.toy.toy_adapter:ADAPTER\n"
RECIPE = """
name: toy
engine: {{kind: toy, binary: {binary}, context: 512, greeting: hello}}
models: {{target: {{source: "bundled:tiny-sequential"}}}}
prompts: {{suite: tiny.json, tasks: [code], limit: 2}}
sampling: {{max_tokens: 24}}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - name: lookup
    speculation: {{type: {kind}, max: 3}}
"""

ADAPTIVE = """\
  - name: adaptive        # simulated: of 3 drafted tokens a round verifies 2
    speculation: {type: ngram-simple, max: 3}
    args: [--budget, "2"]
"""


def benchctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call benchctl where one more package is installed, which brings the engine."""
    installed = folder / "site" / "toy_serve-1.dist-info"
    if not installed.exists():
        installed.mkdir(parents=True)
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-serve\nVersion: 1\n")
        (installed / "entry_points.txt").write_text(ENTRY_POINT)
    path = os.pathsep.join([str(ROOT), str(installed.parent)])
    env = {**os.environ, "PYTHONPATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "benchctl", *words]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "toy-serve"
    path.write_text(f"#!{sys.executable}\n{(HERE / 'toy_serve.py').read_text()}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_run_verify_report(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(RECIPE.format(binary=binary, kind="ngram-simple") + ADAPTIVE)
    own = ("--engine-binary", str(binary), "--trust-recipe")
    run = benchctl(tmp_path, "run", "toy.yaml", "--output", "results", *own)
    assert run.returncode == 0, run.stdout + run.stderr
    (folder,) = (tmp_path / "results" / "toy").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["engine"]["version"] == "toy-serve 1.0"
    assert manifest["recipe"]["engine"]["greeting"] == "hello"
    assert all("--greeting" in arm["argv"] for arm in manifest["arms"])
    assert [cell["attestation"]["state"] for cell in manifest["cells"]] == ["off", "active", "active"]
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    looked_up = [record for record in records if record["label"] == "lookup" and record["phase"] == "measure"]
    assert [(line["draft_n"], line["draft_n_accepted"], line["rounds"]) for line in looked_up] == [(18, 17, 6)] * 2
    verified = benchctl(tmp_path, "verify-lossless", str(folder))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "identical" in verified.stdout
    reported = benchctl(tmp_path, "report", str(folder))
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert list(tmp_path.rglob("index.html"))
    # Drafted, verified and accepted, in every form; what `lookup` does not report of them is absent.
    counts = {"lookup": (36, None, 34), "adaptive": (48, 32, 30)}
    overall = [row for row in json.loads(next(tmp_path.rglob("analysis.json")).read_text())["acceptance"]
               if row["task"] == "all" and row["arm"] in counts]  # fmt: skip
    assert {row["arm"]: (row["drafted"], row["verified"], row["accepted"]) for row in overall} == counts
    (stored,) = tmp_path.rglob("acceptance.csv")
    with stored.open(newline="") as file:
        read = {row["arm"]: (row["drafted"], row["verified"], row["accepted"]) for row in csv.DictReader(file)}
    written = {arm: tuple("" if count is None else str(count) for count in of_arm) for arm, of_arm in counts.items()}
    assert read == written
    assert ">Verified</th>" in next(tmp_path.rglob("index.html")).read_text()
    rows = benchctl(tmp_path, "report", str(folder), "--format", "row").stdout
    assert "| 36 / – / 34 |" in rows and "| 48 / 32 / 30 |" in rows


def test_what_it_cannot_do_is_refused(binary: Path, tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(RECIPE.format(binary=binary, kind="ngram-mod"))
    run = benchctl(tmp_path, "run", "toy.yaml", "--output", "results", "--engine-binary", str(binary))
    assert run.returncode == 2
    assert "toy-serve knows only" in run.stderr


def test_an_unknown_kind_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    (tmp_path / "toy.yaml").write_text(RECIPE.format(binary="x", kind="ngram-simple").replace("kind: toy", "kind: tyo"))
    run = benchctl(tmp_path, "run", "toy.yaml", "--output", "results")
    assert run.returncode == 2
    assert "toy" in run.stderr


def test_it_is_in_every_list_and_its_own_keys_in_the_schema(tmp_path: Path) -> None:
    listed = json.loads(benchctl(tmp_path, "engines", "list", "--json").stdout)["engines"]
    assert [engine["hint"] for engine in listed if engine["kind"] == "toy"] == ["it comes with benchctl's tests"]
    schema = json.loads(benchctl(tmp_path, "recipes", "schema").stdout)
    assert "greeting" in schema["$defs"]["ToySpec"]["properties"]
    (tmp_path / "toy.yaml").write_text(RECIPE.format(binary="x", kind="ngram-simple").replace("greeting", "greting"))
    checked = benchctl(tmp_path, "recipes", "check", "toy.yaml")
    assert checked.returncode == 2
    assert "'greeting'" in checked.stderr


def test_its_lossy_settings_are_named_before_it_runs(binary: Path, tmp_path: Path) -> None:
    recipe = RECIPE.format(binary=binary, kind="ngram-simple") + "    args: [--guess]\n"
    (tmp_path / "toy.yaml").write_text(recipe)
    planned = benchctl(tmp_path, "run", "toy.yaml", "--dry-run", "--engine-binary", str(binary), "--trust-recipe")
    assert "guessed acceptance" in planned.stdout + planned.stderr
