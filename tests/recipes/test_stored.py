"""Recipes that older versions kept in a manifest are read as they were meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from benchctl.errors import UsageError
from benchctl.recipes.load import stored_recipe
from tests.kept_runs import ROOT

KEPT = sorted((ROOT / "results").rglob("manifest.json"))


@pytest.mark.parametrize("file", KEPT, ids=lambda file: f"{file.parent.parent.name}-{file.parent.name}")
def test_every_kept_run_has_its_recipe(file: Path) -> None:
    stored = json.loads(file.read_text("utf-8"))["recipe"]
    recipe = stored_recipe(stored)
    dumped = recipe.model_dump(mode="json")
    assert [arm["name"] for arm in dumped["arms"]] == [arm["name"] for arm in stored["arms"]]
    lost = {key: value for key, value in stored["engine"].items() if dumped["engine"].get(key, value) != value}
    gone = {key: value for key, value in stored["engine"].items() if key not in dumped["engine"]}
    assert not lost
    assert gone.items() <= {"url": None, "api_key_env": None, "dtype": "auto"}.items()
    assert stored_recipe(dumped) == recipe


def test_what_this_version_does_not_know_is_refused() -> None:
    stored = json.loads(KEPT[0].read_text("utf-8"))["recipe"]
    with pytest.raises(ValidationError, match="blcoks"):
        stored_recipe({**stored, "blcoks": 3})
    with pytest.raises(ValidationError, match="url"):
        stored_recipe({**stored, "engine": {**stored["engine"], "url": "http://127.0.0.1:1"}})
    with pytest.raises(UsageError, match="`tensorrt` cannot run"):
        stored_recipe({**stored, "engine": {"kind": "tensorrt"}})
