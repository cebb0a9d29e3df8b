"""What real engines take of this machine's memory, and what the report says of energy here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.data.store import open_run, resolve_run
from benchctl.engines.llama_cpp.attest import read_memory
from tests.cli.calls import answer

RECIPE = """\
name: taken
engine: {{{engine}, device: cpu, context: 512, threads: 1}}
models: {{target: {{source: "bundled:tiny-hybrid"}}{draft}}}
prompts: {{suite: tiny.json, tasks: [code], limit: 2}}
sampling: {{temperature: 0, max_tokens: 16}}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - name: spec
    speculation: {{type: {kind}, max: 2}}
"""
LLAMA = {
    "engine": "kind: llama.cpp",
    "draft": ', draft: {source: "bundled:tiny-hybrid-draft"}',
    "kind": "draft-simple",
}
TRANSFORMERS = {"engine": "kind: transformers, dtype: float32", "draft": "", "kind": "self-layerskip"}


def measured(folder: Path, words: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    (folder / "r.yaml").write_text(RECIPE.format(**words))
    answer(app, "run", "r.yaml", "--quiet")
    return resolve_run(None, folder / "results")


@pytest.mark.engine
def test_llama_server(tmp_path: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))
    run = measured(tmp_path, LLAMA, monkeypatch)
    manifest = open_run(run).manifest
    assert manifest is not None
    memory = {cell.arm: cell.memory for cell in manifest.cells}
    baseline_memory, pair = memory["baseline"], memory["spec"]
    assert baseline_memory is not None
    assert pair is not None
    if sys.platform == "linux":
        assert baseline_memory.resident is not None
        assert pair.resident is not None
        assert 10 << 20 < baseline_memory.resident < pair.resident < 2 << 30, "the draft is a model more"
        assert baseline_memory.swapped is not None
    # 4 layers of 8 heads x 32 x 128 and convolution states in float32; of the draft 2 of 4 x 32 x 128.
    assert baseline_memory.checkpoint == pytest.approx(0.525 * 2**20, rel=0.02)
    assert pair.checkpoint == pytest.approx(0.657 * 2**20, rel=0.02)
    assert manifest.idle is not None
    assert bool(manifest.idle.watts) or bool(manifest.idle.untold), "told, or why not"
    answer(app, "report", str(run), "--output", "out")
    report = next((tmp_path / "out").rglob("index.html")).read_text()
    table = report.split("<caption>Energy and memory")[1].split("</details>")[0]
    assert "672" in table or "KiB" in table
    assert "MiB" in table
    assert "Energy is not reported" in table or "J/token" in table
    analysis = json.loads(next((tmp_path / "out").rglob("analysis.json")).read_text())
    for row in analysis["resources"]:
        assert (row["joules_per_token"] is None) == (row["untold"] is not None)


@pytest.mark.torch
def test_the_transformers_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    manifest = open_run(measured(tmp_path, TRANSFORMERS, monkeypatch)).manifest
    assert manifest is not None
    for cell in manifest.cells:
        assert cell.memory is not None
        if sys.platform == "linux":
            assert cell.memory.resident is not None
            assert cell.memory.resident > 100 << 20, "torch alone takes that"
        assert cell.memory.checkpoint is None, "its log does not tell"


def test_what_logs_tell() -> None:
    log = [
        "0.1 I slot create_check: id 0 | created context checkpoint 1 of 32 (pos_min = 24, size = 0.657 MiB)",
        "0.2 D slot: created speculative checkpoint (pos_min = 1, n_tokens = 2, size = 1.047 MiB, draft = 0.524 MiB)",
        "0.3 I load_tensors: offloaded 20/29 layers to GPU",
    ]
    memory = read_memory(log)
    assert memory.checkpoint == round(1.571 * 2**20)
    assert memory.spilled == "20 of 29 layers are on the GPU, the others in the machine's memory"
    assert read_memory(["load_tensors: offloaded 29/29 layers to GPU", "offloaded 0/29 layers to GPU"]).spilled is None
    assert read_memory([]).checkpoint is None
