"""What an arm is compared with: made of a recipe and of a manifest, over axes, conditions, endpoints, second cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.data.store import read_manifest
from benchctl.measurement.plan import with_second_baseline
from benchctl.recipes.groups import ComparedArm, GroupKey, ModelName, by_label
from benchctl.recipes.load import stored_recipe
from benchctl.recipes.schema import Recipe
from tests.analysis.conftest import build_manifest
from tests.kept_runs import RUNS

Load = Callable[[str], Recipe]

HEAD = 'name: groups\nprompts: {suite: tiny.json}\nmodels: {target: {source: "bundled:tiny-hybrid"}}\n'
ARMS = """\
arms:
  - name: baseline
  - {name: drafted, speculation: {type: draft-simple, max: 4}}
  - {name: ngram, speculation: {type: ngram-mod}}
"""
AXES = """\
matrix:
  models.target: {small: {source: "bundled:tiny-hybrid"}, plain: {source: "bundled:tiny-transformer"}}
  models.draft:
    fine: {source: "bundled:tiny-hybrid-draft"}
    coarse: {source: "bundled:tiny-hybrid-draft", quantize: {type: q8_0}}
  cache_type: [f16, q8_0]
concurrency: [1, 2]
sampling: {temperature: [0, 0.8], top_k: 0}
"""


def test_over_axes_and_conditions_every_arm_has_its_own(load: Load) -> None:
    recipe = load(HEAD + AXES + ARMS)
    compared = recipe.compared
    assert list(compared) == [arm.name for arm in recipe.arms]
    assert len(compared) == (1 + 2 + 1) * 2 * 2 * 2 * 2, "n-grams and baselines are measured once, whatever drafts"
    sources = {"small": "bundled:tiny-hybrid", "plain": "bundled:tiny-transformer"}
    for name, arm in compared.items():
        recipe_arm, concurrency, heat, *labels = name.split("-")
        target, cache = labels[0].removeprefix("t_"), labels[-1].removeprefix("kv_")
        group = f"{labels[0]}-{labels[-1]}"
        assert arm.group == GroupKey(group, None, int(concurrency[1:]), None, float(heat[1:])), name
        assert (arm.of, arm.baseline) == (recipe_arm, f"baseline-{concurrency}-{heat}-{group}"), name
        assert arm.target is not None
        assert (arm.target.source, arm.target_cache, arm.engine) == (sources[target], cache, "llama.cpp")
        quantized = ('{"type":"q8_0","tensors":{},"allow_requantize":false}',)
        draft = ModelName("bundled:tiny-hybrid-draft", quantized if "d_coarse" in name else ())
        assert arm.draft == (draft if recipe_arm == "drafted" else None), name
        assert (arm.is_baseline, arm.again) == (recipe_arm == "baseline", None)


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.parent.name)
def test_a_kept_run_says_the_same_as_the_recipe_in_it(folder: Path) -> None:
    manifest = read_manifest(folder)
    recipe = stored_recipe(manifest.recipe)

    def bare(arm: ComparedArm) -> ComparedArm:
        target, draft = (model and replace(model, identity=()) for model in (arm.target, arm.draft))
        return replace(arm, target=target, draft=draft)

    from_recipe, from_manifest = recipe.compared, manifest.compared()
    assert {name: bare(arm) for name, arm in from_manifest.items()} == {
        name: bare(arm) for name, arm in from_recipe.items()
    }
    assert {arm.name for arm in from_manifest.values() if arm.is_baseline} == {
        arm.name for arm in manifest.arms if arm.baseline
    }
    for identity in from_manifest.values():
        for second in from_manifest.values():
            assert (identity.baseline == second.baseline) == (identity.group == second.group)


def test_two_urls_share_a_baseline_and_keep_their_addresses(load: Load) -> None:
    recipe = load(
        "name: two\nprompts: {suite: tiny.json}\nengine: {kind: openai, url: 'http://127.0.0.1:1/v1'}\n"
        "arms: [{name: baseline}, {name: served, url: 'http://127.0.0.1:2/v1', speculation: {type: draft-mtp}}]\n"
    )
    compared = recipe.compared
    assert [(arm.url, arm.baseline) for arm in compared.values()] == [
        ("http://127.0.0.1:1/v1", "baseline"),
        ("http://127.0.0.1:2/v1", "baseline"),
    ]


def test_a_second_cell_is_its_baselines_alone(load: Load) -> None:
    many = "".join(f"  - {{name: n{depth}, speculation: {{type: ngram-mod, max: {depth}}}}}\n" for depth in range(1, 7))
    compared = with_second_baseline(load(HEAD + "arms:\n  - name: baseline\n" + many)).compared
    assert {(arm.baseline, arm.again) for arm in compared.values()} == {("baseline", "baseline-again")}
    assert [name for name, arm in compared.items() if arm.is_again] == ["baseline-again"]
    assert [name for name, arm in compared.items() if arm.is_baseline] == ["baseline"]
    speculation: dict[str, Any] = {"type": "ngram-mod"}
    manifest = build_manifest({"baseline": None, "n1": speculation, "baseline-again": None}, 1, 1)
    manifest.arms[2].again = True
    assert {arm.again for arm in manifest.compared().values()} == {"baseline-again"}
    against = manifest.compared("n1")
    assert {(arm.baseline, arm.again) for arm in against.values()} == {("n1", None)}, "it is no second cell of n1"


def test_a_studys_files_are_of_one_group() -> None:
    result = by_label(["baseline", "spec"], "baseline")
    assert result["spec"] == ComparedArm("spec", "spec", baseline="baseline")
    assert result["baseline"].is_baseline
