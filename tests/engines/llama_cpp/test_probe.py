from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from benchctl.engines.common.programs import sibling_hashes
from benchctl.engines.llama_cpp import probe
from benchctl.engines.llama_cpp.probe import probe_server
from benchctl.errors import EngineError
from benchctl.models.files import file_sha256
from tests.engines.cells import HERE


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\n{body}")
    path.chmod(0o755)
    return path


@pytest.mark.engine
def test_the_real_binary(llama_server: Path) -> None:
    able = probe_server(llama_server, "bundled").capabilities
    assert able.kind == "llama.cpp"
    assert able.version is not None
    assert able.version.startswith("version: ")
    assert able.commit
    assert {"draft-simple", "ngram-simple", "draft-mtp"} <= set(able.speculation_types)
    assert able.details["dialect"] == "current"
    assert able.details["has_synthetic"] is True
    assert able.details["sha256"] == hashlib.sha256(llama_server.read_bytes()).hexdigest()


def test_a_binary_of_the_old_dialect(tmp_path: Path) -> None:
    help_text = HERE / "data" / "help_legacy.txt"
    body = (
        "import sys, pathlib\n"
        f"if sys.argv[1] == '--help': print(pathlib.Path({str(help_text)!r}).read_text())\n"
        "elif sys.argv[1] == '--version': print('version: 4820 (1a24c462)', file=sys.stderr)\n"
        "else: print('Available devices:\\n  CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)')\n"
    )
    able = probe_server(script(tmp_path / "llama-server", body), "PATH").capabilities
    assert able.speculation_types == ("draft-simple",)
    assert (able.build, able.commit) == ("4820", "1a24c462")
    assert able.details["dialect"] == "legacy"
    assert able.details["has_synthetic"] is False
    assert able.details["devices"] == ["CUDA0: NVIDIA H200 (143771 MiB, 143000 MiB free)"]


@pytest.mark.parametrize("program", ["/bin/true", sys.executable])
def test_another_program_is_refused(program: str) -> None:
    with pytest.raises(EngineError, match="This is not llama-server") as caught:
        probe_server(Path(program), "option")
    assert caught.value.kind == "launch"
    assert caught.value.fix


@pytest.mark.parametrize(("content", "mode"), [(b"just text", 0o755), (b"\x7fELF broken", 0o755), (b"text", 0o644)])
def test_a_file_that_is_no_program_is_refused(tmp_path: Path, content: bytes, mode: int) -> None:
    path = tmp_path / "llama-server"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(EngineError, match="cannot be run") as caught:
        probe_server(path, "option")
    assert caught.value.kind == "launch"


def test_a_failing_program_is_reported_with_its_output(tmp_path: Path) -> None:
    path = script(tmp_path / "x", "import sys; sys.exit('libggml.so: cannot open \\x1b[31mshared object')")
    with pytest.raises(EngineError, match="status 1") as caught:
        probe_server(path, "option")
    assert caught.value.log_tail == ("libggml.so: cannot open shared object",)


def test_a_help_that_ends_with_status_1_is_a_help(tmp_path: Path) -> None:
    """ik_llama.cpp's does."""
    text = str(HERE / "data" / "help_ik.txt")
    body = (
        "import sys, pathlib\n"
        f"if sys.argv[1] == '--help': print(pathlib.Path({text!r}).read_text()); sys.exit(1)\n"
        "print('version: 1 (unknown)', file=sys.stderr)\n"
    )
    able = probe_server(script(tmp_path / "llama-server", body), "PATH").capabilities
    assert able.details["dialect"] == "ik"
    assert "draft-mtp" in able.speculation_types


def test_a_program_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROBE_TIMEOUT_S", 0.3)
    with pytest.raises(EngineError, match="did not answer --help"):
        probe_server(script(tmp_path / "x", "import time; time.sleep(30)"), "option")


def test_libraries_beside_the_binary_are_hashed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "lib").mkdir()
    binary = tmp_path / "bin" / "llama-server"
    for name in ("bin/llama-server", "bin/libggml-base.so", "lib/libllama.so.0", "bin/libother.so", "bin/libllama.a"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "bin" / "libggml.so").symlink_to("libggml-base.so")
    hashes = sibling_hashes(binary)
    assert sorted(hashes) == ["libggml-base.so", "libllama.so.0"]
    assert hashes["libllama.so.0"] == hashlib.sha256(b"lib/libllama.so.0").hexdigest()


def test_a_changed_file_has_another_hash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = file_sha256(path)
    path.write_bytes(b"other")
    assert file_sha256(path) != first
