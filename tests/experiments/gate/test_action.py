"""The GitHub Action: its steps as scripts, on the bundled pair; what it must let pass and what it must stop."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from benchctl.engines.llama_cpp.installation import search
from tests.security.test_evidence import edit_records

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
RECIPE = """
name: gated
engine: {{device: cpu, context: 512, threads: 1}}
models: {{target: {{source: "bundled:tiny-hybrid"}}, draft: {{source: "bundled:tiny-hybrid-draft"}}}}
prompts: {{suite: tiny.json, tasks: [code], limit: 3}}
sampling: {{max_tokens: 48, ignore_eos: true}}
blocks: 3
preflight: "off"
arms: [{{name: baseline}}, {{name: spec, speculation: {{type: draft-simple, max: {depth}, min: 1}}}}]
"""
WRONG_WHERE_IT_DRAFTS = """#!/bin/sh
case " $* " in *draft*) exec "{server}" "$@" --rope-freq-base 100 ;; esac
exec "{server}" "$@"
"""


class Job:
    """A checkout in which the action's steps run one after the other, as a runner runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = {name: str(specification.get("default", "")) for name, specification in ACTION["inputs"].items()}
        self.inputs |= {"recipe": "recipe.yaml", "baseline": "baseline.json", "run-options": "--blocks 3"}
        self.summary = folder / "summary.md"
        (folder / "bin").mkdir()
        shim = folder / "bin" / "benchctl"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m benchctl "$@"\n')
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        inputs = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: self.inputs[match[1]], value)
            for key, value in step["env"].items()
        }
        environment = {"GITHUB_STEP_SUMMARY": str(self.summary), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment, **inputs},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )

    def measure(self, results: str, *, depth: int = 4) -> None:
        self.inputs["results"] = results
        (self.folder / "recipe.yaml").write_text(RECIPE.format(depth=depth))
        done = self.step("Measure")
        assert done.returncode == 0, done.stdout + done.stderr

    def gate(self, results: str) -> tuple[int, str]:
        self.inputs["results"] = results
        done = self.step("Gate")
        return done.returncode, done.stdout


def test_no_expression_is_pasted_into_a_script_and_every_input_is_used() -> None:
    text = (ROOT / "action.yml").read_text("utf-8")
    for step in STEPS.values():
        assert "${{" not in step.get("run", "")
    assert all(f"inputs.{name} " in text for name in ACTION["inputs"])


def steady(wobble: int, speed: float = 1.0, apart: float = 0.01) -> Callable[[dict[str, Any]], None]:
    """Give all answers times that a quiet machine would, in accord with one another: nothing is timed in a test.

    Blocks lie `apart` or twice as much, as `wobble` says; `speed`: of the arm, over its usual one.
    """
    clock: dict[tuple[str, int], float] = defaultdict(float)

    def change(line: dict[str, Any]) -> None:
        if line["phase"] != "measure":
            return
        arm, block = line["label"], line["block"]
        pace = 0.02 * (1 + apart * ((wobble + block * (2 if arm == "spec" else 1)) % 3))
        pace /= speed if arm == "spec" else 1
        seconds = (line["n_predicted"] - 1) * pace
        line.update(tok_per_sec=1 / pace, client_tok_per_sec=1 / pace, decode_s=seconds, engine_decode_s=seconds)
        line.update(ttft_s=0.01, e2e_s=seconds + 0.01, sent_s=clock[arm, block])
        clock[arm, block] += seconds + 0.02

    return change


def edited(job: Job, results: str, change: Callable[[dict[str, Any]], None], copy: str) -> str:
    shutil.copytree(job.folder / results, job.folder / copy)
    (manifest,) = (job.folder / copy).glob("*/*/manifest.json")
    edit_records(manifest.parent, change)
    return copy


@pytest.mark.engine
@pytest.mark.slow
def test_unchanged_runs_pass_and_what_was_planted_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    job.measure("measured")
    assert job.gate(edited(job, "measured", steady(0), "first"))[0] == 2, "there is no baseline yet"
    shutil.copy(tmp_path / "first" / "baseline.json", tmp_path / "baseline.json")
    job.measure("measured again")
    for wobble, results in enumerate(("second", "third")):
        code, output = job.gate(edited(job, "measured again", steady(wobble), results))
        assert code == 0, output
        assert {"baseline.json", "certificate.json", "gates.xml"} <= {
            file.name for file in (tmp_path / results).iterdir()
        }
    assert job.step("Summarise").returncode == 0
    assert "✓ slower:10%: passed." in job.summary.read_text() and "**" in job.summary.read_text()

    code, output = job.gate(edited(job, "measured again", steady(1, speed=0.7), "slower"))
    assert code == 1 and "slower:10%: spec: 0.7" in output and "1 of 3 gates failed" in output
    failures = ElementTree.parse(tmp_path / "slower" / "gates.xml").findall("testcase/failure")
    assert len(failures) == 1 and "slower by more than 10 %" in failures[0].attrib["message"]
    code, output = job.gate(edited(job, "measured again", steady(1, apart=0.1), "noisy"))
    assert code == 1 and "cannot tell" in output

    job.measure("shallow", depth=1)
    code, output = job.gate("shallow")
    assert code == 1 and "spec, code: 0." in output

    binary = tmp_path / "llama-server"
    binary.write_text(WRONG_WHERE_IT_DRAFTS.format(server=search().find().path))
    binary.chmod(0o755)
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(binary))
    job.measure("lossy")
    code, output = job.gate("lossy")
    assert code == 1 and "lossy: spec: violation" in output
    assert json.loads((tmp_path / "lossy" / "certificate.json").read_text())["predicate"]["result"] == "FAILED"
