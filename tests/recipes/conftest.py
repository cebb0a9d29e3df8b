from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.recipes.load import load_recipe
from benchctl.recipes.problems import RecipeError
from benchctl.recipes.schema import Recipe


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Recipe]:
    """Load a recipe from its text, as `recipe.yaml` in the working directory."""
    monkeypatch.chdir(tmp_path)

    def load_text(text: str | bytes) -> Recipe:
        path = Path("recipe.yaml")
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return load_recipe(path)

    return load_text


@pytest.fixture
def refused(load: Callable[[str], Recipe]) -> Callable[[str], RecipeError]:
    """Return the error that a bad recipe gets."""

    def error(text: str) -> RecipeError:
        with pytest.raises(RecipeError) as caught:
            load(text)
        assert caught.value.exit_code == 2
        return caught.value

    return error


@pytest.fixture
def refusal(refused: Callable[[str], RecipeError]) -> Callable[[str], str]:
    """Return the whole message that a bad recipe gets."""
    return lambda text: str(refused(text))
