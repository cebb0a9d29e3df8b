"""Recipes with other bytes, and with other values where the shipped ones have sound ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchctl.recipes.load import load_recipe, shipped_recipes
from benchctl.recipes.trust import find_openings
from tests.fuzz import fuzzed, mistaken, outcome, spoilt, told

pytestmark = pytest.mark.usefixtures(told.__name__)
SOUND = [file.read_bytes() for file in shipped_recipes().values()]


def read(file: Path) -> None:
    recipe = load_recipe(file)
    for opening in find_openings(recipe, file.parent):
        str(opening).encode("utf-8")


@pytest.mark.parametrize("way", ["bytes", "values"])
def test_a_recipe_is_read_or_refused(way: str, tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"

    @fuzzed
    @given(st.sampled_from(SOUND), st.data())
    def one(sound: bytes, data: st.DataObject) -> None:
        file.write_bytes(data.draw(spoilt(sound) if way == "bytes" else mistaken(yaml.safe_load(sound))))
        outcome("recipe", lambda: read(file))

    one()
