"""The program as a whole: what becomes of its exit code when nobody can be told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from pydantic_core import SchemaError
from typer.testing import CliRunner

from benchctl.cli import app as program
from benchctl.cli.app import app

KEPT = Path(__file__).parents[2] / "results"
LIST = [sys.executable, "-m", "benchctl", "recipes", "list"]


def test_a_reader_that_is_gone_is_no_verdict() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(LIST, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, ""), "1 would say: not lossless"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a disk that is always full")
@pytest.mark.parametrize("words", [LIST, [*LIST, "--json"], [sys.executable, "-m", "benchctl", "--help"]])
def test_output_to_a_full_disk_is_one_message(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "error: the output: It cannot be written or read: No space left on device.\n"


def commands(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command and group."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


@pytest.mark.parametrize("words", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_every_command_explains_itself(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*" ".join(words).split(), "--help"], env={"COLUMNS": "80", "NO_COLOR": "1"})
    assert done.exception is None
    assert done.exit_code == 0
    assert "Usage:" in done.output
    lines = done.output.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 52, "one screen"
    assert "//" not in done.output.replace("://", ""), "Markdown drops <words>: write WORDS"


@pytest.mark.parametrize("words", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_no_help_text_has_a_placeholder_that_markdown_drops(words: tuple[str, ...]) -> None:
    command = typer.main.get_command(app)
    for word in words:
        command = getattr(command, "commands")[word]  # noqa: B009
    texts = [command.help, command.epilog, *(getattr(option, "help", None) for option in command.params)]
    assert any(texts)
    assert not [text for text in texts if text and re.search(r"<[a-z/]", text, re.IGNORECASE)]


def test_commands_stand_in_panels() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    assert all(panel in shown for panel in ("Measure", "Judge", "Prepare", "Keep"))


def _fails() -> None:
    raise KeyError("[bold]nobody thought of this\x1b[2J")


def test_an_error_of_our_own_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path))
    monkeypatch.setattr(program, "app", _fails)
    with pytest.raises(SystemExit) as raised:
        program.main()
    assert raised.value.code == 70, "1 would say: not lossless"
    message = capsys.readouterr().err
    (entry,) = (tmp_path / "errors").iterdir()
    assert "KeyError" in message and str(entry) in message and "Traceback" not in message and "\x1b[2J" not in message
    assert "[bold]nobody thought of this" in message
    assert "Traceback" in entry.read_text() and "nobody thought of this" in entry.read_text()


def test_an_error_of_our_own_is_told_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "file"))
    monkeypatch.setattr(program, "app", _fails)
    with pytest.raises(SystemExit) as raised:
        program.main()
    assert raised.value.code == 70
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_that_native_code_has_made_an_error_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCHCTL_CACHE", str(tmp_path))
    message = 'Error building "model" validator:\n  KeyboardInterrupt: '

    def cut_off() -> None:
        raise SchemaError(message)

    monkeypatch.setattr(program, "app", cut_off)
    with pytest.raises(SystemExit) as raised:
        program.main()
    assert raised.value.code == 130
    assert capsys.readouterr().err == "Interrupted.\n"
    message = "KeyboardInterrupt: is no key of this schema"
    with pytest.raises(SystemExit) as raised:
        program.main()
    assert raised.value.code == 70


@pytest.mark.parametrize("words", [("runs", "list", "--results", str(KEPT)), ("recipes", "check", "quickstart")])
def test_what_lists_and_checks_loads_no_numbers(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "benchctl", *words]
    subprocess.run(command, capture_output=True, check=True)  # what `runs list` computes once it keeps
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "benchctl.cli.app" in loaded
    assert loaded.isdisjoint({"numpy", "gguf", "pandas", "scipy", "huggingface_hub"})


def test_no_command_imports_anything_heavy_before_it_is_called() -> None:
    """All commands are imported at every start, those of experiments too."""
    heavy = [
        "asyncio",
        "statistics",
        "pydantic",
        "httpx",
        "numpy",
        "pandas",
        "matplotlib",
        "psutil",
        "yaml",
        "rich.console",
        "importlib.metadata",
    ]
    code = f"import sys, benchctl.cli.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
