"""Quantizing with the real llama-quantize, and everything that is refused before it runs."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from benchctl.engines.common.programs import program
from benchctl.engines.llama_cpp.installation import find_tool
from benchctl.errors import EngineError, StorageError, UsageError
from benchctl.models.gguf_facts import read_facts
from benchctl.models.gguf_header import read_header
from benchctl.models.quantize import OnLine, Program, quantize_to, quantized
from benchctl.models.tensor_types import requested_types, takes_other_type
from benchctl.recipes.schema import QuantizeSpec
from tests.waiting import LIMIT_S, wait_for

MakeGguf = Callable[..., Path]


@pytest.fixture(scope="session")
def tool(llama_server: Path) -> Program:
    """The llama-quantize that belongs to the real server."""
    return program(find_tool("llama-quantize", llama_server))


RESULT = 'eval "result=\\${$(($# - 1))}"'
"""Shell: take the last but one argument, the file to write."""


def scripted(folder: Path, script: str) -> Program:
    """A llama-quantize that does what a test scripts; its arguments end with SOURCE, RESULT, TYPE."""
    file = folder / "llama-quantize"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return program(file)


@pytest.mark.engine
def test_the_base_type_and_the_exception_are_both_in_the_file(tool: Program, tiny_target: Path, cache: Path) -> None:
    notices: list[str] = []
    spec = QuantizeSpec(type="q8_0", tensors={"ssm_out": "bf16"})
    path = quantized([tiny_target], spec, tool, notice=notices.append)
    types = {tensor.name: tensor.type_name for tensor in read_header(path).tensors}
    assert {types[f"blk.{layer}.ssm_out.weight"] for layer in range(4)} == {"bf16"}
    assert types["blk.0.ssm_in.weight"] == types["blk.0.ffn_down.weight"] == "q8_0"
    assert notices == ["Quantizing tiny-hybrid.gguf to q8_0"]
    assert list((cache / "quantized").iterdir()) == [path]


@pytest.mark.engine
def test_the_same_request_is_served_from_the_cache_and_another_is_not(tool: Program, tiny_draft: Path) -> None:
    notices: list[str] = []
    plain = quantized([tiny_draft], QuantizeSpec(type="q8_0"), tool, notice=notices.append)
    assert quantized([tiny_draft], QuantizeSpec(type="Q8_0"), tool, notice=notices.append) == plain
    second = quantized([tiny_draft], QuantizeSpec(type="q8_0", tensors={"ssm_out": "f16"}), tool, notice=notices.append)
    assert second != plain
    assert len(notices) == 2


@pytest.mark.engine
def test_a_pattern_with_a_wildcard_hits_every_block(tool: Program, tiny_draft: Path) -> None:
    path = quantized([tiny_draft], QuantizeSpec(type="q8_0", tensors={"blk.*.ffn_down": "f16"}), tool)
    assert read_facts(path).tensor_types["f16"].count == 2


@pytest.mark.engine
def test_a_failing_tool_leaves_nothing_behind_and_its_words_are_kept(
    tool: Program, tiny_draft: Path, cache: Path
) -> None:
    with pytest.raises(EngineError) as caught:
        quantized([tiny_draft], QuantizeSpec(type="iq1_s"), tool)
    assert any("importance matrix" in line for line in caught.value.log_tail)
    assert list((cache / "quantized").iterdir()) == []


@pytest.mark.engine
def test_quantizing_twice_is_refused(tool: Program, tiny_draft: Path) -> None:
    first = quantized([tiny_draft], QuantizeSpec(type="q8_0"), tool)
    with pytest.raises(UsageError, match=r"quantizing twice"):
        quantized([first], QuantizeSpec(type="q8_0"), tool)


@pytest.mark.engine
def test_quantizing_twice_is_done_where_it_is_asked_for(tool: Program, tiny_draft: Path) -> None:
    first = quantized([tiny_draft], QuantizeSpec(type="q8_0"), tool)
    requantized = quantized([first], QuantizeSpec(type="q4_0", allow_requantize=True), tool)
    assert read_facts(requantized).tensor_types["q4_0"].count > 0


def refusal(path: Path, spec: QuantizeSpec) -> str:
    with pytest.raises(UsageError) as caught:
        quantized([path], spec, Program(("/no/such/tool",), "0", no_run))
    return str(caught.value)


def no_run(argv: Sequence[str], log: Path, on_line: OnLine | None) -> int:
    raise AssertionError(f"started: {argv}")


@pytest.mark.parametrize(
    ("base", "tensors", "key", "word"),
    [
        ("q8_0", {"attn_p": "bf16"}, "quantize.tensors.attn_p", "Did you mean 'attn_q'?"),
        ("q8_0", {"output": "bf16"}, "quantize.tensors.output", "its output is `token_embd` (tied embeddings)"),
        ("q8_0", {"xyz": "bf16"}, "quantize.tensors.xyz", "token_embd, attn_q"),
        ("q8_0", {"attn_q": "bf16", "blk.0.*": "f16"}, "quantize.tensors.blk.0.*", "changes nothing"),
        ("q8_0", {"attn_q": "q4_k"}, "quantize.tensors.attn_q", "block of 256"),
        ("q8_0", {"ATTN_Q": "iq2_xs"}, "quantize.tensors.ATTN_Q", "importance matrix"),
        ("bf16", {"attn_q": "f16"}, "quantize.tensors", "ignores tensor types"),
        ("q8", {}, "quantize.type", "Did you mean 'q8_0'?"),
    ],
)
def test_what_cannot_mean_anything_is_refused_before_any_work(
    make_gguf: MakeGguf, base: str, tensors: dict[str, str], key: str, word: str
) -> None:
    message = refusal(make_gguf(), QuantizeSpec(type=base, tensors=tensors))
    assert message.startswith(f"{key}: ")
    assert word in message


@pytest.mark.parametrize("pattern", ["ssm_conv1d", "attn_norm"])
def test_a_pattern_of_tensors_that_keep_their_type_is_refused(tiny_target: Path, pattern: str) -> None:
    message = refusal(tiny_target, QuantizeSpec(type="q8_0", tensors={pattern: "q8_0"}))
    assert "changes nothing: llama-quantize leaves norms" in message
    assert "Did you mean" not in message


@pytest.mark.engine
@pytest.mark.parametrize(
    ("base", "tensors"),
    [
        ("q8_0", {"blk.0": "bf16"}),
        ("q4_k_m", {"ffn_down": "q8_0", "blk.*.attn_q": "f32"}),
        ("q2_k", {"token_embd": "f16", "ssm_in": "q6_k"}),
        ("tq2_0", {"blk.1.ssm_out": "q8_0", "ssm_out": "q4_0"}),
    ],
)
def test_what_is_foretold_is_what_the_tool_writes(
    tool: Program, tiny_target: Path, base: str, tensors: dict[str, str]
) -> None:
    before = read_header(tiny_target).tensors
    foretold = requested_types(before, tensors)
    result = quantized([tiny_target], QuantizeSpec(type=base, tensors=tensors), tool)
    after = {tensor.name: tensor.type_name for tensor in read_header(result).tensors}
    assert {name: after[name] for name in foretold} == foretold
    unchanged = [tensor for tensor in before if not takes_other_type(tensor)]
    assert {tensor.name: after[tensor.name] for tensor in unchanged} == {t.name: t.type_name for t in unchanged}
    changed = {tensor.name for tensor in before if after[tensor.name] != tensor.type_name}
    assert {tensor.name for tensor in before if takes_other_type(tensor)} - set(foretold) <= changed


def test_an_override_that_the_tool_did_not_follow_is_refused(make_gguf: MakeGguf, tmp_path: Path, cache: Path) -> None:
    copies = scripted(
        tmp_path, 'eval "result=\\${$(($# - 1))}"; eval "source=\\${$(($# - 2))}"; cp "$source" "$result"'
    )
    spec = QuantizeSpec(type="q8_0", tensors={"attn_q": "bf16"})
    with pytest.raises(UsageError, match=r"where bf16 was requested"):
        quantized([make_gguf()], spec, copies)
    with pytest.raises(UsageError, match="every tensor unquantized"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), copies)
    assert list((cache / "quantized").iterdir()) == []


def test_a_tool_that_writes_no_whole_model_is_an_engine_error(make_gguf: MakeGguf, tmp_path: Path) -> None:
    half = scripted(tmp_path, f'{RESULT}; printf GGUF > "$result"')
    with pytest.raises(EngineError, match="truncated"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), half)


def test_a_tool_that_cannot_be_started_is_an_engine_error(make_gguf: MakeGguf, tmp_path: Path) -> None:
    broken = tmp_path / "llama-quantize"
    broken.write_text("no program")
    with pytest.raises(EngineError, match="could not be started"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), program(broken))


def test_a_cache_that_cannot_be_written_is_said(make_gguf: MakeGguf, tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cannot be kept"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), scripted(tmp_path, "true"))


def test_a_disk_that_fills_up_meanwhile_is_no_fault_of_the_tool(
    make_gguf: MakeGguf, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=0))
    full = scripted(tmp_path, "echo 'failed to quantize: basic_ios::clear: iostream error' >&2; exit 1")
    with pytest.raises(StorageError, match="No space left on device"):
        quantized([make_gguf()], QuantizeSpec(type="q8_0"), full)
    assert list((cache / "quantized").iterdir()) == []


@pytest.mark.engine
def test_a_file_that_may_not_grow_so_large_leaves_nothing(tool: Program, tiny_target: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(StorageError, match="File too large"):
            quantize_to([tiny_target], QuantizeSpec(type="q8_0"), tool, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.engine
def test_the_result_is_written_where_it_is_wanted_and_its_tensors_are_counted(
    tool: Program, tiny_target: Path, tmp_path: Path
) -> None:
    target, steps = tmp_path / "new" / "out.gguf", []
    quantize_to([tiny_target], QuantizeSpec(type="q8_0"), tool, target, steps=lambda *step: steps.append(step))
    assert steps == [(done, 66) for done in range(1, 67)]
    assert read_facts(target).file_type == "q8_0"
    with pytest.raises(UsageError, match="its own source"):
        quantize_to([target], QuantizeSpec(type="q8_0", allow_requantize=True), tool, target)


SLEEPER = """
import sys
from pathlib import Path
from benchctl.engines.common.programs import program
from benchctl.models.quantize import quantized
from benchctl.recipes.schema import QuantizeSpec
quantized([Path(sys.argv[1])], QuantizeSpec(type="q8_0"), program(Path(sys.argv[2])))
"""


def test_a_killed_benchctl_takes_the_tool_along_and_what_it_left_is_never_used(
    make_gguf: MakeGguf, tmp_path: Path, cache: Path
) -> None:
    pid = tmp_path / "pid"
    source, half = make_gguf(), f'{RESULT}; printf GGUF > "$result"'
    tool = scripted(tmp_path, f'{half}; echo $$ > "{pid}"; exec sleep 900')
    started = subprocess.Popen([sys.executable, "-c", SLEEPER, str(source), tool.command[0]])
    wait_for(lambda: pid.is_file() and pid.read_text().endswith("\n"), "the tool")
    sleeper = psutil.Process(int(pid.read_text()))
    started.kill()
    started.wait()
    assert psutil.wait_procs([sleeper], timeout=LIMIT_S)[1] == []
    leftovers = list((cache / "quantized").iterdir())
    assert [path.suffix for path in leftovers] == [".part"]
    with pytest.raises(EngineError, match="wrote no whole model"):
        quantized([source], QuantizeSpec(type="q8_0"), scripted(tmp_path, half))
    assert list((cache / "quantized").iterdir()) == []
