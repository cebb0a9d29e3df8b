"""benchctl's words in vLLM's keys, and what this vLLM cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from benchctl.engines.common.python_environment import named_types
from benchctl.engines.vllm.command import (
    BY_BATCH_SIZE,
    METHODS,
    Package,
    hybrid_warnings,
    method_of,
    requested_method,
    speculation_problems,
    speculative_config,
    with_schedule,
    worth_trying,
)
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.adapters import SYNTHETIC, lossy_settings
from benchctl.recipes.speculation import Speculation

Make = Callable[..., Any]


def config(draft: ResolvedModel | None = None, **keys: Any) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(speculative_config(Speculation.model_validate(keys), draft))
    return value


def problems(package: Package, target: ResolvedModel, draft: ResolvedModel | None = None, **keys: Any) -> list[str]:
    return speculation_problems(Speculation.model_validate(keys), package, ResolvedPair(target, draft))


def test_the_method_is_always_named(folder: Make) -> None:
    draft = folder("eagle3-like-name")
    assert config(draft, type="draft-simple", max=4) == {
        "method": "draft_model",
        "model": str(draft.path),
        "num_speculative_tokens": 4,
    }


def test_a_key_of_one_length_is_both_the_longest_and_the_shortest() -> None:
    result = config(type="ngram-simple", max=4, size_n=2)
    assert result == {
        "method": "ngram",
        "num_speculative_tokens": 4,
        "prompt_lookup_max": 2,
        "prompt_lookup_min": 2,
    }


def test_an_ngram_gets_no_draft_model(folder: Make) -> None:
    assert "model" not in config(folder("draft"), type="ngram-simple", size_m=6)
    assert config(type="ngram-simple", size_m=6)["num_speculative_tokens"] == 6


def test_the_suffix_tree_does_not_remember_unless_requested() -> None:
    assert config(type="suffix")["suffix_decoding_max_cached_requests"] == 0
    value = config(type="suffix", options={"suffix_decoding_max_cached_requests": 100})
    assert value["suffix_decoding_max_cached_requests"] == 100


def test_the_packages_methods_have_benchctls_names() -> None:
    assert named_types(METHODS, ("ngram", "suffix", "draft_model")) == ("draft-simple", "ngram-simple", "suffix")
    assert (method_of("draft-mtp"), method_of("suffix")) == ("mtp", "suffix")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "ngram-map-k"}, "vLLM has nothing like `ngram-map-k`"),
        ({"type": "sufix"}, "Did you mean 'suffix'?"),
        ({"type": "ngrm"}, "Did you mean 'ngram'? Here it has draft-simple, draft-eagle3, draft-mtp, ngram-simple, "),
        ({"type": "deepseek_mtp"}, "no method `deepseek_mtp`"),
        ({"type": "ngram_gpu", "max": 4}, "ngram_gpu does not run here"),
        ({"type": "mlp_speculator"}, "mlp_speculator does not run here"),
        ({"type": "suffix"}, "arctic-inference"),
        ({"type": "draft-dspark", "max": 4}, "dspark does not run here"),
        ({"type": "draft-mtp", "max": 1}, "no multi-token head"),
        ({"type": "ngram-simple"}, "give `max`"),
        ({"type": "ngram-simple", "max": 4, "min": 2}, "written in options"),
        ({"type": "draft-simple", "max": 4}, "needs a draft model"),
        ({"type": "medusa", "max": 4}, "needs a draft model"),
        ({"type": "ngram-simple", "max": 4, "p_min": 0.5}, "`p_min` has no effect"),
        ({"type": "ngram-simple", "max": 4, "options": {"promt_lookup_max": 3}}, "Did you mean 'prompt_lookup_max'?"),
        ({"type": "ngram-simple", "max": 4, "options": {"num_speculative_tokens": 3}}, "use instead `max`"),
        ({"type": "ngram-simple", "max": 4, "size_n": 2, "options": {"prompt_lookup_min": 1}}, "`size_n` sets it"),
        ({"type": ["ngram-simple", "suffix"]}, "one method at a time"),
    ],
)
def test_what_this_vllm_cannot_do(package: Make, folder: Make, keys: dict[str, Any], message: str) -> None:
    (problem,) = problems(package(), folder("target"), **keys)
    assert message in problem


def test_what_it_can_do_is_not_refused(package: Make, folder: Make) -> None:
    target = folder("target")
    assert problems(package(), target, type="ngram-simple", max=4, size_n=2) == []
    assert problems(package(), target, folder("draft"), type="draft-simple", max=4) == []
    assert problems(package(arctic_inference=True), target, type="suffix") == []
    assert problems(package(platform="cuda"), target, type="ngram_gpu", max=4) == []
    assert problems(package(), target, type="custom_class", max=4, options={"model": "oracle.Drafter"}) == []


def test_a_draft_of_another_vocabulary(package: Make, folder: Make) -> None:
    target, draft = folder("target"), folder("draft", words=9)
    (problem,) = problems(package(), target, draft, type="draft-simple", max=4)
    assert "vocabulary" in problem
    mixed = {"use_heterogeneous_vocab": True}
    assert problems(package(), target, draft, type="draft-simple", max=4, options=mixed) == []


def test_a_multi_token_head_is_in_the_target_or_named(package: Make, folder: Make) -> None:
    target = folder("target", num_nextn_predict_layers=1)
    assert problems(package(), target, type="draft-mtp", max=1) == []
    assert problems(package(), folder("by_its_weights", layers=("self_attn", "mtp")), type="draft-mtp", max=1) == []
    assert problems(package(), folder("plain"), folder("head"), type="draft-mtp", max=1) == []


def test_a_hybrid_cannot_draft(package: Make, folder: Make) -> None:
    draft = folder("draft", layers=("mamba", "self_attn"))
    (problem,) = problems(package(), folder("target"), draft, type="draft-simple", max=4)
    assert "recurrent state" in problem


def test_a_hybrid_target_on_a_cpu_is_warned_of(package: Make, folder: Make) -> None:
    hybrid = folder("target", layers=("mamba", "self_attn"))
    (warning,) = hybrid_warnings(package(), hybrid)
    assert "vllm-hybrids" in warning
    assert hybrid_warnings(package(), folder("plain")) == []
    assert hybrid_warnings(package(platform="cuda"), hybrid) == []


def test_synthetic_acceptance_is_lossy_by_design() -> None:
    keys = {"type": "ngram-simple", "max": 4, "options": {"rejection_sample_method": "synthetic"}}
    value = speculative_config(Speculation.model_validate(keys), None)
    assert lossy_settings("vllm", ["vllm", "serve", "m", "--speculative-config", value], {}) == [SYNTHETIC]


def test_the_requested_method_is_read_from_the_command_line() -> None:
    value = speculative_config(Speculation(type="ngram-simple", max=4), None)
    assert requested_method(["vllm", "serve", "m", "--speculative-config", value]) == "ngram"
    assert requested_method(["vllm", "serve", "m"]) is None


def test_depths_by_load_are_vllms_own_ranges(package: Make) -> None:
    setting = Speculation(type="ngram-simple", size_n=3)
    steps = [(1, 4, 8), (5, 8, 0)]
    with_key = package(keys=(*package().keys, BY_BATCH_SIZE))
    scheduled = with_schedule(setting, steps, with_key)
    assert scheduled is not None
    config = json.loads(speculative_config(scheduled, None))
    assert (config["num_speculative_tokens"], config[BY_BATCH_SIZE]) == (8, [[1, 4, 8], [5, 8, 0]])
    without = package(keys=tuple(key for key in package().keys if key != BY_BATCH_SIZE))
    assert with_schedule(setting, steps, without) is None


def test_what_is_worth_trying_is_what_this_vllm_can_do(package: Make, folder: Make) -> None:
    target, draft = folder("target"), folder("draft")
    able = package()
    without_draft, with_draft = (worth_trying(able, ResolvedPair(target, model)) for model in (None, draft))
    types = {setting.type for setting in without_draft}
    assert "ngram-simple" in types and "draft-simple" not in types
    assert {side.max for side in with_draft if side.type == "draft-simple"} >= {2, 4, 8}
    for setting in with_draft:
        assert speculation_problems(setting, able, ResolvedPair(target, draft)) == []
    head = folder("head", architectures=["Eagle3LlamaForCausalLM"])
    assert {side.type for side in worth_trying(able, ResolvedPair(target, head))} == types | {"draft-eagle3"}


def test_adaptive_verification_is_refused_where_it_would_do_nothing(package: Make, folder: Make) -> None:
    able = package(keys=(*package().keys, "enable_adaptive_verification"))
    options = {"enable_adaptive_verification": True}
    (problem,) = problems(able, folder("target"), type="ngram-simple", max=4, options=options)
    assert "second model runner" in problem
    gpu = replace(able, platform="cuda")
    assert problems(gpu, folder("other"), type="ngram-simple", max=4, options=options) == []
