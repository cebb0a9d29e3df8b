"""Two targets × two KV types × two drafts × two concurrencies, measured and scored here, through the second reading."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.cli.app import app
from tests.cli.calls import answer, call
from tests.oracle.render import rendered

RECIPE = """\
name: big
engine: {kind: llama.cpp, device: cpu, context: 512, threads: 1}
models: {target: {source: "bundled:tiny-hybrid"}}
prompts: {suite: tiny.json, tasks: [code], limit: 2}
sampling: {max_tokens: 16}
preflight: "off"
blocks: 1
concurrency: [1, 2]
matrix:
  models.target.quantize:
    as_is: null
    q4_0: {type: q4_0, allow_requantize: true}
  cache_type: [f16, q8_0]
  models.draft:
    small: {source: "bundled:tiny-hybrid-draft"}
    q4_0: {source: "bundled:tiny-hybrid-draft", quantize: {type: q4_0, allow_requantize: true}}
arms:
  - name: baseline
  - name: spec
    speculation: {type: draft-simple, max: 3}
"""


@pytest.mark.engine
@pytest.mark.slow
def test_every_arm_of_sixteen_stands_beside_its_own_baseline(tmp_path: Path) -> None:
    file = tmp_path / "big.yaml"
    file.write_text(RECIPE)
    answer(app, "run", str(file), "--output", str(tmp_path / "results"), "-q")
    (run,) = (path.parent for path in (tmp_path / "results").glob("*/*/manifest.json"))
    assert call(app, "verify-lossless", str(run), "--json").exit_code in (0, 1)
    report = rendered(run, tmp_path / "report")
    assert len(report.reading.speculating) == 16
    assert len({report.reading.arms[arm].baseline for arm in report.reading.speculating}) == 8
    assert not report.complaints(), "\n".join(report.complaints())
    assert report.looked_at["pooled"] >= set(report.reading.speculating)
