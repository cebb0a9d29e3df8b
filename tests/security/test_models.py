"""A stranger's model: a folder whose Python the converter would run, packages that lie in the working folder."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchctl.engines.common.process import engine_environment
from benchctl.engines.sglang.command import OWN_SETTINGS
from benchctl.engines.vllm.command import ALWAYS_SET
from benchctl.models.convert import code_in
from benchctl.models.huggingface.folder import write_weights
from benchctl.models.sources import ModelSearch
from tests.benchctl_process import benchctl

DRY = ("run", "r.yaml", "--dry-run", "-q")
CLASS = "from transformers import PreTrainedTokenizerFast\nclass Tok(PreTrainedTokenizerFast): pass\n"


def with_tokenizer(reference: str, module: str, mark: Path) -> Path:
    """Write a recipe and a model of an architecture whose tokenizer llama.cpp's converter loads with its code."""
    model = Path("model")
    shutil.copytree(ModelSearch(Path.cwd()).folder("bundled:tiny-sequential"), model)
    for weights in model.glob("*.safetensors"):
        weights.unlink()
    config = json.loads((model / "config.json").read_text())
    config |= {"architectures": ["QWenLMHeadModel"], "model_type": "qwen", "kv_channels": 16}
    config |= {"rotary_emb_base": 10000.0, "layer_norm_epsilon": 1e-6}
    (model / "config.json").write_text(json.dumps(config))
    embeddings = np.zeros((config["vocab_size"], config["hidden_size"]), dtype=np.float32)
    write_weights(model / "model.safetensors", {"transformer.wte.weight": embeddings})
    tokenizer = json.loads((model / "tokenizer_config.json").read_text())
    tokenizer |= {"auto_map": {"AutoTokenizer": [reference, reference]}, "tokenizer_class": "Tok"}
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    code = Path(module)
    code.parent.mkdir(exist_ok=True)
    code.write_text(f"open({str(mark)!r}, 'w').close()\n{CLASS}")
    Path("r.yaml").write_text(
        "name: r\nprompts: {suite: tiny.json, limit: 1}\nblocks: 1\npreflight: 'off'\nsampling: {max_tokens: 4}\n"
        "models: {target: {source: ./model}}\narms: [{name: baseline}]\n"
    )
    return model


@pytest.mark.parametrize(
    ("reference", "module"),
    [("mod.Tok", "model/mod.py"), ("code--mod.Tok", "code/mod.py"), ("{folder}/code/mod.Tok", "code/mod.py")],
    ids=["in the model", "beside it", "by its path"],
)
@pytest.mark.torch
def test_the_converter_runs_a_models_code_only_with_trust(home: Path, reference: str, module: str) -> None:
    """In the model's folder, or where its configuration leads: transformers takes a folder of the working one, too."""
    mark = home / "mark"
    with_tokenizer(reference.format(folder=Path.cwd()), module, mark)
    done = benchctl(*DRY)
    assert not mark.exists()
    assert (done.returncode, "--trust-recipe" in done.stderr) == (2, True), done.stderr
    assert "may run Python code" in done.stderr
    benchctl("run", "r.yaml", "--yes", "--trust-recipe")  # a dry run converts nothing
    assert mark.exists(), "it is an attack"


@pytest.mark.parametrize(
    ("name", "text", "runs"),
    [
        ("config.json", '{"auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}}', False),
        ("config.json", '{"auto_map": {"AutoConfig": "org/repository--configuration.Config"}}', True),
        ("config.json", '{"text_config": {"auto\\u005fmap": [null, "a\\u002d-b.C"]}}', True),
        ("config.json", '{"auto_map": "code--a.B", "auto_map": {}}', True),
        ("config.json", '{"auto_map": {"AutoTokenizer": [null, "../a.B"]}}', True),
        ("deep/MODEL.PY", "", True),
        ("config.json", "[" * 100_000, False),
        ("config.json", '{"auto_map"', False),
    ],
)
def test_what_may_run_is_code_and_what_names_it(tmp_path: Path, name: str, text: str, runs: bool) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    assert code_in(tmp_path) == (file if runs else None)


@pytest.mark.parametrize("settings", [ALWAYS_SET, OWN_SETTINGS], ids=["vllm", "sglang"])
def test_an_engines_python_imports_nothing_of_the_working_folder(home: Path, settings: dict[str, str]) -> None:
    """vLLM and SGLang start further processes by `python -c` and `python -m`, which look there first."""
    Path("colorsys.py").write_text("print('ours')\n")
    mine = (sys.executable, "-c", "import colorsys")

    def imported(settings: dict[str, str]) -> bool:
        environment = engine_environment({}, settings)
        return bool(subprocess.run(mine, env=environment, capture_output=True, check=True).stdout)

    assert imported({key: value for key, value in settings.items() if key != "PYTHONSAFEPATH"}), "it is an attack"
    assert not imported(settings)
