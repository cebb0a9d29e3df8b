"""The GitHub Action: its steps as scripts, on the bundled pair; what it must let pass and what it must stop."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from benchctl.engines.llama_cpp.find import find_server
from tests.security.test_evidence import edit_records

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
RECIPE = """
name: gated
engine: {{device: cpu, context: 512, threads: 1{binary}}}
models: {{target: {{source: "bundled:tiny-hybrid"}}, draft: {{source: "bundled:tiny-hybrid-draft"}}}}
prompts: {{suite: tiny.json, tasks: [code], limit: 3}}
sampling: {{max_tokens: 48, ignore_eos: true}}
blocks: 5
arms: [{{name: baseline}}, {{name: spec, speculation: {{type: draft-simple, max: {depth}, min: 1}}}}]
"""
WITH_THE_DRAFT_AS_TARGET = """#!{python}
import os, sys
words = sys.argv[1:]
for place, word in enumerate(words):
    if word in ("-m", "--model") and any("draft" in other for other in words):
        words[place + 1] = {other!r}
os.execv({server!r}, [{server!r}, *words])
"""


class Job:
    """A checkout in which the action's steps run one after the other, as a runner runs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = {name: str(given.get("default", "")) for name, given in ACTION["inputs"].items()}
        self.inputs |= {"recipe": "recipe.yaml", "baseline": "baseline.json"}
        self.summary = folder / "summary.md"
        (folder / "bin").mkdir()
        shim = folder / "bin" / "benchctl"
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m benchctl "$@"\n')
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)

    def step(self, name: str) -> subprocess.CompletedProcess[str]:
        step = STEPS[name]
        own = {
            key: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda match: self.inputs[match[1]], value)
            for key, value in step["env"].items()
        }
        known = {"GITHUB_STEP_SUMMARY": str(self.summary), "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **known, **own},
            capture_output=True,
            encoding="utf-8",
            check=False,
            timeout=600,
        )

    def measure(self, results: str, *, depth: int = 4, binary: str = "") -> None:
        self.inputs["results"] = results
        (self.folder / "recipe.yaml").write_text(RECIPE.format(depth=depth, binary=binary and f", binary: {binary}"))
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


def slower(line: dict[str, Any]) -> None:
    """Make the arm 30 % slower, in accord with its other times."""
    if line["label"] == "spec" and line["phase"] == "measure":
        for name in ("ttft_s", "decode_s", "e2e_s", "engine_decode_s", "sent_s"):
            line[name] /= 0.7
        for name in ("client_tok_per_sec", "tok_per_sec"):
            line[name] *= 0.7


def edited(job: Job, results: str, change: Callable[[dict[str, Any]], None]) -> str:
    shutil.copytree(job.folder / results, job.folder / f"{results}-edited")
    (manifest,) = (job.folder / f"{results}-edited").glob("*/*/manifest.json")
    edit_records(manifest.parent, change)
    return f"{results}-edited"


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_unchanged_runs_pass_and_what_was_planted_is_stopped(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.measure("first")
    assert job.gate("first")[0] == 2, "there is no baseline yet"
    shutil.copy(tmp_path / "first" / "baseline.json", tmp_path / "baseline.json")
    for results in ("second", "third", "fourth"):
        job.measure(results)
        code, said = job.gate(results)
        assert code == 0, said
        assert {"baseline.json", "certificate.json", "gates.xml"} <= {
            file.name for file in (tmp_path / results).iterdir()
        }
    assert job.step("Summarise").returncode == 0
    assert "✓ slower:10%: passed." in job.summary.read_text() and "**" in job.summary.read_text()

    code, said = job.gate(edited(job, "second", slower))
    assert code == 1 and "slower:10%: spec: 0." in said and "1 of 3 gates failed" in said
    failures = ElementTree.parse(tmp_path / "second-edited" / "gates.xml").findall("testcase/failure")
    assert len(failures) == 1 and "slower by more than 10 %" in failures[0].attrib["message"]

    job.measure("shallow", depth=1)
    code, said = job.gate("shallow")
    assert code == 1 and "acceptance:5%: spec, code: 0." in said

    server = find_server().path
    (other,) = (ROOT / "benchctl" / "models" / "bundled").glob("*hybrid-draft*.gguf")
    binary = tmp_path / "llama-server"
    binary.write_text(WITH_THE_DRAFT_AS_TARGET.format(python=sys.executable, other=str(other), server=str(server)))
    binary.chmod(0o755)
    job.measure("lossy", binary=str(binary))
    code, said = job.gate("lossy")
    assert code == 1 and "lossy: spec: violation" in said
    assert json.loads((tmp_path / "lossy" / "certificate.json").read_text())["predicate"]["result"] == "FAILED"
