"""What is refused before anything starts, and how an arm's condition reaches the server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.base import Capabilities
from benchctl.engines.common.launched_server import Probe
from benchctl.engines.vllm.adapter import VllmSpec
from benchctl.engines.vllm.command import Package
from benchctl.engines.vllm.engine import VllmEngine
from benchctl.errors import UsageError
from benchctl.models.files import ResolvedModel, ResolvedPair
from benchctl.recipes.schema import Arm, ModelPair, ModelSpec, PromptsSpec, Recipe
from benchctl.recipes.speculation import Speculation

Make = Callable[..., Any]
NGRAM = Arm(name="ngram", speculation=Speculation(type="ngram-simple", max=4))
OPTIONS = {"--enable-per-request-metrics": 0, "--speculative-config": None, "--per-request-spec-decode-metrics": None}


def engine_of(package: Package, spec: VllmSpec) -> VllmEngine:
    engine = VllmEngine(spec)
    able = Capabilities("vllm", Path("/venv/bin/vllm"), "option", None, None, None, ())
    engine.__dict__["_probe"] = Probe(able, package)
    return engine


def check(package: Package, target: ResolvedModel, *arms: Arm, **spec: Any) -> list[str]:
    engine = VllmSpec(kind="vllm", **({"context": 1024} | spec))
    recipe = Recipe(
        name="r",
        engine=engine,
        models=ModelPair(target=ModelSpec(source="t")),
        prompts=PromptsSpec(suite="s"),
        arms=[Arm(name="baseline"), *arms],
    )
    return list(engine_of(package, engine).check(recipe, ResolvedPair(target, None)))


def test_a_recipe_that_fits(package: Make, folder: Make) -> None:
    assert check(package(options=OPTIONS), folder("target"), NGRAM) == []


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ({"device": "cuda"}, OPTIONS, "this vLLM runs on cpu, but the recipe requests cuda"),
        ({"context": 4096}, OPTIONS, "4096 is more than the 2048 tokens that the target was made for"),
        ({"args": ["--hf-token", "x"]}, OPTIONS, "--hf-token may not be among a recipe's arguments"),
        ({"env": {"VLLM_API_KEY": "x"}}, OPTIONS, "VLLM_API_KEY"),
        ({"env": {"VLLM_BATCH_INVARIANT": "1"}}, OPTIONS, "engine.env: VLLM_BATCH_INVARIANT=1 needs a GPU"),
        ({}, {"--speculative-config": None}, "has no --enable-per-request-metrics"),
    ],
)
def test_what_this_vllm_cannot_do_is_refused(
    package: Make, folder: Make, spec: dict[str, Any], options: dict[str, int | None], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check(package(options=options), folder("target"), NGRAM, **spec)
    assert message in caught.value.what


@pytest.mark.parametrize(
    ("condition", "overlapping", "slots"),
    [({}, False, "1"), ({"concurrency": 4}, True, "4"), ({"rate": 2.0}, True, "1")],
)
def test_whether_answers_overlap_is_the_arms_and_not_the_number_of_slots(
    package: Make, folder: Make, condition: dict[str, Any], overlapping: bool, slots: str
) -> None:
    engine = engine_of(package(options=OPTIONS), VllmSpec(kind="vllm"))
    launch = engine.launch(NGRAM.model_copy(update=condition), ResolvedPair(folder("target"), None))
    assert launch.overlapping is overlapping
    assert launch.argv[launch.argv.index("--max-num-seqs") + 1] == slots


def test_qwen3_5_needs_torchvision(package: Make, folder: Make) -> None:
    target = folder("target", architectures=["Qwen3_5ForCausalLM"])
    with pytest.raises(UsageError, match="torchvision"):
        check(package(options=OPTIONS), target)
    assert check(package(options=OPTIONS, torchvision=True), target) == []
