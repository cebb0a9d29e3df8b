"""`benchctl verify-against RUN REFERENCE`: llama.cpp in two precisions and transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.errors import UsageError
from tests.cli.calls import answer, call

RECIPE = """\
name: {name}
engine: {{{engine}, device: cpu, context: 1024, threads: 1}}
models: {{target: {{source: "bundled:tiny-hybrid"{quantize}}}}}
prompts: {{suite: tiny.json, tasks: [code, translation_en_ja], limit: 3}}
sampling: {{temperature: 0, max_tokens: 24}}
blocks: 1
preflight: "off"
arms:
  - name: baseline
  - name: spec
    speculation: {{type: {kind}, max: 4}}
"""
LLAMA = {"engine": "kind: llama.cpp", "kind": "ngram-simple"}
RUNS = {
    "coarse": {**LLAMA, "quantize": ", quantize: {type: q2_k}"},
    "whole": {**LLAMA, "quantize": ""},
    "reference": {"engine": "kind: transformers, dtype: float32", "kind": "self-layerskip", "quantize": ""},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, llama_server: Path) -> Path:
    """A folder with one run of each."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("against")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))
        for name, words in RUNS.items():
            Path(f"{name}.yaml").write_text(RECIPE.format(name=name, **words))
            answer(app, "run", f"{name}.yaml", "--quiet")
    return folder


@pytest.fixture
def folder_of_runs(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


@pytest.mark.engine
@pytest.mark.torch
def test_sixteen_bits_say_what_float32_says_and_two_bits_do_not(folder_of_runs: None) -> None:
    result = call(app, "verify-against", "whole", "reference", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["identical"] is True
    result = call(app, "verify-against", "coarse", "whole", "reference", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["runs"][2]["precision"] == "float32"
    by_quantization = document["baselines"][0]
    assert by_quantization["differs_in"] == ["precision"]
    assert by_quantization["differing"]
    for arm in document["arms"]:
        assert arm["counts"]["speculation"] == arm["counts"]["both"] == arm["counts"]["undetermined"] == 0
    assert document["arms"][0]["counts"]["baseline"] == len(by_quantization["differing"])
    done = call(app, "verify-against", "coarse", "whole", "reference").stdout
    assert "precision alone" in done
    assert "changed 0 of 6" in done
    assert call(app, "verify-against", "coarse", "whole", "--quiet").stdout == ""


@pytest.mark.engine
@pytest.mark.torch
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("verify-against", "coarse", "nowhere"), "no such run"),
        (("verify-against", "coarse", "coarse"), "cannot be its own reference"),
        (("verify-against", "coarse", "whole", "--arm", "sepc"), "There is no arm"),
    ],
)
def test_a_wrong_command_line_is_one_message(folder_of_runs: None, words: tuple[str, ...], message: str) -> None:
    error = call(app, *words).exception
    assert isinstance(error, UsageError)
    assert message in error.what
