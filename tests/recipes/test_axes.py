"""Axes of a recipe: combinations as GitHub's matrices make them, groups with a baseline each, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benchctl.recipes.groups import ComparedArm, with_baselines
from benchctl.recipes.schema import Recipe

Load = Callable[[str], Recipe]
Refusal = Callable[[str], str]

HEAD = """\
name: axes
models: {target: {source: "bundled:tiny-hybrid"}}
prompts: {suite: tiny.json}
"""
ARMS = """\
arms:
  - name: baseline
  - name: spec_d{depth}
    speculation: {type: draft-simple, max: "{depth}"}
    matrix: {depth: [2, 4]}
  - name: ngram
    speculation: {type: ngram-simple}
"""
DRAFTS = """\
matrix:
  models.draft:
    small: {source: "bundled:tiny-hybrid-draft"}
    coarse: {source: "bundled:tiny-hybrid-draft", quantize: {type: q8_0}}
    none: null
  cache_type: [f16, q8_0]
"""


def names(recipe: Recipe) -> list[str]:
    return [arm.name for arm in recipe.arms]


def test_every_group_has_its_baseline_and_arms_without_a_draft_are_measured_once_in_it(load: Load) -> None:
    recipe = load(HEAD + DRAFTS + ARMS)
    assert names(recipe)[:6] == [
        "baseline-kv_f16",
        "spec_d2-d_small-kv_f16",
        "spec_d4-d_small-kv_f16",
        "ngram-kv_f16",
        "spec_d2-d_coarse-kv_f16",
        "spec_d4-d_coarse-kv_f16",
    ]
    assert len(recipe.arms) == 12
    assert {arm.group for arm in recipe.arms} == {"kv_f16", "kv_q8_0"}
    assert [setup.name for setup in recipe.setups] == [
        *("d_small-kv_f16", "d_small-kv_q8_0", "d_coarse-kv_f16", "d_coarse-kv_q8_0"),
    ]  # without a draft no arm is left that another setup of the group does not measure
    for arm in recipe.arms:
        assert recipe.compared[arm.name].baseline == f"baseline-{arm.group}"
        assert arm.cache_type is not None
        assert arm.cache_type.target == (arm.group or "").removeprefix("kv_")


def test_a_part_is_a_recipe_of_one_pair_with_the_baseline_of_its_group(load: Load) -> None:
    part = load(HEAD + DRAFTS + ARMS).parts["d_coarse-kv_q8_0"]
    assert names(part) == ["baseline-kv_q8_0", "spec_d2-d_coarse-kv_q8_0", "spec_d4-d_coarse-kv_q8_0"]
    assert part.models.draft is not None
    assert part.models.draft.quantize is not None
    assert part.setups == []
    assert part.baseline == "baseline-kv_q8_0"


def test_planning_derives_what_arms_are_compared_with_once(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = load(HEAD + DRAFTS + ARMS)
    lengths: list[int] = []

    def counted(arms: Sequence[ComparedArm], *others: Any) -> dict[str, ComparedArm]:
        lengths.append(len(arms))
        return with_baselines(arms, *others)

    monkeypatch.setattr("benchctl.recipes.schema.with_baselines", counted)
    assert len(recipe.parts) == 4
    assert lengths == [12]


def test_the_type_of_the_drafts_cache_makes_no_group(load: Load) -> None:
    draft = "matrix: {cache_type: {fine: {target: f16, draft: f16}, coarse: {target: f16, draft: q8_0}}}\n"
    pair = HEAD.replace("}}\n", '}, draft: {source: "bundled:tiny-hybrid-draft"}}\n', 1)
    recipe = load(pair + draft + ARMS)
    assert len({arm.group for arm in recipe.arms}) == 1
    assert sum(arm.speculation is None for arm in recipe.arms) == 1


def test_quantizations_of_the_target_make_groups_and_of_the_draft_none(load: Load) -> None:
    axes = (
        "matrix: {models.target.quantize: [{type: q8_0}, {type: q4_0}], models.draft.quantize: [{type: q8_0}, null]}\n"
    )
    pair = HEAD.replace("}}\n", '}, draft: {source: "bundled:tiny-hybrid-draft"}}\n', 1)
    recipe = load(pair + axes + ARMS)
    assert {arm.group for arm in recipe.arms} == {"t_q8_0", "t_q4_0"}
    assert "spec_d2-t_q4_0-d_as_is" in names(recipe)
    assert recipe.setups[0].axes == {"models.target.quantize": "q8_0", "models.draft.quantize": "q8_0"}


def test_whole_engines_are_an_axis_and_keys_of_one_too(load: Load) -> None:
    engines = "matrix: {engine: [{kind: llama.cpp, device: cpu}, {kind: llama.cpp, device: cpu, threads: 1}]}\n"
    arms = "arms: [{name: baseline}, {name: ngram, speculation: {type: ngram-simple}}]\n"
    assert len({arm.group for arm in load(HEAD + engines + arms).arms}) == 2
    threads = load(HEAD + "matrix: {engine.threads: [1, 2]}\n" + arms)
    assert names(threads) == ["baseline-threads_1", "ngram-threads_1", "baseline-threads_2", "ngram-threads_2"]


@pytest.mark.parametrize(
    ("key", "plain", "prefix"),
    [
        ("context_length", "context_length: [256, 1024]\n", "ctx"),
        ("sampling.max_tokens", "sampling: {max_tokens: [256, 1024]}\n", "n"),
    ],
)
def test_lengths_are_conditions_with_or_without_other_axes(load: Load, key: str, plain: str, prefix: str) -> None:
    arms = "arms: [{name: baseline}, {name: ngram, speculation: {type: ngram-simple}}]\n"
    listed = load(HEAD + plain + arms)
    assert names(listed) == [f"{arm}-{prefix}{length}" for length in (256, 1024) for arm in ("baseline", "ngram")]
    assert listed.setups == []
    same = load(HEAD + f"matrix: {{{key}: [256, 1024]}}\n" + arms)
    assert names(same) == names(listed)
    assert same.setups == []
    assert [getattr(arm, key.rpartition(".")[2]) for arm in same.arms] == [256, 256, 1024, 1024]
    if prefix == "n":
        assert [same.sampling_of(arm).max_tokens for arm in same.arms] == [256, 256, 1024, 1024]
        assert same.sampling.max_tokens == 1024, "what the context must hold"
        assert len({row.baseline for row in same.compared.values()}) == 2, "each length has its own baseline"


def test_exclude_leaves_out_combinations_and_single_arms(load: Load) -> None:
    some = "  exclude:\n    - {models.draft: coarse, cache_type: q8_0}\n    - {cache_type: q8_0, arm: 'spec_d4*'}\n"
    result = names(load(HEAD + DRAFTS + some + ARMS))
    assert "spec_d2-d_coarse-kv_f16" in result
    assert not [name for name in result if name.startswith("spec") and "coarse-kv_q8_0" in name]
    assert [name for name in result if "kv_q8_0" in name] == [
        "baseline-kv_q8_0",
        "spec_d2-d_small-kv_q8_0",
        "ngram-kv_q8_0",
    ]


def test_include_adds_keys_where_it_fits_and_combinations_where_it_does_not(load: Load) -> None:
    include = "  include:\n    - {cache_type: q8_0, engine.threads: 2}\n    - {cache_type: q4_0}\n"
    recipe = load(HEAD + "matrix:\n  cache_type: [f16, q8_0]\n" + include + ARMS.replace("draft-simple", "ngram-mod"))
    by_group = {setup.group: setup for setup in recipe.setups}
    assert set(by_group) == {"kv_f16", "kv_q8_0-threads_2", "kv_q4_0"}
    assert by_group["kv_q8_0-threads_2"].engine.model_dump()["threads"] == 2
    assert by_group["kv_f16"].engine.model_dump()["threads"] is None


def test_labels_leave_out_what_all_values_begin_with(load: Load) -> None:
    sources = "matrix: {models.draft: [{source: a/qwen-0.5b-q4_k_m.gguf}, {source: b/qwen-0.5b-q8_0.gguf}]}\n"
    result = load(HEAD + sources + "arms: [{name: baseline}, {name: s, speculation: {type: draft-simple}}]\n")
    assert [setup.axes["models.draft"] for setup in result.setups] == ["q4_k_m", "q8_0"]


@pytest.mark.parametrize(
    ("matrix", "told"),
    [
        ("{cache_tpye: [f16]}", "matrix.cache_tpye: there is no axis of this name; known: models.target"),
        ("{cache_tpye: [f16]}", "Did you mean 'cache_type'?"),
        ("{temperature: [0, 1]}", "Did you mean 'sampling.temperature'?"),
        ("{cache_type: f16}", "matrix.cache_type: expected a list of values, or a mapping of names to values"),
        ("{cache_type: []}", "got an empty one"),
        ("{cache_type: [f16, f16]}", "matrix.cache_type[1]: 'f16' is here twice."),
        ("{cache_type: [f16, q9]}", "matrix.cache_type[1]: expected a type of llama.cpp's KV cache, got 'q9'."),
        ("{models.draft: [{sorce: x}]}", "matrix.models.draft[0].sorce: unknown key."),
        (
            "{cache_type: [f16, q8_0], exclude: [{cache_type: q4_0}]}",
            "no value of this axis is 'q4_0'; they are called",
        ),
        (
            "{cache_type: [f16, q8_0], exclude: [{engine: x}]}",
            "matrix.exclude[0].engine: there is no axis of this name.",
        ),
        ("{cache_type: [f16], exclude: [{cache_type: f16}]}", "nothing is left to measure"),
        (
            "{cache_type: [f16, q8_0], exclude: [{cache_type: q8_0, arm: baseline}]}",
            "the group kv_q8_0 has no baseline: baseline is excluded there, and ngram-kv_q8_0 is not.",
        ),
        (
            "{engine: [{kind: llama.cpp}], engine.threads: [1]}",
            "engine is an axis already, and its values contain this key.",
        ),
        ("[f16]", "matrix: expected a mapping such as"),
    ],
)
def test_bad_axes_are_named_with_their_place(refusal: Refusal, matrix: str, told: str) -> None:
    arms = "arms: [{name: baseline}, {name: ngram, speculation: {type: ngram-simple}}]\n"
    message = refusal(HEAD + f"matrix: {matrix}\n" + arms)
    assert message.startswith("recipe.yaml:4: ")
    assert told in message


def test_an_arm_that_needs_a_draft_is_refused_where_no_combination_has_one(refusal: Refusal) -> None:
    assert "needs a draft model" in refusal(HEAD + "matrix: {cache_type: [f16, q8_0]}\n" + ARMS)


@pytest.mark.parametrize(
    "args",
    [
        "[-ctk, q4_0]",
        "[--cache-type-k=q4_0]",
        "[--flash-attn, 'off']",
        "[-nkvo]",
        "[-ub, '64']",
        "[--ignore-eos]",
        "[--grammar, 'root ::= [a-z]*']",
        "[-l, 5+10]",
        "[--mirostat, '2']",
    ],
)
def test_an_arms_own_arguments_may_not_change_what_the_target_computes(refusal: Refusal, load: Load, args: str) -> None:
    arms = "arms: [{name: baseline}, {name: ngram, speculation: {type: ngram-simple}, args: %s}]\n"
    message = refusal(HEAD + arms % args)
    assert "arms[1].args" in message
    assert "attributed to speculation" in message
    doubled = arms.replace("{name: baseline}", "{name: baseline, args: %s}")
    assert load(HEAD + doubled % (args, args)).arms[1].args
    assert "the baseline has" in refusal(HEAD + doubled % (args, "[]"))


@pytest.mark.parametrize("option", ["--repeat-penalty", "--temp", "-s", "--presence_penalty"])
def test_an_argument_that_every_request_overrides_is_refused(refusal: Refusal, option: str) -> None:
    message = refusal(HEAD + f"engine: {{args: [{option}, '1.5']}}\narms: [{{name: baseline}}]\n")
    assert "engine.args" in message and f"{option} has no effect" in message
    arms = (
        f"arms: [{{name: baseline}}, {{name: ngram, speculation: {{type: ngram-simple}}, args: [{option}, '1.5']}}]\n"
    )
    assert f"arms[1].args: {option} has no effect" in refusal(HEAD + arms)


def test_arguments_of_speculation_alone_may_differ(load: Load) -> None:
    arms = "arms: [{name: baseline}, {name: ngram, speculation: {type: ngram-simple}, args: [--spec-draft-ngl, '9']}]\n"
    assert load(HEAD + arms).arms[1].args == ["--spec-draft-ngl", "9"]


def test_cache_type_is_refused_where_the_engine_has_none(refusal: Refusal) -> None:
    assert "cache_type" in refusal(HEAD + "engine: {kind: transformers}\ncache_type: q8_0\narms: [{name: baseline}]\n")
    assert "one type" in refusal(
        HEAD + "engine: {kind: vllm}\ncache_type: {target: fp8, draft: auto}\narms: [{name: baseline}]\n"
    )


@pytest.mark.parametrize(
    ("builds", "labels"),
    [
        ("[/opt/b1/bin/server, /opt/b2/bin/server]", ["b1", "b2"]),
        ("[server-old, server-new]", ["old", "new"]),
        ("[server, /opt/b2/server]", ["server", "b2_server"]),
        ("[/opt/b1/bin/server, /home/me/b2/bin/server]", ["b1", "b2"]),
    ],
)
def test_builds_are_listed_where_a_build_is_named(load: Load, builds: str, labels: list[str]) -> None:
    arms = "arms: [{name: baseline}, {name: ngram, speculation: {type: ngram-simple}}]\n"
    engine = f"engine: {{kind: llama.cpp, device: cpu, binary: {builds}}}\n"
    recipe = load(HEAD + engine + arms)
    assert [setup.axes for setup in recipe.setups] == [{"engine.binary": label} for label in labels]
    assert {arm.group for arm in recipe.arms} == set(labels)
    assert recipe.compared[f"ngram-{labels[1]}"].baseline == f"baseline-{labels[1]}"
    axes = "engine: {kind: llama.cpp, device: cpu}\n" + f"matrix: {{engine.binary: {builds}}}\n"
    assert names(load(HEAD + axes + arms)) == names(recipe)
