"""Quantizing with the real llama-quantize, and everything that is refused before it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchctl.engines.llama_cpp.find import find_tool
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.models.quantize import quantized
from benchctl.recipes.schema import QuantizeSpec

MakeGguf = Callable[..., Path]


@pytest.fixture(scope="session")
def tool(llama_server: Path) -> Path:
    """The llama-quantize that belongs to the real server."""
    return find_tool("llama-quantize", llama_server)


@pytest.mark.engine
def test_the_base_type_and_the_exception_are_both_in_the_file(tool: Path, tiny_target: Path, cache: Path) -> None:
    said: list[str] = []
    spec = QuantizeSpec(type="q8_0", tensors={"ssm_out": "bf16"})
    path = quantized([tiny_target], spec, tool, notice=said.append)
    types = {tensor.name: tensor.type_name for tensor in read_header(path).tensors}
    assert {types[f"blk.{layer}.ssm_out.weight"] for layer in range(4)} == {"bf16"}
    assert types["blk.0.ssm_in.weight"] == types["blk.0.ffn_down.weight"] == "q8_0"
    assert said == ["Quantizing tiny-hybrid.gguf to q8_0"]
    assert list((cache / "quantized").iterdir()) == [path]


@pytest.mark.engine
def test_the_same_request_is_served_from_the_cache_and_another_is_not(tool: Path, tiny_draft: Path) -> None:
    said: list[str] = []
    plain = quantized([tiny_draft], QuantizeSpec(type="q8_0"), tool, notice=said.append)
    assert quantized([tiny_draft], QuantizeSpec(type="Q8_0"), tool, notice=said.append) == plain
    other = quantized([tiny_draft], QuantizeSpec(type="q8_0", tensors={"ssm_out": "f16"}), tool, notice=said.append)
    assert other != plain
    assert len(said) == 2


@pytest.mark.engine
def test_a_pattern_with_a_wildcard_hits_every_block(tool: Path, tiny_draft: Path) -> None:
    path = quantized([tiny_draft], QuantizeSpec(type="q8_0", tensors={"blk.*.ffn_down": "f16"}), tool)
    assert read_facts(path).tensor_types["f16"].count == 2


@pytest.mark.engine
def test_a_failing_tool_leaves_nothing_behind_and_its_words_are_kept(tool: Path, tiny_draft: Path, cache: Path) -> None:
    with pytest.raises(EngineError) as caught:
        quantized([tiny_draft], QuantizeSpec(type="iq1_s"), tool)
    assert any("importance matrix" in line for line in caught.value.log_tail)
    assert list((cache / "quantized").iterdir()) == []


@pytest.mark.engine
def test_an_override_that_the_tool_did_not_follow_is_refused(tool: Path, tiny_draft: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match=r"made blk\.0\.ssm_conv1d\.weight f32 where q8_0 was asked for"):
        quantized([tiny_draft], QuantizeSpec(type="q8_0", tensors={"ssm_conv1d": "q8_0"}), tool)
    assert list((cache / "quantized").iterdir()) == []


@pytest.mark.engine
def test_quantizing_twice_is_refused(tool: Path, tiny_draft: Path) -> None:
    once = quantized([tiny_draft], QuantizeSpec(type="q8_0"), tool)
    with pytest.raises(
        UsageError, match=r"the source is quantized already \(q8_0\), and quantizing twice loses quality"
    ):
        quantized([once], QuantizeSpec(type="q8_0"), tool)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            QuantizeSpec(type="q8_0", tensors={"ssm_uot": "bf16"}),
            "quantize.tensors.ssm_uot: the pattern 'ssm_uot' matches no tensor of this model\n"
            "Its tensors are named like: token_embd, attn_q.",
        ),
        (
            QuantizeSpec(type="q8_0", tensors={"embd": "bf16"}),
            "quantize.tensors.embd: the pattern 'embd' matches no tensor of this model\n"
            "Its tensors are named like: token_embd, attn_q.",
        ),
        (
            QuantizeSpec(type="bf16", tensors={"attn_q": "f16"}),
            "quantize.tensors: llama-quantize ignores tensor types when the base type is bf16; "
            "use a quantized base type.",
        ),
        (
            QuantizeSpec(type="q8"),
            "quantize.type: expected a llama-quantize type, got 'q8'. Did you mean 'q8_0'?",
        ),
    ],
)
def test_what_cannot_mean_anything_is_refused_before_any_work(
    make_gguf: MakeGguf, spec: QuantizeSpec, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        quantized([make_gguf()], spec, Path("/no/such/tool"))
    assert str(caught.value) == message


def test_a_tool_that_cannot_be_started_is_an_engine_error(make_gguf: MakeGguf, tmp_path: Path) -> None:
    broken = tmp_path / "llama-quantize"
    broken.write_text("no program")
    with pytest.raises(EngineError, match="llama-quantize cannot be started"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), broken)


def test_a_cache_that_cannot_be_written_is_said(make_gguf: MakeGguf, tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    tool = tmp_path / "llama-quantize"
    tool.write_text("#!/bin/sh\n")
    with pytest.raises(StorageError, match="the quantized model cannot be kept"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), tool)


def test_a_disk_that_fills_up_meanwhile_is_no_fault_of_the_tool(
    make_gguf: MakeGguf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "llama-quantize"
    tool.write_text("#!/bin/sh\necho 'failed to quantize: basic_ios::clear: iostream error' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(StorageError, match="No space left on device"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), tool)
