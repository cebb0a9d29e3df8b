"""Axes as a user has them: the real engine over two KV types and two drafts, judged, reported, and asked about."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchctl.data.store import open_run
from tests.benchctl_process import benchctl as run

RECIPE = """\
name: small
engine: {{kind: llama.cpp, device: cpu, context: 512, threads: 1}}
models: {{target: {{source: "bundled:tiny-hybrid"}}}}
prompts: {{suite: tiny.json, tasks: [code], limit: 1}}
sampling: {{max_tokens: 16}}
preflight: "off"
blocks: {blocks}
{more}
matrix:
  models.draft: {{small: {{source: "bundled:tiny-hybrid-draft"}}, none: null}}
  cache_type: [f16, q8_0]
arms:
  - name: baseline
  - name: spec
    speculation: {{type: draft-simple, max: 2}}
"""
ARMS = ["baseline-kv_f16", "spec-d_small-kv_f16", "baseline-kv_q8_0", "spec-d_small-kv_q8_0"]


def recipe(folder: Path, blocks: int = 1, more: str = "") -> Path:
    file = folder / "small.yaml"
    file.write_text(RECIPE.format(blocks=blocks, more=more))
    return file


@pytest.mark.engine
def test_groups_are_measured_verified_and_reported_in_one_run(tmp_path: Path) -> None:
    done = run("run", recipe(tmp_path), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 setups in 2 groups" in done.stderr
    (folder,) = (path for path in (tmp_path / "results" / "small").iterdir() if path.is_dir())
    result = open_run(folder)
    assert result.manifest is not None
    assert [arm.name for arm in result.manifest.arms] == ARMS
    assert Counter(record.label for record in result.records if record.phase == "measure") == dict.fromkeys(ARMS, 1)
    for arm in result.manifest.arms:
        assert (
            ("-ctk", arm.group.removeprefix("kv_")) in zip(arm.argv, arm.argv[1:], strict=False) if arm.group else False
        )
    assert {setup.group for setup in result.manifest.setups} == {"kv_f16", "kv_q8_0"}
    assert all(cell.attestation and cell.attestation.state in ("active", "off") for cell in result.manifest.cells)
    verified = run("verify-lossless", "--json", "--offline", cwd=tmp_path)
    verdicts = {arm["arm"]: arm["verdict"] for arm in json.loads(verified.stdout)["arms"]}
    assert verdicts == dict.fromkeys(("spec-d_small-kv_f16", "spec-d_small-kv_q8_0"), "identical")
    assert run("report", "--no-figures", cwd=tmp_path).returncode == 0
    (report,) = (tmp_path / "reports" / "small").iterdir()
    assert "- cache_type f16: " in (report / "report.md").read_text()
    repeated = run("run", "--resume", folder, "--dry-run", "--json", cwd=tmp_path)
    assert json.loads(repeated.stdout)["cells"] == []


@pytest.mark.engine
def test_the_plan_names_its_groups_and_prompts_have_their_length(tmp_path: Path) -> None:
    shown = run("run", recipe(tmp_path, blocks=2), "--dry-run", "--json", cwd=tmp_path)
    plan = json.loads(shown.stdout)
    assert [(group["block"], group["group"], len(group["arms"])) for group in plan["groups"]] == [
        *((0, "kv_f16", 2), (0, "kv_q8_0", 2), (1, "kv_q8_0", 2), (1, "kv_f16", 2)),
    ]
    assert plan["size"]["processes"] == plan["size"]["cells"] == 8
    assert plan["size"]["memory_bytes"] > 100 << 20
    done = run("run", recipe(tmp_path, more="context_length: 200"), "--only", "baseline-kv_f16", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (path for path in (tmp_path / "results" / "small").iterdir() if path.is_dir())
    (record,) = (record for record in open_run(folder).records if record.phase == "measure")
    assert record.prompt_tokens is not None
    assert 190 <= record.prompt_tokens <= 200


def test_very_many_cells_are_begun_on_a_word_alone(tmp_path: Path) -> None:
    done = run("run", recipe(tmp_path, blocks=500), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "2,000 cells" in done.stderr
    assert "Confirm it with --yes" in done.stderr
    assert not (tmp_path / "results").exists()
