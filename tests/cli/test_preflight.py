"""The preflight within a run: a warning where the recipe says nothing, the end of it where the recipe is strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.data.store import latest_run, open_run
from benchctl.errors import GateError
from benchctl.lossless.judge.run import analyse_run
from benchctl.words.warnings import seen
from tests.cli.calls import call

pytestmark = pytest.mark.slow

RECIPE = """\
name: damaged
engine: {device: cpu, context: 1024, threads: 1}
models: {target: {source: "bundled:tiny-hybrid", quantize: {type: q8_0, tensors: {ssm_in: tq2_0, ffn_up: tq2_0}}}}
prompts: {suite: tiny.json, tasks: [code], limit: 1}
sampling: {max_tokens: 8}
blocks: 1
arms: [{name: baseline}]
"""


@pytest.mark.engine
def test_a_damaged_target_warns_and_stops_a_strict_recipe(
    empty_folder: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))
    monkeypatch.setenv("BENCHCTL_CACHE", str(empty_folder / "cache"))
    (empty_folder / "r.yaml").write_text(RECIPE)
    warned = call(app, "run", "r.yaml", "--quiet")
    assert warned.exit_code == 0, warned.output
    run = open_run(latest_run(Path("results")))
    assert run.manifest is not None
    assert run.manifest.preflight is not None
    assert run.manifest.preflight.mode == "on"
    assert {record.label for record in run.records} == {"baseline"}
    (caution,) = (warning for warning in analyse_run(run).warnings if warning.id == "quantization-damage")
    assert seen(caution) in {finding.seen for finding in run.manifest.preflight.findings}

    (empty_folder / "r.yaml").write_text(RECIPE + "preflight: strict\n")
    stopped = call(app, "run", "r.yaml", "--quiet")
    assert isinstance(stopped.exception, GateError)
    run = open_run(latest_run(Path("results")))
    assert run.manifest is not None
    assert (run.manifest.status, run.manifest.cells, run.records) == ("failed", [], [])

    repeated = call(app, "run", "--resume", str(run.folder), "--quiet")
    assert isinstance(repeated.exception, GateError), "a resumed run must be looked at again"
