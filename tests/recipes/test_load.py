"""What a good file becomes, and how one is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchctl.errors import UsageError
from benchctl.prompts.load import load_suite
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.load import find_recipe, load_recipe, shipped_recipes
from benchctl.recipes.problems import RecipeError
from benchctl.recipes.schema import AutoBlocks, Recipe

Load = Callable[[str], Recipe]

HEAD = """\
name: demo
models: {target: {source: bundled:tiny-hybrid}, draft: {source: bundled:tiny-hybrid-draft}}
prompts: {suite: tiny.json}
"""


def launched(recipe: Recipe) -> LaunchedEngineSpec:
    """Return the engine of a recipe that starts one."""
    assert isinstance(recipe.engine, LaunchedEngineSpec)
    return recipe.engine


def test_defaults_are_filled_in(load: Load) -> None:
    recipe = load(HEAD + "arms: [{name: baseline}]\n")
    assert recipe.engine.kind == "llama.cpp"
    assert (recipe.sampling.temperature, recipe.sampling.top_k, recipe.blocks) == (0.0, 1, 5)
    assert recipe.arm("baseline").speculation is None


def test_a_matrix_expands_to_the_product_in_the_order_written(load: Load) -> None:
    recipe = load(
        HEAD
        + """\
arms:
  - name: baseline
  - name: d{depth}_p{p}
    speculation: {type: draft-simple, max: "{depth}", p_min: "{p}"}
    args: ["--poll={depth}", "{p}x"]
    matrix: {depth: [2, 4], p: [0.0, 0.5]}
  - name: last
    speculation: {type: ngram-simple}
"""
    )
    assert [arm.name for arm in recipe.arms] == ["baseline", "d2_p0.0", "d2_p0.5", "d4_p0.0", "d4_p0.5", "last"]
    arm = recipe.arm("d4_p0.5")
    assert arm.speculation is not None
    assert (arm.speculation.max, arm.speculation.p_min, arm.args) == (4, 0.5, ["--poll=4", "0.5x"])


def test_a_placeholder_alone_takes_the_type_of_its_value_and_a_name_stays_text(load: Load) -> None:
    recipe = load(
        HEAD
        + """\
arms:
  - name: baseline
  - name: "{kind}"
    speculation: {type: "{kind}"}
    matrix: {kind: [ngram-mod, ngram-cache]}
  - name: "{n}"
    speculation: {type: draft-simple, max: "{n}"}
    matrix: {n: [8]}
"""
    )
    assert [arm.name for arm in recipe.arms] == ["baseline", "ngram-mod", "ngram-cache", "8"]
    assert [arm.speculation.types for arm in recipe.arms[1:3] if arm.speculation] == [("ngram-mod",), ("ngram-cache",)]


def test_braces_that_are_no_placeholder_are_left_alone(load: Load) -> None:
    arm = """\
arms:
  - name: baseline
    args: ['{"enable_thinking": false}', "{port}"]
"""
    assert load(HEAD + arm).arms[0].args == ['{"enable_thinking": false}', "{port}"]


def test_words_that_yaml_1_1_would_turn_into_other_things_stay_text(load: Load) -> None:
    recipe = load(
        HEAD + "engine: {args: [--flash-attn, on, off, no, 12:30, 2026-01-01, 0o17, =, ~x]}\narms: [{name: baseline}]\n"
    )
    assert launched(recipe).args == ["--flash-attn", "on", "off", "no", "12:30", "2026-01-01", "0o17", "=", "~x"]


def test_scientific_notation_is_a_number_where_a_number_belongs(load: Load) -> None:
    recipe = load(HEAD + "engine: {health_timeout_s: 1e2}\nsampling: {temperature: 5e-1}\narms: [{name: baseline}]\n")
    assert (launched(recipe).health_timeout_s, recipe.sampling.temperature) == (100.0, 0.5)


def test_an_explicit_text_tag_makes_text(load: Load) -> None:
    assert launched(load(HEAD + "engine: {args: [-c, !!str 5]}\narms: [{name: baseline}]\n")).args == ["-c", "5"]


def test_anchors_that_multiply_little_are_welcome(load: Load) -> None:
    recipe = load(
        HEAD
        + """\
