"""The true positive: this vLLM corrupts a hybrid under speculation, and benchctl says so with its evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.cli.app import app
from tests.cli.calls import call

pytestmark = pytest.mark.vllm

RECIPE = """\
name: hybrid
engine: {kind: vllm, context: 512, dtype: float32, env: {VLLM_CPU_KVCACHE_SPACE: "1"}}
models: {target: {source: "bundled:tiny-hybrid"}}
prompts: {suite: tiny.json, tasks: [ja_chat, code], limit: 2}
sampling: {max_tokens: 32, ignore_eos: true}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - name: ngram
    speculation: {type: ngram-simple, max: 4, size_n: 2}
"""


def test_a_hybrid_is_corrupted_and_verify_lossless_finds_a_violation(
    vllm_program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHCTL_VLLM", str(vllm_program))
    (tmp_path / "hybrid.yaml").write_text(RECIPE)
    result = call(
        app, "run", str(tmp_path / "hybrid.yaml"), "--output", str(tmp_path / "results"), "--quiet", "--trust-recipe"
    )
    assert result.exit_code == 0, result.output
    (run,) = (file.parent for file in tmp_path.glob("results/*/*/manifest.json"))
    manifest = json.loads((run / "manifest.json").read_text())
    assert [cell["attestation"]["state"] for cell in manifest["cells"]] in (["off", "active"], ["off", "idle"])
    assert manifest["target"]["facts"]["memory"] == "hybrid"

    verdict = call(app, "verify-lossless", str(run), "--audit-minutes", "5", "--json")
    assert verdict.exit_code == 1, verdict.output
    (arm,) = json.loads(verdict.stdout)["arms"]
    violations = [comparison for comparison in arm["comparisons"] if comparison["outcome"] == "violation"]
    assert arm["verdict"] == "violation", (arm["reason"], arm["counts"], arm["noise"])
    assert violations
    fork = violations[0]["fork"]
    assert fork["margin"] > 100 * fork["noise_floor"]
    assert "verify" in fork["shapes_absent"]
    assert {shape["shape"] for shape in fork["shapes"]} == {"decode", "prefill"}
    assert {shape["prefers"] for shape in fork["shapes"]} == {"baseline"}
    assert all(noise["by_prefill"] for noise in arm["noise"])
