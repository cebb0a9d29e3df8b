"""The recipe that is saved with a run: a file of it means the same wherever it lies."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.data.store import read_manifest
from benchctl.errors import UsageError
from benchctl.prompts.load import load_suite
from benchctl.recipes.from_options import RecipeOptions, with_settings, with_types
from benchctl.recipes.load import load_recipe, recipe_of_options, recipe_text, shipped_recipes, stored_recipe
from benchctl.recipes.schema import Recipe
from tests.kept_runs import ROOT, RUNS


def saved(recipe: Recipe, folder: Path, into: Path) -> Path:
    into.mkdir(parents=True)
    file = into / "recipe.yaml"
    file.write_text(recipe_text(recipe, folder), encoding="utf-8")
    return file


def without_again(recipe: Recipe) -> Recipe:
    return recipe.model_copy(update={"arms": [arm for arm in recipe.arms if not arm.again]})


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.relative_to(ROOT)))
def test_a_kept_run_s_recipe_is_saved_and_read_as_it_is(run: Path, tmp_path: Path) -> None:
    recipe = stored_recipe(read_manifest(run).recipe)
    read = load_recipe(saved(recipe, tmp_path, tmp_path / "run")).model_dump_json()
    assert read.replace(f'"{Path.home()}/', '"~/') == without_again(recipe).model_dump_json()  # it may be saved in full


@pytest.mark.parametrize("name", shipped_recipes())
def test_a_shipped_recipe_is_saved_and_read_as_it_is(name: str, tmp_path: Path) -> None:
    """Conditions, axes and endpoints among them."""
    file = shipped_recipes()[name]
    assert load_recipe(saved(load_recipe(file), tmp_path, tmp_path / "run")) == load_recipe(file)


def test_relative_paths_keep_their_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine").mkdir()
    for name, text in (("p.txt", "Hello?\n"), ("words.txt", "some words"), ("target.gguf", "GGUF"), ("engine", "")):
        (tmp_path / "mine" / name).write_text(text)
    (tmp_path / "here.txt").write_text("From the working directory?\n")
    monkeypatch.chdir(tmp_path)
    data = {
        "name": "mine",
        "engine": {"binary": "mine/engine"},
        "models": {"target": {"source": "target.gguf"}},
        "prompts": {"suite": "p.txt", "context": "words.txt"},
        "arms": [{"name": "baseline"}],
    }
    recipe = recipe_of_options(data)
    file = saved(recipe, tmp_path / "mine", tmp_path / "results" / "mine" / "run")
    elsewhere = saved(
        recipe.model_copy(update={"prompts": recipe.prompts.model_copy(update={"suite": "here.txt"})}),
        tmp_path / "mine",
        tmp_path / "other",
    )
    monkeypatch.chdir("/")
    reloaded = load_recipe(file)
    assert reloaded.binary == str(tmp_path / "mine" / "engine")
    assert reloaded.models.target.source == str(tmp_path / "mine" / "target.gguf")
    assert reloaded.prompts.context == str(tmp_path / "mine" / "words.txt")
    assert load_suite(reloaded.prompts.suite, recipe_folder=file.parent).tasks["p"]
    assert load_suite(load_recipe(elsewhere).prompts.suite, recipe_folder=file.parent).tasks["here"]


def test_what_does_not_fit_is_one_message(tmp_path: Path) -> None:
    recipe = load_recipe(shipped_recipes()["quickstart"])
    with pytest.raises(UsageError, match="blocks"):
        with_settings(recipe, {"blocks": 0})
    with pytest.raises(UsageError, match="max"):
        with_types(recipe, RecipeOptions(types=["draft-simple"], depth="99"))
    with pytest.raises(UsageError, match="as they were started"):
        with_types(load_recipe(shipped_recipes()["endpoint"]), RecipeOptions(types=["ngram-mod"]))
    file = saved(recipe, tmp_path, tmp_path / "run")
    file.write_text("expanded: true\n" + file.read_text().replace("name: baseline", "name: base line"))
    with pytest.raises(UsageError, match=r"recipe\.yaml:\d+: arms"):
        load_recipe(file)
