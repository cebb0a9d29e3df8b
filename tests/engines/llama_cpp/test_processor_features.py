"""Whether a build has code for AMX: by what the compiler defines for this processor; and that it can be left out."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.toolchain import breaks_amx, uses_amx, without_amx


def compiler_that_defines(path: Path, *macros: str) -> str:
    lines = "".join(f"echo '#define {macro} 1'\n" for macro in macros)
    path.write_text(f"#!/bin/sh\n{lines}")
    path.chmod(0o755)
    return str(path)


def test_by_the_compilers_macros(tmp_path: Path) -> None:
    assert uses_amx(compiler_that_defines(tmp_path / "c++", "__AVX2__", "__AMX_TILE__", "__AMX_INT8__"))
    assert not uses_amx(compiler_that_defines(tmp_path / "g++", "__AVX2__", "__AVX512F__"))


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_a_compiler_that_cannot_be_run_uses_none(compiler: str) -> None:
    assert not uses_amx(compiler)


def test_a_compiler_that_drops_stores_before_ldtilecfg_is_known_by_its_code(tmp_path: Path) -> None:
    def compiler(body: str) -> str:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\ncat >/dev/null\nprintf '{body}'\n")
        path.chmod(0o755)
        return str(path)

    assert breaks_amx(compiler(r"movq %%rsp, %%rbp\nldtilecfg -64(%%rsp)\n"))
    assert not breaks_amx(compiler(r"movb %%dil, -16(%%rsp)\nldtilecfg -64(%%rsp)\n"))
    assert not breaks_amx(compiler("error: no such processor")) and not breaks_amx("no-such-compiler")
    gcc = shutil.which("g++")
    version = gcc and subprocess.run([gcc, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    if gcc and version and version.startswith("12.2."):
        assert breaks_amx(gcc, "sapphirerapids"), "the compiler of Debian 12"


def test_the_users_own_flags_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-g")
    c, cxx = without_amx(("-DCMAKE_CXX_FLAGS:STRING=-O1",))[-2:]
    assert c.startswith("-DCMAKE_C_FLAGS=-g -mno-amx-tile") and cxx.startswith("-DCMAKE_CXX_FLAGS=-O1 -mno-amx-tile")


def test_what_is_left_out_stays_out_wherever_the_flags_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    cxx = shutil.which("c++")
    assert cxx is not None
    monkeypatch.delenv("CXXFLAGS", raising=False)
    flags = shlex.split(without_amx(())[-1].partition("=")[2])
    named = ["-march=sapphirerapids", "-dM", "-E", "-x", "c++", "/dev/null"]
    plain = subprocess.run([cxx, *named], capture_output=True, text=True, check=False)
    if plain.returncode:
        pytest.skip("this compiler makes no code for processors with AMX")
    assert "__AMX_INT8__" in plain.stdout
    for ordered in ([*flags, *named], [*named, *flags]):
        macros = subprocess.run([cxx, *ordered], capture_output=True, text=True, check=True).stdout
        assert "__AVX2__" in macros and "__AMX_" not in macros
