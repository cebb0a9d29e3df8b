"""The recipe in the documentation is a good one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from benchctl.recipes.schema import Recipe

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_documented_recipe_loads_and_names_every_key(load: Callable[[str], Recipe]) -> None:
    example = re.search(r"```yaml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert example is not None
    assert load(example[1]).arms[-1].name == "both"
    for key in Recipe.model_fields.keys() - {"setups"}:  # made of `matrix`, and in no file
        assert re.search(rf"^{key}:", example[1], re.MULTILINE), key
