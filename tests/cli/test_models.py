"""`benchctl models` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchctl.cli.app import app
from benchctl.models.shipped import bundled_models
from tests.cli.calls import answer, call

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep derived folders out of the user's cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BENCHCTL_CACHE", str(folder))
    return folder


def test_list_names_every_bundled_model() -> None:
    head, *rows = (line.split() for line in answer(app, "models", "list").splitlines())
    assert head == ["name", "role", "architecture", "parameters", "MB", "sha256", "licence"]
    assert [row[0] for row in rows] == [f"bundled:{model.name}" for model in bundled_models()]
    assert ["bundled:tiny-hybrid", "target", "falcon-h1"] in [row[:3] for row in rows]
    listed = json.loads(answer(app, "models", "list", "--json"))
    assert listed == [model.as_dict() for model in bundled_models()]
    assert all(len(model["sha256"]) == 64 for model in listed)


def test_list_of_an_installation_without_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchctl.models.shipped.bundled_folder", lambda: tmp_path)
    assert json.loads(answer(app, "models", "list", "--json")) == []
    result = call(app, "models", "list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "This installation of benchctl has no bundled models.\n"
