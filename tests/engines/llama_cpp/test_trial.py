"""Small quantized models, and what a llama-server does with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchctl.engines.common.process import describe_exit
from benchctl.engines.llama_cpp.causes import launch_cause
from benchctl.engines.llama_cpp.trial import (
    QUANTIZATIONS,
    VOCABULARY,
    WIDTH,
    check_quantized,
    crashed,
    try_quantized,
    write_trial_model,
)
from benchctl.errors import EngineError
from benchctl.models.gguf_facts import read_facts


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_model_is_of_its_quantization(quantization: str, tmp_path: Path) -> None:
    from gguf import GGUFReader
    from gguf.quants import dequantize

    path = tmp_path / "model.gguf"
    write_trial_model(path, quantization)
    matrices = [tensor for tensor in GGUFReader(path).tensors if len(tensor.shape) == 2]
    assert len(matrices) == 9
    for tensor in matrices:
        assert tensor.tensor_type.name.lower() == quantization
        assert tensor.shape[0] % WIDTH == 0  # whole K-blocks
        assert tensor.shape[1] % 32 == 0  # what llama.cpp's code for AMX takes on
        values = dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        assert 0.02 < values.std() < 0.2
    assert {int(tensor.shape[1]) for tensor in matrices} == {WIDTH, 2 * WIDTH, VOCABULARY}
    assert read_facts(path).architecture == "llama"


@pytest.mark.engine
def test_real_server_answers_with_every_quantization_alone_and_with_a_draft(llama_server: Path) -> None:
    cases: list[str] = []
    assert try_quantized(llama_server, cases.append) == {}
    assert cases == [f"{name} {way}" for name in ("q4_0", "q4_k", "q6_k", "q8_0") for way in ("alone", "with a draft")]
    check = check_quantized(llama_server)
    assert check.state == "ok"
    assert "q4_0, q4_k, q6_k, q8_0" in check.seen


def test_only_a_signal_is_a_crash() -> None:
    crash = EngineError("It broke: the engine ended with signal SIGSEGV.", kind="crash")
    slow = EngineError("The engine sent nothing for 60 s.", kind="timeout")
    result = crashed({"q4_0 alone": crash, "q8_0 alone": slow})
    assert result == ("q4_0 alone: It broke: the engine ended with signal SIGSEGV.",)


def test_known_crashes_carry_their_remedy() -> None:
    amx = "load_tensors:          AMX model buffer size =  1953.78 MiB"
    sentence, fix = launch_cause(["starting", amx, "running", describe_exit(-11)]) or ("", "")
    assert "AMX" in sentence
    assert "--no-repack" in fix
    assert "-mno-amx-tile" in fix
    sentence, fix = launch_cause(["starting", describe_exit(-11)]) or ("", "")
    assert sentence == "llama-server crashed."
    assert "benchctl engines doctor" in fix
    sentence, fix = launch_cause(["starting", describe_exit(-4)]) or ("", "")
    assert "processor lacks" in sentence
    assert launch_cause([amx, describe_exit(1)]) is None
