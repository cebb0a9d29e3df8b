"""`benchctl demo` as a newcomer meets it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchctl.cli.app import app
from benchctl.cli.demo import demo
from benchctl.engines.registry import FoundEngine
from benchctl.errors import StorageError


@pytest.mark.engine
def test_from_nothing_to_a_report(llama_server: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache = tmp_path_factory.mktemp("cache")
    done = subprocess.run(
        [sys.executable, "-m", "benchctl", "demo", "--blocks", "1", "--output", str(tmp_path / "here")],
        cwd=tmp_path,  # the recipe, the models and the prompts come with benchctl, not with the folder
        env={**os.environ, "BENCHCTL_LLAMA_SERVER": str(llama_server), "BENCHCTL_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"Using {llama_server} (environment)" in done.stderr
    output = done.stdout[done.stdout.index("The demo is done: ") :]
    assert output.count("every answer is identical") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]
    assert not list((cache / "padded").iterdir()), "400 MB are not left behind"
    answers = {}
    for recipe in ("quickstart", "padded"):
        (page,) = (tmp_path / "here").glob(f"reports/{recipe}/*/index.html")
        (records,) = (tmp_path / "here").glob(f"results/{recipe}/*/records.jsonl")
        assert page.parent.name == records.parent.name
        rows = [json.loads(line) for line in records.read_text().splitlines()]
        answers[recipe] = {(row["task"], row["prompt_idx"]): row["token_ids"] for row in rows
                           if row["label"] == "baseline" and row["task"] not in ("maths", "warmup")}  # fmt: skip
    assert len(answers["padded"]) == 12
    same = [tokens == answers["quickstart"][index][: len(tokens)] for index, tokens in answers["padded"].items()]
    assert sum(same) >= 6, "zeros change nothing; float32 in place of bf16 may decide a near-tie otherwise"


def test_a_machine_without_room_measures_the_pair_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_room(name: str) -> Path:
        raise StorageError("the padded model needs 0.4 GB of free disk, and there are 0.1 GB")

    measured: list[str] = []
    monkeypatch.setattr("benchctl.cli.demo._engine", lambda **backends: None)
    monkeypatch.setattr("benchctl.cli.demo._measured", lambda recipe, out, blocks: measured.append(recipe))
    monkeypatch.setattr("benchctl.cli.demo._answer", lambda analysis: "undecided.")
    monkeypatch.setattr("benchctl.models.shipped.padded_model", no_room)
    demo(blocks=1)
    assert measured == ["quickstart"]
    assert "left out" in capsys.readouterr().err


def test_without_an_engine_one_is_built_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class EnoughError(Exception):
        """What follows needs a real engine."""

    questions = []

    def install(kind: str, **backends: bool) -> None:
        questions.append((kind, backends))
        raise EnoughError

    monkeypatch.setattr("benchctl.engines.registry.find_engines", lambda: [FoundEngine("llama.cpp", hint="build it")])
    monkeypatch.setattr("benchctl.cli.engines.install_engine", install)
    with pytest.raises(EnoughError):
        CliRunner().invoke(app, ["demo", "--cpu"], catch_exceptions=False)
    assert questions == [("llama.cpp", {"cuda": False, "metal": False, "cpu": True})]
