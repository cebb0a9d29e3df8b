"""`benchctl isolate` as a user calls it."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import gguf
import numpy as np
import pytest

from benchctl.cli.app import app
from benchctl.errors import BenchctlError, EngineError, UsageError
from benchctl.experiments.isolate import session
from benchctl.measurement.probes import probe_items
from benchctl.models.gguf_header import read_header
from benchmarks.outliers import Outliers, write_model
from tests.cli.calls import answer, call
from tests.models.test_gguf_header import BROKEN

pytestmark = pytest.mark.slow

RECIPE = """\
name: hunt
engine: {{device: cpu, context: 1024, threads: 1}}
models: {{target: {{source: "{source}"}}}}
prompts: {{suite: tiny.json}}
arms: [{{name: baseline}}]
"""


@pytest.fixture(autouse=True)
def quick(empty_folder: Path, llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))
    monkeypatch.setenv("BENCHCTL_CACHE", str(empty_folder / "cache"))
    monkeypatch.setattr(session, "probe_items", lambda: probe_items()[:3])
    (empty_folder / "text.txt").write_text("The children opened the window because it was raining.\n" * 60)


def recipe(source: str | Path = "bundled:tiny-hybrid", old: str = "", new: str = "") -> str:
    Path("r.yaml").write_text(RECIPE.format(source=source).replace(old, new))
    return "r.yaml"


def refused(*words: str) -> BenchctlError:
    error = call(app, "isolate", *words).exception
    assert isinstance(error, BenchctlError)
    return error


@pytest.mark.engine
def test_the_command_that_it_ends_with_repairs_the_model(empty_folder: Path, tiny_target: Path) -> None:
    write_model(tiny_target, Path("model.gguf"), [Outliers("ssm_out", (0, 1, 2, 3), 8, 8)], np.random.default_rng(2))
    printed = answer(app, "isolate", recipe("model.gguf"), "--type", "q4_0", "--text", "text.txt")
    assert "keeping ssm_out" in printed
    assert "ssm_out breaks it" in printed
    assert 'quantize: {type: q4_0, tensors: {"ssm_out": bf16}}' in printed
    rows = {line.split("  ")[0]: line for line in printed.splitlines()}
    assert "BROKEN" in rows["all q4_0"]
    assert "recurrent output" in rows["kept: ssm_out"]
    assert "sound" in rows["kept: ssm_out"]
    assert "BROKEN" in rows["only: ssm_out"]
    command = printed[printed.index("By hand:") :].splitlines()[1].strip()
    subprocess.run(shlex.split(command), check=True, capture_output=True)
    types = {tensor.name: tensor.type_name for tensor in read_header(Path("model-q4_0-repaired.gguf")).tensors}
    assert {types[f"blk.{layer}.ssm_out.weight"] for layer in range(4)} == {"bf16"}
    assert types["blk.0.ssm_in.weight"] == "q4_0"
    # Asked again, it has the answer on the disk.
    result = json.loads(answer(app, "isolate", "r.yaml", "--type", "q4_0", "--text", "text.txt", "--json"))
    assert result["finding"]["repair"] == ["ssm_out"]
    assert result["repair"]["quantize"] == {"type": "q4_0", "tensors": {"ssm_out": "bf16"}}
    assert result["repair"]["command"] == command
    assert {"divergence", "same_top", "perplexity"} <= result["rows"][1]["severity"].keys()


@pytest.mark.engine
def test_a_healthy_quantization_is_said_to_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")  # of a terminal that is not there: nothing is cut off in a file
    result = call(app, "isolate", recipe(), "--text", "text.txt")
    assert result.exit_code == 0, result.output
    assert "q8_0 does not damage this model; nothing needs repair." in result.stdout
    assert "1 quantization" in result.stdout
    assert all(title in result.stdout for title in ("KL", "Top-1 %", "Perplexity", "Flawed", "Size"))
    assert "…" not in result.stdout
    assert "divergence 0.000" in result.stderr


@pytest.mark.engine
def test_a_source_that_is_broken_itself_is_no_finding(tiny_target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "probe_items", lambda: probe_items()[:6])
    Path("model.gguf").write_bytes(tiny_target.read_bytes())
    for tensor in gguf.GGUFReader("model.gguf", "r+").tensors:
        if "ssm_in" in tensor.name:
            tensor.data.view(np.uint16)[:] = 0
    result = call(app, "isolate", recipe("model.gguf"))
    assert result.exit_code == 1
    assert "broken before" in result.stdout


@pytest.mark.engine
@pytest.mark.parametrize(
    ("old", "new", "options", "message"),
    [
        ("engine: {device: cpu", "engine: {kind: vllm, device: cpu", [], "and this recipe runs vllm"),
        ("", "", ["--type", "bf16"], "bf16 is not a quantized type"),
        ("", "", ["--type", "q9_0"], "expected a llama-quantize type, got"),
        (
            'hybrid"}',
            'hybrid", quantize: {type: q8_0, tensors: {nothing: bf16}}}',
            [],
            "it matches no tensor",
        ),
        ("", "", ["--text", "missing.txt"], "the text cannot be read: No such file or directory"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_any_work(old: str, new: str, options: list[str], message: str) -> None:
    error = refused(recipe(old=old, new=new), *options)
    assert isinstance(error, UsageError)
    assert message in error.what
    assert not Path("results").exists()


@pytest.mark.engine
def test_a_source_that_is_quantized_already_is_refused_unless_that_is_wanted() -> None:
    answer(app, "models", "quantize", "bundled:tiny-hybrid-draft", "--type", "q8_0", "-o", "small.gguf")
    error = refused(recipe("small.gguf"), "--type", "q4_0")
    assert "quantized already" in error.what
    assert "--allow-requantize" in str(error.fix)
    result = call(app, "isolate", "r.yaml", "--type", "q4_0", "--allow-requantize", "--text", "text.txt", "--json")
    assert result.exit_code in {0, 1}, result.output  # so small a model may not pass the probes
    assert json.loads(result.stdout)["rows"][0]["kept"] is None


@pytest.mark.engine
def test_a_servers_own_build_without_the_measuring_program_is_an_error(empty_folder: Path, llama_server: Path) -> None:
    server = empty_folder / "own" / "llama-server"
    server.parent.mkdir()
    server.write_text(f'#!/bin/sh\nexec "{llama_server}" "$@"\n')
    server.chmod(0o755)
    (server.parent / "llama-quantize").symlink_to(llama_server.with_name("llama-quantize"))
    error = refused(recipe(), "--engine-binary", str(server))
    assert isinstance(error, EngineError)
    assert "no llama-perplexity" in error.what


@pytest.mark.engine
@pytest.mark.parametrize("name", ["endless tensors", "an endless array", "many dimensions", "an unknown value type"])
def test_a_hostile_file_is_one_message(name: str) -> None:
    data, message = BROKEN[name]
    Path("model.gguf").write_bytes(data)
    error = refused(recipe("model.gguf"))
    assert isinstance(error, UsageError)
    assert message is not None
    assert message.splitlines()[0] in error.what


@pytest.mark.engine
def test_tensor_names_that_are_no_patterns_are_refused_before_any_work() -> None:
    writer = gguf.GGUFWriter("model.gguf", "llama")
    writer.add_tensor("blk.0.a)|(.*\x1b[31m.weight", np.zeros((32, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    error = refused(recipe("model.gguf"))
    assert "parts of a tensor name" in error.what
    assert not Path("results").exists()
