"""`benchctl engines` as a user meets it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from benchctl.cli.engines import app
from benchctl.errors import UsageError
from benchctl.measurement.progress import shown_steps
from benchctl.recipes.adapters import kinds

FAKE = Path(__file__).parents[1] / "engines" / "fake_llama_cpp"


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("BENCHCTL_LLAMA_SERVER", raising=False)
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    return tmp_path


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_install_then_list(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with tarfile.open(machine / "fake.tar.gz", "w:gz") as archive:
        for file in FAKE.iterdir():
            member = tarfile.TarInfo(f"llama_cpp_python-0.0.1/vendor/llama.cpp/{file.name}")
            member.size = len(content := file.read_bytes())
            archive.addfile(member, io.BytesIO(content))
    monkeypatch.setenv("CMAKE_ARGS", "-DCMAKE_CXX_FLAGS='-O1 -g0'")
    arguments = ["install", "llama.cpp", "--cpu", "--jobs", "2", "--sdist", str(machine / "fake.tar.gz")]
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    build = json.loads(result.stdout)
    assert "-DCMAKE_CXX_FLAGS=-O1 -g0" in build["flags"]
    assert "llama.cpp: compiling" in result.stderr
    repeated = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "0.0.1-fake" in repeated.stdout
    assert repeated.stderr == ""
    server = Path(build["folder"]) / "bin" / "llama-server"
    entry = listed(server)
    assert entry["found_in"] == "bundled"
    assert entry["problem"] is None
    assert entry["speculation_types"] == ["draft-simple"]
    # A program that starts, and is no llama-server: said so, not hidden.
    server.unlink()
    program(server, "#!/bin/sh\necho version: 1\n")
    assert listed(server)["problem"]


def listed(binary: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["list", "--json"], catch_exceptions=False)
    engines: list[dict[str, Any]] = json.loads(result.stdout)["engines"]
    return next(entry for entry in engines if entry["where"] == str(binary))


def test_install_of_something_else() -> None:
    with pytest.raises(UsageError, match="'llama-cpp'") as caught:
        CliRunner().invoke(app, ["install", "llama-cpp"], catch_exceptions=False)
    assert "llama.cpp" in (caught.value.fix or "")


def test_install_for_two_backends() -> None:
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["install", "llama.cpp", "--cuda", "--metal"], catch_exceptions=False)
    assert caught.value.where == "--cuda --metal"


def test_install_with_cmake_args_that_cannot_be_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMAKE_ARGS", "-DA='open")
    with pytest.raises(UsageError) as caught:
        CliRunner().invoke(app, ["install", "llama.cpp"], catch_exceptions=False)
    assert caught.value.where == "CMAKE_ARGS"


@pytest.mark.engine
def test_list_shows_the_real_server(llama_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(llama_server))
    listed = CliRunner().invoke(app, ["list", "--json"], catch_exceptions=False)
    engines = json.loads(listed.stdout)["engines"]
    assert engines[0]["where"] == str(llama_server)
    assert (engines[0]["found_in"], engines[0]["runs"], engines[0]["problem"]) == ("environment", True, None)
    assert {"draft-simple", "ngram-simple"} <= set(engines[0]["speculation_types"])
    assert {engine["kind"] for engine in engines} == set(kinds())
    result = CliRunner().invoke(app, ["list"], catch_exceptions=False)
    assert "▸ llama.cpp" in result.stdout
    assert "draft-simple" in result.stdout


def test_list_shows_what_cannot_be_used_harmlessly(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = program(machine / "evil[bold]", "#!/bin/sh\nprintf 'version: \\033[2J[red]\\n'\nexit 3\n")
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", str(hostile))
    result = CliRunner().invoke(app, ["list"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "evil[bold]" in result.stdout.replace("\n  ", "")
    assert "cannot be used" in result.stdout
    assert "\x1b[2J" not in result.stdout


def test_list_shows_a_variable_that_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHCTL_LLAMA_SERVER", "/no/such/server")
    listed = CliRunner().invoke(app, ["list", "--json"], catch_exceptions=False)
    engine = json.loads(listed.stdout)["engines"][0]
    assert engine["problem"] == "there is no such program"


def test_list_without_any(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(machine))
    result = CliRunner().invoke(app, ["list"], catch_exceptions=False)
    assert "benchctl engines install llama.cpp" in " ".join(result.stdout.split())


def test_plain_progress_is_a_line_a_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    with shown_steps("llama.cpp") as report:
        report("configuring", 0, 0)
        for step in range(1, 201):
            report("compiling", step, 200)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "llama.cpp: configuring"
    assert lines[-1] == "llama.cpp: compiling 200/200"
    assert len(lines) == 12


def test_what_is_told_first_stays_above_the_live_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The size of a download was shown for a moment, until the next step took its line."""
    monkeypatch.setattr("benchctl.measurement.progress.Console", partial(Console, force_terminal=True, width=100))
    with shown_steps("vLLM") as report:
        report("it downloads 4.0 GB.", 0, 0)
        report("installing", 1, 2)
    assert "vLLM: it downloads 4.0 GB.\n" in capsys.readouterr().err


def test_importing_the_commands_imports_nothing_heavy() -> None:
    heavy = ["pydantic", "httpx", "numpy", "pandas", "matplotlib", "psutil", "yaml", "rich"]
    code = f"import sys, benchctl.cli.engines; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
