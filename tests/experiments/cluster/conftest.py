"""A small recipe of the bundled pair, and a cluster of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

RECIPE = """
name: cluster
engine: {kind: llama.cpp, device: cpu, context: 512, threads: 1}
models:
  target: {source: SOURCE}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [code], limit: 1}
sampling: {temperature: 0, max_tokens: 24}
preflight: "off"
blocks: 4
arms:
  - name: baseline
  - {name: spec, speculation: {type: draft-simple, max: 4}}
"""


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    """Two arms, one prompt, four blocks."""
    file = tmp_path / "cluster.yaml"
    file.write_text(RECIPE.replace("SOURCE", '"bundled:tiny-hybrid"'), encoding="utf-8")
    return file
