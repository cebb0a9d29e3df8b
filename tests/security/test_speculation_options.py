"""The options of a recipe's speculation are held against the same list as its arguments, for every engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchctl.engines.llama_cpp.adapter import LlamaCppSpec
from benchctl.engines.sglang.adapter import OPTIONS as SGLANG
from benchctl.engines.sglang.adapter import SglangSpec
from benchctl.engines.transformers.methods import METHODS, Method, Option
from benchctl.engines.transformers.speculation import recipe_problems
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.errors import UsageError
from benchctl.offers import load
from benchctl.recipes.adapters import registered
from benchctl.recipes.engine_spec import LaunchedEngineSpec
from benchctl.recipes.load import load_recipe
from benchctl.recipes.speculation import Speculation
from benchctl.recipes.trust import Finding, find_openings, refuse
from tests.engines.cells import arm_of, recipe_of

SPEC = {"sglang": SglangSpec(kind="sglang"), "vllm": VllmSpec(kind="vllm")}
OTHERS = Method("other:Drafter", options=None)
OPENING = sorted(name for name in {*SGLANG.opens, *SGLANG.reads} if name.startswith("speculative-") or "uno" in name)


def found_of(kind: str, key: str, value: object, type_: str = "ngram-simple") -> list[Finding]:
    engine: LaunchedEngineSpec = SPEC[kind]
    return find_openings(recipe_of(arm_of(type_, options={key: value}), engine=engine), Path.cwd())


def as_argument(kind: str, *args: str) -> list[str | None]:
    spec = SPEC[kind].model_copy(update={"args": list(args)})
    return [found.opens for found in find_openings(recipe_of(arm_of(), engine=spec), Path.cwd())]


@pytest.mark.parametrize("spell", [str, lambda name: name.replace("-", "_"), lambda name: name.replace("-", "_", 1)])
@pytest.mark.parametrize("name", OPENING)
def test_an_option_that_opens_the_machine_needs_trust(name: str, spell: type[str]) -> None:
    assert len(OPENING) >= 6
    found = found_of("sglang", spell(name), "/etc/passwd")
    assert [finding.opens for finding in found] == as_argument("sglang", f"--{name}", "/etc/passwd")
    with pytest.raises(UsageError, match=f"--{name}") as caught:
        refuse(found, trusted=False)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("code_revision", "main"), ("code-revision", "main"), ("draft_load_config", {"load_format": "dummy"})),
        *(("draft_load_config.load_format", "dummy"), ("model", "a.b.Drafter"), ("a_future_key", 1)),
    ],
)
def test_a_key_of_the_configuration_that_opens_the_machine_needs_trust(key: str, value: object) -> None:
    found = found_of("vllm", key, value)
    assert [finding.opens is not None for finding in found] == [True]
    assert as_argument("vllm", f"--speculative-config.{key}=1") == [found[0].opens]
    with pytest.raises(UsageError, match="would open the machine"):
        refuse(found, trusted=False)
    (custom,) = find_openings(recipe_of(arm_of("custom_class"), engine=SPEC["vllm"]), Path.cwd())
    assert custom.opens == "runs code"


def test_the_whole_configuration_as_an_argument_needs_trust() -> None:
    for args in (("--speculative-config", "{}"), ("-sc", "{}"), ("-sc.model=x",), ("--speculative-conf", "{}")):
        (opens,) = as_argument("vllm", *args)
        assert opens is not None


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        *(("sglang", "speculative_ngram_match_type", "BFS"), ("sglang", "speculative-accept-threshold-single", 0.5)),
        *(("sglang", "enable-multi-layer-eagle", True), ("sglang", "uno-lora-path", "adapter")),
        *(("vllm", "prompt_lookup_max", 4), ("vllm", "suffix_decoding_max_tree_depth", 16)),
        *(("vllm", "synthetic_acceptance_rates", [0.5, 0.2]), ("vllm", "rejection_sample_method", "block")),
    ],
)
def test_what_only_tunes_passes(kind: str, key: str, value: object) -> None:
    assert [str(finding) for finding in found_of(kind, key, value)] == []


def test_every_engine_with_options_resolves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes text among its options says which arguments they become; the others take none, or numbers."""
    for kind, adapter in registered().adapters.items():
        if adapter.speculation_arguments is not None:
            speculation = Speculation(type="ngram-simple", options={"a_b": "x", "c": 1})
            words = [word.partition("=")[0] for word in load(adapter.speculation_arguments)(speculation)]
            assert [word.replace("_", "-").rpartition(".")[2].lstrip("-") for word in words] == ["a-b", "c"], kind
        elif adapter.own_methods:
            assert kind == "transformers"
    known = [method.options for method in METHODS.values()]
    assert {option.of for options in known for option in (options or {}).values()} <= {int, float, bool, list}
    assert Option(list).problem(["/etc/passwd"]) is not None
    written = Speculation(type="self-other", max=4, options={"file": "/etc/passwd", "number": 1})
    monkeypatch.setattr("benchctl.engines.transformers.speculation.registered", lambda: {"self-other": OTHERS})
    (problem,) = recipe_problems(written)
    assert problem.startswith("options.file")


def test_an_option_of_llama_cpp_that_opens_the_machine_needs_trust() -> None:
    found = find_openings(recipe_of(arm_of("ngram-simple", options={"rpc": "a:1"})), Path.cwd())
    assert [finding.opens for finding in found] == ["reaches the network"]
    (served,) = find_openings(recipe_of(arm_of(), engine=LlamaCppSpec(device="rpc")), Path.cwd())
    assert (served.opens, served.key) == ("reaches the network", "engine.device")
    with pytest.raises(UsageError, match="trust-recipe"):
        refuse([served], trusted=False)


@pytest.mark.parametrize("engine", ["kind: openai, url: 'http://127.0.0.1:9/v1'"])
def test_engines_without_options_refuse_them(tmp_path: Path, engine: str) -> None:
    file = tmp_path / "recipe.yaml"
    arms = "[{name: baseline}, {name: a, speculation: {type: ngram-simple, options: {rpc: 'a:1'}}}]"
    models = "" if "openai" in engine else "models: {target: {source: bundled:tiny-hybrid}}\n"
    file.write_text(f"name: demo\nengine: {{{engine}}}\n{models}prompts: {{suite: tiny.json}}\narms: {arms}\n")
    with pytest.raises(UsageError, match="options"):
        load_recipe(file)
