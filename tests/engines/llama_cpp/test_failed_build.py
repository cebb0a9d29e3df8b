"""A failed build step says what to do, from the words that the tools really print."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from benchctl.engines.common.programs import CommandFailedError, run_logged
from benchctl.engines.llama_cpp.compile import explain
from benchctl.errors import EngineError, StorageError

LOG = Path("/cache/logs/build.log")


def failed(*lines: str, status: int = 1) -> CommandFailedError:
    return CommandFailedError(["cmake"], status, lines)


@pytest.mark.parametrize(
    ("step", "line", "advice"),
    [
        ("compile", "c++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("configure", "  CUDA Toolkit not found", "without --cuda"),
        ("configure", "  No CMAKE_CUDA_COMPILER could be found.", "without --cuda"),
        ("configure", "    CUDA::cublas", "cuBLAS"),
        ("configure", "  Could NOT find Vulkan (missing: glslc)", "libvulkan-dev"),
        ("configure", '  Could not find a package configuration file provided by "hip"', "without --rocm"),
        ("configure", "    icpx\n\n  is not a full path and was not found in the PATH", "--sycl"),
        ("configure", "  No CMAKE_CXX_COMPILER could be found.", "apt install g++"),
        ("compile", "host_config.h: error: -- unsupported GNU version! gcc versions later than 13", "CUDAHOSTCXX"),
        ("compile", "sum.cpp:3: error: expected ';'", "The lines above"),
    ],
)
def test_advice(step: str, line: str, advice: str) -> None:
    error = explain(step, failed("[1/2] Building", line, "ninja: build stopped"), LOG)
    assert isinstance(error, EngineError)
    assert error.kind == "install"
    assert advice in (error.fix or "")
    assert str(LOG) in (error.fix or "")


def test_full_disk() -> None:
    error = explain("compile", failed("fatal error: error writing to /tmp/x.s: No space left on device"), LOG)
    assert isinstance(error, StorageError)
    assert "BENCHCTL_CACHE" in (error.fix or "")


def test_program_that_dies_of_an_illegal_instruction_prints_nothing() -> None:
    assert "processor lacks" in (explain("try", failed(status=-4), LOG).fix or "")


def test_the_first_error_is_reported_not_the_last_line() -> None:
    lines = [f"[{step}/90] Building" for step in range(50)] + ["FAILED: x.o", "x.cpp:1:1: error: no such thing"]
    tail = failed(*lines, *(f"[{step}/90] Building" for step in range(50, 90)), "ninja: build stopped").tail()
    assert tail[:2] == ("FAILED: x.o", "x.cpp:1:1: error: no such thing")
    assert failed("a", "b").tail() == ("a", "b")


def test_output_goes_to_the_log_and_to_the_caller() -> None:
    log, lines = io.StringIO(), list[str]()
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.stdout.buffer.write(b'\\xff\\n'); sys.exit(3)"
    with pytest.raises(CommandFailedError) as caught:
        run_logged([sys.executable, "-u", "-c", code], log=log, on_line=lines.append)
    assert caught.value.status == 3
    assert list(caught.value.lines) == lines == ["out", "err", "\ufffd"]
    assert log.getvalue().endswith("out\nerr\n\ufffd\n")
