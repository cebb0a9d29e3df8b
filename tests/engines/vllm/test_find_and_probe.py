"""Which vLLM runs, and what it is asked: a stand-in package answers as the real one does."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.common.programs import FoundBinary
from benchctl.engines.common.python_environment import MARKER
from benchctl.engines.registry import find_engines
from benchctl.engines.vllm import ask_package, installation
from benchctl.engines.vllm.engine import probe_vllm, python_of
from benchctl.errors import EngineError, UsageError

FACTS: dict[str, Any] = {
    "python": "3.11.7",
    "prefix": "/venv",
    "distributions": {
        "vllm": {"version": "0.99.0+cpu", "record_sha256": None},
        "torch": {"version": "2.13.0", "record_sha256": "ab"},
    },
    "platform": "cpu",
    "device": "cpu",
    "methods": ["ngram", "suffix"],
    "keys": ["method"],
    "options": {"--seed": None},
    "arctic_inference": False,
    "torchvision": False,
}


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a machine without any vLLM: an empty PATH, an empty cache, no variable."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCHCTL_VLLM", raising=False)
    return tmp_path


def environment(folder: Path, answer: str = "") -> Path:
    """Lay down an environment whose Python prints `answer` and counts how often it was asked; return its `vllm`."""
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / "bin" / "python3"
    python.parent.mkdir()
    python.write_text(f"#!{sys.executable}\nimport sys\nopen({str(folder / 'asked')!r}, 'a').write('x')\n{answer}\n")
    python.chmod(0o755)
    program = folder / "bin" / "vllm"
    program.write_text(f"#!{python}\nraise SystemExit(1)\n")
    program.chmod(0o755)
    return program


def printing(facts: dict[str, Any]) -> str:
    return f"print('INFO of vLLM on the way'); print({json.dumps(facts)!r})"


def test_without_any_there_is_advice() -> None:
    with pytest.raises(EngineError) as caught:
        installation.search().find()
    assert "benchctl engines install vllm --cpu" in (caught.value.fix or "")


def test_the_users_own_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from_environment, named = environment(tmp_path / "own"), environment(tmp_path / "named")
    installed = environment(installation.environment().folder)
    assert installation.search().unnamed() == []  # without its last file an installation is not whole
    (installation.environment().folder / MARKER).write_text("{}")
    assert installation.search().find() == FoundBinary(installed, "bundled")
    monkeypatch.setenv("BENCHCTL_VLLM", str(from_environment))
    assert installation.search().find() == FoundBinary(from_environment, "environment")
    assert installation.search().find("vllm") == FoundBinary(
        from_environment, "environment"
    )  # the name that every installation has
    assert installation.search().find(None, str(named)) == FoundBinary(named, "option")
    # The option of the command line outranks the recipe.
    assert installation.search().find(str(from_environment), str(named)) == FoundBinary(named, "option")
    assert installation.search().find(str(from_environment)) == FoundBinary(from_environment, "recipe")


@pytest.mark.parametrize("value", ["/none/vllm", "other-vllm", "/"])
def test_what_was_named_and_is_not_there(value: str) -> None:
    with pytest.raises(UsageError):
        installation.search().find(value)


def test_its_python_is_read_from_the_program(tmp_path: Path) -> None:
    program = environment(tmp_path / "env")
    assert python_of(program) == program.with_name("python3")
    # As pip writes it where the path is long.
    program.write_text(f"#!/bin/sh\n'''exec' \"{program.with_name('python3')}\" \"$0\" \"$@\"\n' '''\n")
    assert python_of(program) == program.with_name("python3")
    program.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(EngineError, match="no `vllm` program"):
        python_of(program)


def test_the_package_is_probed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    result = FoundBinary(environment(tmp_path / "env", printing(FACTS)), "option")
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    (packages / "vllm-0.99.0+cpu.dist-info").mkdir(parents=True)
    probe = probe_vllm(result)
    assert probe.capabilities.speculation_types == ("ngram-simple", "suffix")
    assert probe.capabilities.version == "vLLM 0.99.0+cpu on cpu"
    assert probe.capabilities.details["siblings"] == {"torch": "ab"}
    assert probe.facts.cpu
    assert probe_vllm(result) == probe
    assert (tmp_path / "env" / "asked").read_text() == "x"
    (packages / "vllm-1.dist-info").mkdir()
    probe_vllm(result)  # another package is asked again
    assert (tmp_path / "env" / "asked").read_text() == "xx"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    probe_vllm(result)  # and so is one that sees other devices
    assert (tmp_path / "env" / "asked").read_text() == "xxx"


def test_an_answer_is_not_kept_where_nothing_would_show_another_package(tmp_path: Path) -> None:
    result = FoundBinary(environment(tmp_path / "env", printing(FACTS)), "option")
    assert probe_vllm(result) == probe_vllm(result)
    assert (tmp_path / "env" / "asked").read_text() == "xx"


def test_an_answer_that_cannot_be_used_is_not_kept(tmp_path: Path) -> None:
    result = FoundBinary(environment(tmp_path / "env", printing({"platform": "cpu"})), "option")
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "vllm-1.dist-info").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(EngineError, match="does not report"):
            probe_vllm(result)
    assert (tmp_path / "env" / "asked").read_text() == "xx"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("sys.exit(\"ModuleNotFoundError: No module named 'vllm'\")", "No module named 'vllm'"),
        ("print('hello')", "cannot be read"),
        ("print('{}')", "does not report"),
    ],
)
def test_what_is_no_vllm(tmp_path: Path, answer: str, message: str) -> None:
    with pytest.raises(EngineError, match="cannot be used") as caught:
        probe_vllm(FoundBinary(environment(tmp_path / "env", answer), "option"))
    assert message in caught.value.what


def test_a_list_of_engines_shows_what_is_known_without_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (absent,) = [engine for engine in find_engines() if engine.kind == "vllm"]
    assert absent.found_in is None
    assert "engines install vllm --cpu" in (absent.hint or "")
    program = environment(tmp_path / "env", printing(FACTS))
    (tmp_path / "env" / "lib" / "python3.11" / "site-packages" / "vllm-0.99.0+cpu.dist-info").mkdir(parents=True)
    monkeypatch.setenv("BENCHCTL_VLLM", str(program))
    (unasked,) = [engine for engine in find_engines() if engine.kind == "vllm"]
    assert (unasked.found_in, unasked.version, unasked.speculation_types) == ("environment", "0.99.0+cpu", ())
    assert not (tmp_path / "env" / "asked").exists()
    probe_vllm(FoundBinary(program, "environment"))
    (listed,) = [engine for engine in find_engines() if engine.kind == "vllm"]
    assert listed.speculation_types == ("ngram-simple", "suffix")


def test_an_sglang_that_the_environment_names_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (absent,) = [engine for engine in find_engines() if engine.kind == "sglang"]
    assert (absent.found_in, absent.problem) == (None, None)
    assert "BENCHCTL_SGLANG" in (absent.hint or "")
    monkeypatch.setenv("BENCHCTL_SGLANG", sys.executable)
    (named,) = [engine for engine in find_engines() if engine.kind == "sglang"]
    assert (named.found_in, named.where, named.runs) == ("environment", sys.executable, True)
    monkeypatch.setenv("BENCHCTL_SGLANG", str(tmp_path / "nowhere"))
    (listed,) = [engine for engine in find_engines() if engine.kind == "sglang"]
    assert str(listed.where).endswith(str(tmp_path / "nowhere"))
    assert listed.problem == "there is no such program"


def test_an_installation_that_was_cut_or_patched_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vLLM cut to one GPU's kernels had the identity of a whole one: its list of files was left as it was."""
    files = tmp_path / "vllm-1.0.dist-info"
    files.mkdir()
    (files / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 1.0\n")
    (files / "RECORD").write_text("vllm/_C.so,sha256=x,4\nvllm/a.py,sha256=y,2\nvllm-1.0.dist-info/RECORD,,\n")
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/_C.so").write_bytes(b"1234")
    (tmp_path / "vllm/a.py").write_bytes(b"12")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    whole = ask_package._distributions()
    assert ask_package._distributions() == whole
    (tmp_path / "vllm/_C.so").write_bytes(b"12")
    cut = ask_package._distributions()
    assert cut["vllm"]["version"] == "1.0" and cut != whole
    (tmp_path / "vllm/_C.so").unlink()
    assert ask_package._distributions() not in (cut, whole)
