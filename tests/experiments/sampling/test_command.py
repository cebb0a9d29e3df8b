"""`benchctl verify-sampling` as a user runs it: a real check, the same offline, and wrong command lines."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from tests.benchctl_process import benchctl

pytestmark = pytest.mark.slow

RECIPE = """\
name: small
engine: {device: cpu, context: 2048, threads: 1}
models:
  target: {source: "bundled:tiny-hybrid"}
  draft: {source: "bundled:tiny-hybrid-draft"}
prompts: {suite: tiny.json, tasks: [translation_en_ja], limit: 1}
arms:
  - name: baseline
  - name: spec
    speculation: {type: draft-simple, max: 2}
  - name: synthetic
    speculation: {type: draft-simple, max: 2}
    args: ["--spec-synth-len", "2"]
"""


verify = partial(benchctl, "verify-sampling")


@pytest.mark.engine
def test_a_check_and_the_same_offline(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    drawn = verify("small.yaml", "--seeds", 60, "--tokens", 18, "--json", "--trust-recipe", cwd=tmp_path)
    assert drawn.returncode == 1, drawn.stderr
    document = json.loads(drawn.stdout)
    spec, synthetic = document["arms"]
    assert spec["verdict"] == "no difference found"
    assert spec["token_power"]["tokens"] > 1000, "its tokens were scored on the target alone"
    assert synthetic["lossy"] == ["synthetic acceptance"]
    assert synthetic["verdict"] in ("difference found", "lossy by design")
    assert (document["temperature"], document["top_k"], document["seeds"]) == (0.8, 0, 60)
    assert Path(document["folder"]).parent == Path("results/small/sampling")
    for name in ("small", document["folder"]):
        offline = verify("--offline", name, "--json", cwd=tmp_path)
        assert offline.returncode == 1
        assert json.loads(offline.stdout)["arms"] == document["arms"]
    shown = verify("--offline", "small", cwd=tmp_path).stdout
    assert "would have detected" in shown
    assert "synthetic acceptance" in shown


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("small.yaml", "--arm", "spek"), "The arms are: spec"),
        (("nowhere",), "nowhere"),
        ((), "no run yet"),
        (("--offline",), "no run yet"),
        (("--offline", "--seeds", 9), "with its own settings"),
    ],
)
def test_a_wrong_command_line_is_two(tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    (tmp_path / "small.yaml").write_text(RECIPE)
    done = verify(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
