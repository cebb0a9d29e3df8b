"""`benchctl engines doctor`: what it says, and that only failures make it fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchctl.cli.engines import check_installation, doctor
from benchctl.engines.registry import FoundEngine
from benchctl.machine.doctor import Check

app = typer.Typer()
app.command()(doctor)

FINE = Check("memory", "ok", "There is room.", "Models need it.")
WARNING = Check("governor", "warn", "It is [red]powersave\x1b[2J.", "It slows.", "Change it.")
FAILURE = Check("load", "fail", "The cores are busy.", "It is unfair.", "Wait.")
HIDDEN = Check("heat", "unknown", "The system does not report it.", "Heat slows.")


def run(monkeypatch: pytest.MonkeyPatch, checks: list[Check], *arguments: str) -> tuple[int, str]:
    monkeypatch.setattr("benchctl.machine.doctor.check_machine", lambda: checks)
    monkeypatch.setattr("benchctl.cli.engines.check_installation", list)
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    return result.exit_code, result.stdout


def test_this_machine_for_real() -> None:
    result = CliRunner().invoke(app, ["--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    failed = [check["id"] for check in document["checks"] if check["state"] == "fail"]
    assert document["fit"] == (not failed)
    assert result.exit_code == (1 if failed else 0)
    assert {"load", "memory", "disk", "engine.llama.cpp", "models.bundled"} <= {c["id"] for c in document["checks"]}
    assert document["machine"]["cpu"]


def test_warnings_do_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = run(monkeypatch, [FINE, WARNING, HIDDEN])
    assert status == 0
    assert "It slows." in output
    assert "→ Change it." in output
    assert "1 check could not be made" in output
    assert "[red]powersave␛[2J" in output
    assert "\x1b[2J" not in output


def test_a_failure_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = run(monkeypatch, [FINE, FAILURE])
    assert status == 1
    assert "Not fit to measure" in output
    status, output = run(monkeypatch, [FINE, FAILURE], "--json")
    assert status == 1
    assert json.loads(output)["checks"][1]["todo"] == "Wait."


def test_all_well(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = run(monkeypatch, [FINE])
    assert status == 0
    assert output.rstrip().endswith("Fit to measure.")


@pytest.mark.parametrize(
    ("found", "state", "words"),
    [
        ([FoundEngine("llama.cpp", hint="build it")], "fail", "no llama-server"),
        ([FoundEngine("llama.cpp"), FoundEngine("vllm", "PATH", "/vllm", runs=True)], "warn", "no llama-server"),
        ([FoundEngine("llama.cpp", "PATH", "/s", runs=True, problem="It crashed")], "fail", "It crashed"),
        ([FoundEngine("llama.cpp", "PATH", "/s", runs=True, version="b1")], "warn", "no speculation types"),
        ([FoundEngine("llama.cpp", "PATH", "/s", runs=True, speculation_types=("x",))], "ok", "/s (PATH)"),
    ],
)
def test_engines(
    found: list[FoundEngine], state: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchctl.engines.registry.find_engines", lambda: found)
    check = check_installation(tmp_path)[0]
    assert check.state == state
    assert words in check.seen


def test_bundled_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.engines.registry.find_engines", lambda: [FoundEngine("llama.cpp")])
    assert check_installation(tmp_path)[-1].state == "warn"
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF\x03")
    assert check_installation(tmp_path)[-1].state == "ok"
    (tmp_path / "pointer.gguf").write_text("version https://git-lfs")
    broken = check_installation(tmp_path)[-1]
    assert broken.state == "fail"
    assert "pointer.gguf" in broken.seen
