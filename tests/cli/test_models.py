"""`benchctl models` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.cli.models import app
from benchctl.errors import StorageError, UsageError
from benchctl.models.sources import bundled_models
from tests.benchctl_process import benchctl
from tests.cli.calls import answer, call

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep derived folders out of the user's cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BENCHCTL_CACHE", str(folder))
    return folder


def test_list_names_every_bundled_model() -> None:
    head, *rows = (line.split() for line in answer(app, "list").splitlines())
    assert head == ["name", "role", "architecture", "parameters", "MB", "sha256", "licence"]
    assert [row[0] for row in rows] == [f"bundled:{model.name}" for model in bundled_models()]
    assert ["bundled:tiny-hybrid", "target", "falcon-h1"] in [row[:3] for row in rows]
    listed = json.loads(answer(app, "list", "--json"))
    assert listed == [model.as_dict() for model in bundled_models()]
    assert all(len(model["sha256"]) == 64 for model in listed)


def test_list_of_an_installation_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.models.sources.bundled_folder", lambda: tmp_path)
    assert json.loads(answer(app, "list", "--json")) == []
    result = call(app, "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "This installation of benchctl has no bundled models.\n"


def test_export_prints_the_folder_in_the_cache(cache: Path) -> None:
    folder = Path(answer(app, "export", "bundled:tiny-hybrid-draft").strip())
    assert folder.is_relative_to(cache)
    assert (folder / "config.json").is_file()


def test_export_writes_where_it_is_told(tmp_path: Path, tiny_draft: Path) -> None:
    assert answer(app, "export", str(tiny_draft), "-o", "out") == "out\n"
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_name_that_is_not_known() -> None:
    result = call(app, "export", "bundled:tiny-hybird")
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(
        "bundled:tiny-hybird: benchctl ships no model called 'tiny-hybird'\nDid you"
    )


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    result = call(app, "export", "bundled:tiny-hybrid-draft", "-o", "file/model")
    assert isinstance(result.exception, StorageError)
    assert "file/model: the folder cannot be written: File exists" in str(result.exception)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["export", "bundled:nothing"], 2, "benchctl ships no model called 'nothing'"),
        (["export", "bundled:tiny-hybrid-draft", "-o", "/proc/none/model"], 4, "the folder cannot be written"),
    ],
)
def test_the_exit_codes_are_the_documented_ones(words: list[str], code: int, said: str) -> None:
    done = benchctl("models", *words)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
