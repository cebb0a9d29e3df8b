"""Concurrency, rate and temperature: what a file's arms become, and what its writer reads when they make no sense."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchctl.recipes.groups import GroupKey
from benchctl.recipes.schema import Arm, Recipe

Load = Callable[[str], Recipe]
Refusal = Callable[[str], str]

HEAD = """\
name: demo
models:
  target: {source: bundled:tiny-hybrid}
  draft: {source: bundled:tiny-hybrid-draft}
prompts: {suite: tiny.json}
"""
ARMS = """\
arms:
  - name: baseline
  - name: spec_d{depth}
    speculation: {type: draft-simple, max: "{depth}"}
    matrix: {depth: [2, 4]}
"""


def test_every_arm_of_the_file_stands_under_every_condition(load: Load) -> None:
    recipe = load(f"{HEAD}concurrency: [1, 8]\nsampling: {{temperature: [0, 0.8], top_k: 0}}\n{ARMS}")
    conditions = [(1, 0.0), (1, 0.8), (8, 0.0), (8, 0.8)]
    assert [(arm.name, arm.of, arm.concurrency, arm.temperature) for arm in recipe.arms] == [
        (f"{recipe_arm}-c{count}-t{heat:g}", recipe_arm, count, heat)
        for count, heat in conditions
        for recipe_arm in ("baseline", "spec_d2", "spec_d4")
    ]
    assert recipe.baseline == "baseline-c1-t0"
    assert recipe.sampling.temperature == 0
    assert [recipe.sampling_of(recipe.arm(name)).temperature for name in ("spec_d2-c8-t0.8", "spec_d2-c8-t0")] == [
        0.8,
        0,
    ]
    assert recipe.compared["spec_d4-c8-t0.8"].baseline == "baseline-c8-t0.8"
    assert recipe.compared["baseline-c8-t0"].baseline == "baseline-c8-t0"


def test_the_manifest_brings_the_expanded_recipe_back(load: Load) -> None:
    recipe = load(f"{HEAD}rate: [2, 0.5]\nconcurrency: 4\n{ARMS}")
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe
    assert [arm.name for arm in recipe.arms[:3]] == ["baseline-r2", "spec_d2-r2", "spec_d4-r2"]
    assert {(arm.concurrency, arm.rate) for arm in recipe.arms} == {(4, 2.0), (4, 0.5)}


@pytest.mark.parametrize("once", ["4", "[4]"])
def test_one_value_leaves_the_names_alone(once: str, load: Load) -> None:
    recipe = load(f"{HEAD}concurrency: {once}\nrate: 3\nsampling: {{temperature: [0]}}\n{ARMS}")
    assert recipe.arms[1] == Arm(
        name="spec_d2", speculation=recipe.arms[1].speculation, concurrency=4, rate=3.0, of=None, temperature=None
    )
    assert recipe.compared[recipe.arms[1].name].baseline == recipe.arms[0].name


def test_without_conditions_a_request_is_alone(load: Load) -> None:
    recipe = load(HEAD + "rate: null\n" + ARMS)
    assert {recipe.group_of(arm) for arm in recipe.arms} == {GroupKey()}
    assert not any(arm.overlapping for arm in recipe.arms)
    assert Arm(name="a", rate=1.0).overlapping
    assert Arm(name="a", concurrency=2).overlapping


WRONG = {
    "nothing": ("concurrency: []", "recipe.yaml:6: concurrency: expected a list of values"),
    "zero": ("concurrency: [1, 0]", "recipe.yaml:6: concurrency[1]: expected at least 1, got 0."),
    "too many": ("concurrency: 2000", "recipe.yaml:6: concurrency: expected at most 1024, got 2000."),
    "a fraction": ("concurrency: 1.5", "recipe.yaml:6: concurrency: expected an integer, got 1.5."),
    "a float": ("concurrency: [1e1]", "recipe.yaml:6: concurrency[0]: expected an integer, got 1e1. Write 10."),
    "text": ("rate: ['2']", "recipe.yaml:6: rate[0]: expected a number, got '2'."),
    "true": ("concurrency: true", "recipe.yaml:6: concurrency: expected an integer, got true."),
    "null in a list": ("rate: [1, null]", "recipe.yaml:6: rate[1]: expected a number, got nothing."),
    "infinite": ("rate: .inf", "recipe.yaml:6: rate: expected a finite number, got inf."),
    "no rate": ("rate: 0", "recipe.yaml:6: rate: expected more than 0, got 0."),
    "twice": ("rate: [1, 2, 1.0]", "recipe.yaml:6: rate[2]: 1.0 is here twice."),
    "a mapping": ("concurrency: {from: 1}", "recipe.yaml:6: concurrency: expected an integer, got a mapping."),
    "a hot list": ("sampling: {temperature: [0, 11]}", "sampling.temperature[1]: expected at most 10, got 11."),
    "a hot value": ("sampling: {temperature: 11}", "recipe.yaml:6: sampling.temperature: expected at most 10, got 11."),
    "greedy all the same": (
        "sampling: {temperature: [0, 0.8]}",
        "recipe.yaml:6: sampling.temperature[1]: top_k is 1, so that the answers at 0.8 would be those at 0. Write",
    ),
    "prompt by prompt": (
        "concurrency: [1, 2]\nschedule: interleaved",
        "recipe.yaml:7: schedule: interleaved has one request in flight at a time, and 'concurrency' needs more. "
        "Write `schedule: blocks`.",
    ),
    "prompt by prompt at a rate": ("rate: 3\nschedule: interleaved", "and 'rate' needs more."),
    "too many arms": (
        f"concurrency: {list(range(1, 101))}",
        "recipe.yaml:6: concurrency: 100 conditions make 300 arms or more; at most 200 are allowed.",
    ),
    "misspelled": ("concurency: 4", "recipe.yaml:6: concurency: unknown key. Did you mean 'concurrency'?"),
    "a baseline by its full name": (
        "concurrency: [1, 2]\nbaseline: baseline-c1",
        "recipe.yaml:7: baseline: no arm is called 'baseline-c1', and every arm is compared with it. Did you mean",
    ),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_condition_is_named_once_with_line_and_key(refusal: Refusal, text: str, message: str) -> None:
    problem = refusal(f"{HEAD}{text}\n{ARMS}")
    assert message in problem
    assert problem.count("\n") == 0


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("of: baseline", "recipe.yaml:8: arms[0].of: unknown key"),
        ("max_tokens: 9", "it is set once for all arms, as `sampling.max_tokens`."),
        ("rate: 2", "recipe.yaml:8: arms[0].rate: unknown key of an arm; it is set once for all arms, as `rate`."),
        ("temperature: 1", "arms[0].temperature: unknown key of an arm; it is set once for all arms, as `sampling.t"),
    ],
)
def test_an_arm_of_a_file_has_no_condition_of_its_own(refusal: Refusal, key: str, message: str) -> None:
    problem = refusal(f"{HEAD}arms:\n  - name: baseline\n    {key}\n")
    assert message in problem
    assert problem.count("\n") == 0


def test_a_problem_of_an_arm_is_told_once_however_many_conditions_there_are(refusal: Refusal) -> None:
    message = refusal(f"{HEAD}concurrency: [1, 2, 4]\narms:\n  - name: baseline\n  - name: Baseline\n")
    assert message == "recipe.yaml:9: arms[1].name: the name 'Baseline' is taken by an earlier arm; give each its own."


def test_a_name_must_have_room_for_its_condition(refusal: Refusal) -> None:
    condition = "{many_requests_in_flight_at_the_same_time: 16, few_requests_in_flight: 20}"
    axes = f"matrix: {{concurrency: {condition}, context_length: {condition}, rate: {condition}}}\n"
    assert "longer than 160" in refusal(f"{HEAD}{axes}arms:\n  - name: baseline\n  - name: {'x' * 61}\n")


@pytest.mark.parametrize(
    ("listed", "axes"),
    [
        ("concurrency: [1, 8]", "matrix: {concurrency: [1, 8]}"),
        (
            "sampling: {temperature: [0, 0.8], top_k: 0}",
            "sampling: {top_k: 0}\nmatrix: {sampling.temperature: [0, 0.8]}",
        ),
        (
            "rate: [2, 0.5]\nmatrix: {cache_type: [f16, q8_0]}",
            "matrix: {rate: [2, 0.5], cache_type: [f16, q8_0]}",
        ),
    ],
)
def test_a_list_in_its_own_place_is_read_as_an_axis(listed: str, axes: str, load: Load) -> None:
    assert load(f"{HEAD}{listed}\n{ARMS}") == load(f"{HEAD}{axes}\n{ARMS}")


def test_conditions_have_names_and_are_excluded_as_any_axis(load: Load) -> None:
    axes = "matrix:\n  concurrency: {few: 1, many: 8}\n  exclude: [{concurrency: many, arm: spec_d4}]\n"
    recipe = load(f"{HEAD}{axes}{ARMS}")
    assert [arm.name for arm in recipe.arms[3:]] == ["baseline-cmany", "spec_d2-cmany"]
    assert recipe.setups == []


def test_the_matrix_of_an_arm_takes_names_and_exclude_too(load: Load) -> None:
    arms = """\
arms:
  - name: baseline
  - name: spec_{depth}_{p}
    speculation: {type: draft-simple, max: "{depth}", p_min: "{p}"}
    matrix: {depth: {short: 2, long: 8}, p: [0.0, 0.5], exclude: [{depth: long, p: 0.5}]}
"""
    depths = {arm.name: arm.speculation.max for arm in load(HEAD + arms).arms if arm.speculation}
    assert depths == {"spec_short_0.0": 2, "spec_short_0.5": 2, "spec_long_0.0": 8}
