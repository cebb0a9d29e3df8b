"""`benchctl models inspect` and `quantize` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.errors import UsageError
from benchctl.models.gguf_facts import read_facts
from tests.cli.calls import answer, call
from tests.models.test_footprint import MIXTRAL

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_inspect_shows_what_decides_how_a_model_runs() -> None:
    lines = answer(app, "models", "inspect", "bundled:tiny-hybrid").splitlines()
    facts = {line[:15].strip(): line[15:].strip() for line in lines[1:]}
    assert facts["model"] == "tiny-hybrid (falcon-h1)"
    assert facts["recurrent state"].startswith("0.52 MiB per sequence (0.02 MiB convolution, 0.50 MiB state; 4 layers")
    assert facts["KV cache"] == "2,048 bytes per token in f16, 8.00 MiB at 4,096 tokens"
    assert facts["layers"].startswith("4 blocks; hybrid: recurrent state and attention; recurrent in 0–3; attention in")
    assert "<|im_start|>" in facts["chat template"]
    assert "\x1b" not in "".join(lines)


def test_inspect_lists_every_tensor_when_asked() -> None:
    assert "blk.3.ssm_out.weight" in answer(app, "models", "inspect", "bundled:tiny-hybrid", "--tensors")


def test_inspect_as_json() -> None:
    result = json.loads(answer(app, "models", "inspect", "bundled:tiny-hybrid", "--json"))
    assert (result["architecture"], result["memory"], result["vocab_size"]) == ("falcon-h1", "hybrid", 4096)


def test_a_file_that_is_no_model_is_one_message(empty_folder: Path) -> None:
    (empty_folder / "m.gguf").write_bytes(b"\x1b[31mno model")
    result = call(app, "models", "inspect", "m.gguf")
    assert isinstance(result.exception, UsageError)
    assert "this is no GGUF file" in str(result.exception)


@pytest.mark.engine
def test_quantize_then_see_what_differs(llama_server: Path, empty_folder: Path) -> None:
    words = ["models", "quantize", "bundled:tiny-hybrid-draft", "-t", "q8_0", "--tensor", "ssm_out=bf16"]
    words += ["--engine-binary", str(llama_server)]
    result = answer(app, *words)
    assert result.splitlines()[0] == "tiny-hybrid-draft-q8_0.gguf"
    assert read_facts(empty_folder / "tiny-hybrid-draft-q8_0.gguf").tensor_types["bf16"].count == 2

    repeated = call(app, *words)
    assert isinstance(repeated.exception, UsageError)
    assert repeated.exception.what == "this file exists already"
    document = json.loads(answer(app, *words, "--force", "--json", "-o", "other.gguf"))
    assert document["file_type"] == "q8_0"

    shown = answer(app, "models", "inspect", "bundled:tiny-hybrid-draft", "--diff", "other.gguf")
    assert "special tokens" in shown
    assert "ssm_in (2 tensors)" in shown
    assert "ssm_out" not in shown
    changes = json.loads(
        answer(app, "models", "inspect", "bundled:tiny-hybrid-draft", "--diff", "other.gguf", "--json")
    )
    assert changes["same_vocabulary"]
    assert {change["name"] for change in changes["metadata"]} == {"general.file_type"}


def test_inspect_reads_the_config_of_a_mixture(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(MIXTRAL))
    result = json.loads(answer(app, "models", "inspect", str(file), "--json"))
    assert result["active_parameters"] < result["parameters"] / 3
    facts = {line[:14].strip(): line[14:].strip() for line in answer(app, "models", "inspect", str(file)).splitlines()}
    assert f"{result['active_parameters']:,}" in facts["parameters"]
    assert "for 2" in facts["a verify reads"]
    assert isinstance(call(app, "models", "inspect", str(file), "--tensors").exception, UsageError)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tensor", "ssm_out"], "--tensor ssm_out: expected PATTERN=TYPE"),
        (["--tensor", "a=q8_0", "--tensor", "a=bf16"], "this pattern was given before, with another type"),
        (
            ["--tensor", "ssm_uot=bf16"],
            "the pattern 'ssm_uot' changes nothing",
        ),
        (["-o", "."], "this is a folder"),
        (["-o", "/dev/null", "--force"], "this is not an ordinary file"),
        (["-t", "q9_9"], "quantize.type: expected a llama-quantize type, got 'q9_9'"),
    ],
)
@pytest.mark.engine
def test_what_cannot_be_meant_is_refused(words: list[str], message: str, llama_server: Path) -> None:
    result = call(
        app,
        "models",
        "quantize",
        "bundled:tiny-hybrid-draft",
        "-t",
        "q8_0",
        "--engine-binary",
        str(llama_server),
        *words,
    )
    assert isinstance(result.exception, UsageError)
    assert message in str(result.exception)


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from benchctl.cli import app; "
        "print([name for name in ('numpy', 'pydantic', 'httpx', 'gguf') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