arms:
  - name: baseline
  - {name: a, speculation: &spec {type: draft-simple, max: 4}}
  - {name: b, speculation: *spec, args: ["-x"]}
"""
    )
    assert recipe.arm("a").speculation == recipe.arm("b").speculation


def test_a_byte_order_mark_does_not_matter(load: Callable[[bytes], Recipe]) -> None:
    assert load(b"\xef\xbb\xbf" + (HEAD + "arms: [{name: baseline}]\n").encode()).name == "demo"


def test_overrides_replace_values_before_anything_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(HEAD + "blocks: 0\narms: [{name: baseline}]\n")
    recipe = load_recipe(path, overrides={"blocks": 7, "engine.binary": "/opt/llama-server", "sampling.max_tokens": 5})
    assert (recipe.blocks, launched(recipe).binary, recipe.sampling.max_tokens) == (7, "/opt/llama-server", 5)
    with pytest.raises(RecipeError, match=r"at least 1, got 0"):
        load_recipe(path, overrides={"blocks": 7, "sampling.max_tokens": 0})


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        load_recipe(Path("none.yaml"))
    assert str(caught.value) == "none.yaml: the file cannot be read: No such file or directory."
    Path("folder").mkdir()
    with pytest.raises(RecipeError) as caught:
        load_recipe(Path("folder"))
    assert str(caught.value) == "folder: the file cannot be read: Is a directory."


def test_a_recipe_is_found_by_path_first_and_by_name_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == shipped_recipes()["quickstart"]
    Path("quickstart").write_text("mine")
    assert find_recipe("quickstart") == Path("quickstart")


@pytest.mark.parametrize("asked", ["quikstart", "quikstart.yaml", "recipes/quikstart.yml"])
def test_the_nearest_shipped_recipe_is_suggested(asked: str) -> None:
    with pytest.raises(UsageError) as caught:
        find_recipe(asked)
    assert str(caught.value) == (
        f"there is no recipe file '{asked}', and benchctl ships none of that name.\nDid you mean 'quickstart'?"
    )


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(UsageError, match="benchctl recipes list"):
        find_recipe("zzzzzz")


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_loads_under_its_own_name(name: str) -> None:
    path = shipped_recipes()[name]
    recipe = load_recipe(path)
    assert recipe.name == name
    assert recipe.description
    assert len(recipe.arms) >= 2


@pytest.mark.parametrize("name", sorted(set(shipped_recipes()) - {"plamo2-8b-cuda", "plamo2-8b-metal"}))
def test_a_shipped_recipe_asks_enough_prompts_and_blocks_for_advice(name: str) -> None:
    """The study's own recipes ask the study's twelve."""
    recipe = load_recipe(shipped_recipes()[name])
    suite = load_suite(recipe.prompts.suite, recipe_folder=shipped_recipes()[name].parent)
    assert len(suite.select(recipe.prompts.tasks, recipe.prompts.limit)) >= 16
    assert recipe.first_blocks >= 5 or isinstance(recipe.blocks, AutoBlocks)


def test_every_speculation_type_has_a_shipped_recipe() -> None:

    from benchctl.recipes.adapters import adapter_of
    from benchctl.recipes.speculation import SPECULATION_TYPES

    loaded_recipes = [load_recipe(path) for path in shipped_recipes().values()]
    recipes = [recipe for recipe in loaded_recipes if adapter_of(recipe.engine.kind).lists_types]
    used = {kind for recipe in recipes for arm in recipe.arms if arm.speculation for kind in arm.speculation.types}
    assert used == set(SPECULATION_TYPES)
