"""A recipe made of options is a recipe like any: it loads, says what was asked, and means the same wherever it lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchctl.errors import UsageError
from benchctl.recipes.from_options import (
    RecipeOptions,
    name_of,
    parse_settings,
    parse_sweep,
    recipe_from_options,
    recipe_of_urls,
)
from benchctl.recipes.load import recipe_of_options
from benchctl.recipes.schema import Recipe


def loaded(folder: Path, draft: str | None = "d.gguf", target: str = "t.gguf", **options: Any) -> Recipe:
    return recipe_of_options(recipe_from_options(RecipeOptions(**options), target, draft, folder))


def test_a_pair_alone_is_measured_at_the_usual_depths(tmp_path: Path) -> None:
    recipe = loaded(tmp_path)
    assert [arm.name for arm in recipe.arms] == ["baseline", *(f"draft_simple_d{k}" for k in (2, 4, 8))]
    assert (recipe.name, recipe.prompts.suite, recipe.prompts.limit) == ("t--d", "default", 3)


def test_a_target_alone_is_measured_with_what_needs_no_draft(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, draft=None)
    assert [arm.name for arm in recipe.arms] == ["baseline", "ngram_mod"]
    assert recipe.models.draft is None


def test_every_type_takes_the_keys_that_mean_something_for_it(tmp_path: Path) -> None:
    sweep = ["depth=2,16", "p_min=0.5,0.9", "size_n=3"]
    recipe = loaded(tmp_path, types=["draft-simple", "ngram-simple"], sweep=sweep)
    speculations = [arm.speculation.model_dump(exclude_none=True) for arm in recipe.arms if arm.speculation]
    assert speculations[:4] == [
        {"type": "draft-simple", "max": depth, "p_min": p_min} for depth in (2, 16) for p_min in (0.5, 0.9)
    ]
    assert speculations[4:] == [{"type": "ngram-simple", "size_n": 3}]


def test_files_are_meant_wherever_the_recipe_lies(tmp_path: Path) -> None:
    (tmp_path / "t.gguf").touch()
    (tmp_path / "mine.txt").write_text("hello")
    recipe = loaded(tmp_path, prompts="mine.txt", limit=3)
    assert recipe.models.target.source == str(tmp_path / "t.gguf")
    assert (recipe.prompts.suite, recipe.prompts.limit) == (str(tmp_path / "mine.txt"), 3)
    assert loaded(tmp_path, prompts="mine.txt").prompts.limit is None, "one's own prompts are asked, all of them"


def test_settings_are_part_of_what_is_written(tmp_path: Path) -> None:
    settings = ["sampling.max_tokens=64", "blocks=auto", "engine.args=[-fa, 'on']"]
    recipe = loaded(tmp_path, settings=settings)
    assert recipe.sampling.max_tokens == 64
    assert recipe.engine.model_dump()["args"] == ["-fa", "on"]
    assert not isinstance(recipe.blocks, int)


def test_a_typed_value_is_read_as_in_a_file() -> None:
    typed = parse_settings(["preflight=off", "a=1e3", "b=12:30", "c=2020-01-01", "d={e: on}", "f="])
    assert typed == {"preflight": "off", "a": 1000.0, "b": "12:30", "c": "2020-01-01", "d": {"e": "on"}, "f": None}
    assert parse_sweep(["depth=2, 4", "p_min=0.5", "type=ngram-mod"]) == {
        "depth": [2, 4], "p_min": [0.5], "type": ["ngram-mod"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "draft", "name"),
    [
        ("models/Qwen 7B.gguf", None, "Qwen-7B"),
        ("hf:Qwen/Qwen2.5-1.5B/q4.gguf", "bundled:tiny", "q4--tiny"),
        ("/a/b/", "c" * 80, "b--" + "c" * 61),
        ("\u65e5\u672c.gguf", None, "unnamed"),
    ],
)
def test_the_name_is_made_of_the_models(target: str, draft: str | None, name: str) -> None:
    assert name_of(target, draft) == name


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"engine": "lama.cpp"}, "llama.cpp"),
        ({"types": ["draft-simple"], "draft": None}, "draft-simple needs a draft model"),
        ({"settings": ["name.inner=1"]}, "name: expected text, got a mapping"),
        ({"settings": ["sampling.max_tokens=many"]}, "sampling.max_tokens"),
        ({"settings": ["blocs=3"]}, "blocs"),
        ({"depth": "deep"}, "expected an integer"),
    ],
)
def test_what_cannot_be_a_recipe_is_one_message(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        loaded(tmp_path, **options)
    assert said in str(refused.value)


@pytest.mark.parametrize("word", ["depth", "=2", "depth=", "depth=,"])
def test_a_sweep_without_values_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="Expected KEY=V1,V2"):
        parse_sweep([word])


@pytest.mark.parametrize("word", ["a", "=1", "a..b=1", "a b=1", "a=[", "a=!!python/object:os.system x"])
def test_a_setting_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(UsageError, match="--set"):
        parse_settings([word])


def test_two_servers_are_a_recipe() -> None:
    options = RecipeOptions(types=["draft-mtp"], depth="3", settings=["sampling.max_tokens=9"])
    recipe = recipe_of_options(recipe_of_urls(options, "http://127.0.0.1:1/v1", "http://[::1]:2/v1", Path.cwd()))
    baseline, arm = recipe.arms
    assert baseline.speculation is None and baseline.url is None and recipe.sampling.max_tokens == 9
    assert arm.url == "http://[::1]:2/v1" and arm.speculation is not None
    assert (arm.speculation.types, arm.speculation.max) == (("draft-mtp",), 3)
