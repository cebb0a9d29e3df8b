"""What is searched: the recipe's own arms, then what the engine names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchctl.analysis.round_results import UnitCost
from benchctl.analysis.verify_widths import edges
from benchctl.engines.base import Launch
from benchctl.errors import UsageError
from benchctl.experiments.tune import session
from benchctl.experiments.tune.session import all_candidates, at_depths
from benchctl.measurement.prepare import Prepared, PreparedSetup, RecipeContext
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm, Recipe, Setup
from benchctl.recipes.speculation import Speculation
from tests.measurement.toy_engine import ToyEngine


class Searchable(ToyEngine):
    """Names two settings; one of them is lossy by its option."""

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        return [
            Speculation(type="draft-simple", max=4),
            Speculation(type="ngram-simple", size_n=6, size_m=12),
            Speculation(type="ngram-mod"),
        ]

    def launch(self, arm: Arm, models: ResolvedPair) -> Launch:
        lossy = ("--spec-synth-len", "3") if arm.name == "ngram_mod" else ()
        return Launch(argv=("toy", arm.name, *lossy), env={})


def prepared(recipe: Recipe, engine: ToyEngine) -> Prepared:
    suite: Any = None
    models = ResolvedPair(ResolvedModel("t.gguf", ()), ResolvedModel("d.gguf", ()))
    setups: dict[str | None, PreparedSetup] = {None: PreparedSetup(recipe, engine, engine.probe(), models)}
    return Prepared(recipe, Path(), suite, (), {}, [], setups)


def test_own_arms_come_first_and_nothing_comes_twice_or_lossy(recipe: Recipe) -> None:
    result = all_candidates(prepared(recipe, Searchable()), only_arms=False)
    assert [arm.name for arm in result.recipe.arms] == ["baseline", "spec", "ngram_simple_n6_m12"]
    assert set(result.launches) == {"baseline", "spec", "ngram_simple_n6_m12"}
    recipe_only = all_candidates(prepared(recipe, Searchable()), only_arms=True)
    assert [arm.name for arm in recipe_only.recipe.arms] == ["baseline", "spec"]


def test_what_cannot_be_searched_is_one_message(recipe: Recipe) -> None:
    with pytest.raises(UsageError, match="no list of settings"):
        all_candidates(prepared(recipe, ToyEngine()), only_arms=False)
    assert all_candidates(prepared(recipe, ToyEngine()), only_arms=True).recipe.arms[1].name == "spec"
    baseline_only = recipe.model_copy(update={"arms": recipe.arms[:1]})
    with pytest.raises(UsageError, match="nothing to search"):
        all_candidates(prepared(baseline_only, ToyEngine()), only_arms=True)
    for crowded in ({"concurrency": 4}, {"rate": 2.0}):
        arms = [recipe.arms[0], recipe.arms[1].model_copy(update=crowded)]
        with pytest.raises(UsageError, match="under one condition"):
            all_candidates(prepared(recipe.model_copy(update={"arms": arms}), Searchable()), only_arms=False)


def test_a_search_may_have_several_requests_in_flight(recipe: Recipe) -> None:
    crowded = recipe.model_copy(update={"arms": [arm.model_copy(update={"concurrency": 4}) for arm in recipe.arms]})
    arms = all_candidates(prepared(crowded, Searchable()), only_arms=False).recipe.arms
    assert [(arm.name, arm.concurrency) for arm in arms] == [
        ("baseline", 4), ("spec", 4), ("ngram_simple_n6_m12", 4),
    ]  # fmt: skip


class Heads(ToyEngine):
    """Knows of each draft which type it is made for, as an engine reads it in the draft's file."""

    def search_space(self, models: ResolvedPair) -> Sequence[Speculation]:
        assert models.draft is not None
        return [Speculation(type=models.draft.source, max=4), Speculation(type="ngram-mod")]


def test_of_several_drafts_each_is_tried_with_the_type_that_it_is_made_for(recipe: Recipe) -> None:
    types = ("draft-simple", "draft-eagle3")
    setups: dict[str | None, PreparedSetup] = {}
    arms = [recipe.arms[0].model_copy(update={"setup": "draft-simple", "group": "all"})]
    for draft in types:
        models = ResolvedPair(ResolvedModel("t.gguf", ()), ResolvedModel(draft, ()))
        setups[draft] = PreparedSetup(recipe, Heads(), Heads().probe(), models)
        arms += [
            Arm(name=f"{kind}_d2-{draft}", speculation=Speculation(type=kind, max=2), setup=draft, group="all")
            for kind in types
        ]
    spec = [Setup(name=draft, group="all", axes={}, engine=recipe.engine, models=recipe.models) for draft in types]
    raced = recipe.model_copy(update={"arms": arms, "setups": spec})
    made = all_candidates(replace(prepared(raced, Heads()), setups=setups), only_arms=True)
    assert [arm.name for arm in made.recipe.arms[1:]] == [f"{kind}_d2-{kind}" for kind in types]
    assert "draft-simple_d2-draft-eagle3" in made.warnings[-1]


def test_what_was_chosen_is_prepared_as_the_search_was(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the engine and the models' folder of the command line: they once served the search alone."""
    monkeypatch.setattr(session, "_fresh_run_of", lambda *_: None)
    monkeypatch.setattr(session, "_chosen_recipe", lambda _: recipe)
    monkeypatch.setattr(
        session, "context_of_run", lambda _: RecipeContext(Recipe.model_construct(), Path("there"), True)
    )
    monkeypatch.setattr(session, "start_run", lambda prepared, *_, **__: prepared)
    monkeypatch.setattr(session, "open_run", lambda prepared: prepared)
    search_run: Any = SimpleNamespace(folder=Path("results/toy-search/run"))
    toy, progress = prepared(recipe, Searchable()), SimpleNamespace(note=lambda _: None)
    contexts: list[RecipeContext] = []

    def ready(context: RecipeContext) -> Prepared:
        contexts.append(context)
        return toy

    assert session.measure_chosen(search_run, ready, ready, progress, []) is toy  # type: ignore[arg-type, comparison-overlap]
    assert contexts == [RecipeContext(recipe, Path("there"), True)]


def test_depths_behind_a_fall_and_at_the_end_of_a_level_are_searched_too(recipe: Recipe) -> None:
    """The best depth of a target on an H100 was 16, at 4.17 times: 17 tokens run another kernel than 16."""
    steps = json.loads((Path(__file__).parents[2] / "analysis/h100-widths.json").read_text())
    curve = [
        UnitCost(arm="b", what="verify", width=width, seconds=cost, steps=cost, count=5, source="traced")
        for width, cost in enumerate(steps, 1)
    ]
    depths = [edge.depth for edge in edges(curve)]
    assert depths == [15, 16]
    settings = [{"type": "draft-simple", "max": 4}, {"type": "ngram-mod"}, {"type": "draft-simple", "max": 16}]
    named = [Arm(name=f"a{number}", speculation=setting) for number, setting in enumerate(settings)]  # type: ignore[arg-type]
    extended = at_depths([recipe.arms[0], *named], depths)
    assert [arm.name for arm in extended] == ["baseline", "a0", "draft_simple_d15", "a1", "a2"], (
        "16 is searched already"
    )
