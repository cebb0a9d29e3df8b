"""What a build is told to leave out: by what the compiler defines for this processor, and so that it stays out."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.compile import LeftOut, without_more_and_more


def compiler_that_defines(path: Path, *macros: str) -> str:
    lines = "".join(f"echo '#define {macro} 1'\n" for macro in macros)
    path.write_text(f"#!/bin/sh\n{lines}")
    path.chmod(0o755)
    return str(path)


def test_amx_first_then_more_and_more(tmp_path: Path) -> None:
    cxx = compiler_that_defines(tmp_path / "c++", "__AVX2__", "__AMX_TILE__", "__AMX_INT8__", "__AVX512F__")
    amx, avx512, generic = without_more_and_more(cxx)
    assert amx == LeftOut(("AMX",), ("-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"))
    assert avx512.features == ("AMX", "AVX-512")
    assert avx512.compiler_flags == (*amx.compiler_flags, "-mno-avx512f")
    assert generic.features[:2] == avx512.features
    assert generic.cmake_args == ("-DGGML_NATIVE=OFF",)


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_compiler_that_cannot_be_run_leaves_only_the_generic_build(compiler: str) -> None:
    (generic,) = without_more_and_more(compiler)
    assert generic.compiler_flags == ()
    assert generic.cmake_args == ("-DGGML_NATIVE=OFF",)


def test_what_is_left_out_stays_out_wherever_the_flags_stand(tmp_path: Path) -> None:
    cxx = shutil.which("c++")
    assert cxx is not None
    every = compiler_that_defines(tmp_path / "every", "__AMX_TILE__", "__AVX512F__")
    avx512 = list(without_more_and_more(every))[1]
    named = ("-march=sapphirerapids", "-dM", "-E", "-x", "c++", "/dev/null")
    plain = subprocess.run([cxx, *named], capture_output=True, text=True, check=False)
    if plain.returncode:
        pytest.skip("this compiler makes no code for processors with AMX")
    assert "__AMX_INT8__" in plain.stdout
    for flags in ((*avx512.compiler_flags, *named), (*named, *avx512.compiler_flags)):
        macros = subprocess.run([cxx, *flags], capture_output=True, text=True, check=True).stdout
        assert "__AVX2__" in macros
        assert "__AMX_" not in macros
        assert "__AVX512" not in macros
