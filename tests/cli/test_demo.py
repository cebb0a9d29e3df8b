"""`benchctl demo` as a newcomer meets it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchctl.cli.app import app
from benchctl.engines.registry import FoundEngine


@pytest.mark.engine
def test_from_nothing_to_a_report(llama_server: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchctl", "demo", "--blocks", "1", "--out", str(tmp_path / "here")],
        cwd=tmp_path,  # the recipe, the models and the prompts come with benchctl, not with the folder
        env={**os.environ, "BENCHCTL_LLAMA_SERVER": str(llama_server)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Using {llama_server} (environment)" in done.stderr
    assert "The demo is done: " in done.stdout.splitlines()[-1]
    (page,) = (tmp_path / "here").glob("reports/quickstart/*/index.html")
    (records,) = (tmp_path / "here").glob("results/quickstart/*/records.jsonl")
    assert page.parent.name == records.parent.name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


def test_without_an_engine_one_is_built_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class EnoughError(Exception):
        """What follows needs a real engine."""

    asked = []

    def install(kind: str, **backends: bool) -> None:
        asked.append((kind, backends))
        raise EnoughError

    monkeypatch.setattr("benchctl.engines.registry.find_engines", lambda: [FoundEngine("llama.cpp", hint="build it")])
    monkeypatch.setattr("benchctl.cli.engines.install_engine", install)
    with pytest.raises(EnoughError):
        CliRunner().invoke(app, ["demo", "--cpu"], catch_exceptions=False)
    assert asked == [("llama.cpp", {"cuda": False, "metal": False, "cpu": True})]
