"""Every self-speculation type that an architecture has answers as the target alone, token by token, in float32."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.data.counts import steps_contradiction
from benchctl.engines.transformers.methods import METHODS
from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter
from benchctl.engines.transformers.serving.decode import Sampler
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.self_drafter import evenly_skipped
from benchctl.engines.transformers.serving.replaying import replay
from tests.engines.transformers.conftest import PROMPTS
from tests.engines.transformers.tiny_models import decoded, untrained_adapter

pytestmark = pytest.mark.torch
TOKENS = 32
LISTED: dict[str, dict[str, Any]] = {"self-skip": {"layers": [1]}, "self-draft-verify": {"mlp": [1]}}
"""Lists that a type does not do without, with layers that every model here has."""
OPTIONS: dict[str, dict[str, Any]] = {
    "self-swift": {"window": 8, "bayes": 3},
    "self-clasp": {"interval": 2},
    "self-del": {"interval": 2},
    "self-knapspec": {"interval": 3, "window": 4, "confidence": 0.1},
}
"""Short intervals, so that short answers hold several searches."""


def answer(
    loaded: Any, text: str, speculation: Speculation | None = None, *ends: int, draft: Any = None
) -> tuple[Answer, list[int]]:
    """An answer of the loaded model, and its tokens."""
    decoder = Decoder(loaded.model)
    way = make_drafter(decoder, speculation, loaded, draft, untrained_adapter(decoder)) if speculation else None
    return decoded(decoder, loaded.tokenizer(text)["input_ids"], TOKENS, way, None, *ends)


@pytest.mark.parametrize("name", METHODS)
def test_answers_are_the_targets(bundled: Any, decoder: Decoder, name: str) -> None:
    if decoder.architecture.kind not in METHODS[name].kinds:
        pytest.skip(f"{decoder.model_type} has nothing that {name} leaves out")
    if METHODS[name].draft and not METHODS[name].adapter:
        pytest.skip("the bundled models have no draft for each other that transformers would take")
    drafted = accepted = 0
    for text in PROMPTS[:2]:
        _, target_tokens = answer(bundled, text)
        speculated, tokens = answer(bundled, text, Speculation(name, 4, {**OPTIONS, **LISTED}.get(name, {})))
        assert tokens == target_tokens
        counts, steps = speculated.ledger(), speculated.steps
        with_prompt = int(steps[0].drafted > 0)
        assert counts["rounds"] + counts["plain_steps"] == len(steps) - 1 + with_prompt
        assert with_prompt <= METHODS[name].assisted
        assert sum(counts["accepted_by_position"]) == counts["accepted"] == len(target_tokens) - len(steps)
        assert max(len(step.tokens) for step in steps) <= 5
        of_counters = {key: counts[key] for key in ("drafted", "accepted", "rounds")}
        assert len(counts["target_steps"]) == len(steps) - 1 + with_prompt
        assert steps_contradiction(counts["target_steps"], tokens=len(tokens), **of_counters) is None
        passes = [(step.drafted, step.accepted) for step in steps]
        assert replay(decoder, speculated.task.prompt, tokens, passes, Sampler().chooser()) == []
        drafted, accepted = drafted + counts["drafted"], accepted + counts["accepted"]
        if name in OPTIONS:
            assert speculated.way is not None
            assert int(str(speculated.way.describe()["searches"])) > 0
            assert speculated.clock.seconds["search"] > 0
    assert 0 < accepted <= drafted


@pytest.mark.parametrize("depth", [1, 3, 6])
@pytest.mark.parametrize("name", ["self-layerskip", "early-exit", "assisted"])
def test_it_drafts_to_the_requested_depth(load: Any, name: str, depth: int) -> None:
    target = load("tiny-transformer")
    speculated, _ = answer(target, PROMPTS[0], Speculation(name, depth, {}), draft=target)
    by_position = speculated.ledger()["drafted_by_position"]
    assert len(by_position) == depth
    assert by_position[-1] > 0.5 * by_position[0]


def test_a_model_that_assists_itself_is_always_right(load: Any) -> None:
    target = load("tiny-transformer")
    speculated, tokens = answer(target, PROMPTS[0], Speculation("assisted", 4, {}), draft=target)
    counts = speculated.ledger()
    assert tokens == answer(target, PROMPTS[0])[1]
    assert counts["accepted"] == counts["drafted"]
    assert counts["target_steps"][0] == [0, 4, 4], "the pass that read the prompt verified a draft"
    passes = [(step.drafted, step.accepted) for step in speculated.steps]
    assert replay(Decoder(target.model), speculated.task.prompt, tokens, passes, Sampler().chooser()) == []


def test_nothing_is_drafted_after_the_end(load: Any) -> None:
    loaded = load("tiny-transformer")
    _, target_tokens = answer(loaded, PROMPTS[0])
    end = target_tokens[len(target_tokens) // 2]
    for name in ("self-layerskip", "early-exit"):
        speculated, tokens = answer(loaded, PROMPTS[0], Speculation(name, 4, {}), end)
        assert tokens == target_tokens[: target_tokens.index(end) + 1]
        assert speculated.steps[-1].ended


def test_no_architecture_that_is_served_has_a_multi_token_head_that_transformers_uses() -> None:
    """What the refusal of `mtp` says is read from the installed classes: with other ones it would have to be built."""
    transformers = pytest.importorskip("transformers")
    types = (
        "FalconH1 Qwen3_5 Qwen3_5Moe Qwen3Next GraniteMoeHybrid Lfm2 Qwen2 Qwen3 Qwen3Moe Llama Mistral Olmo2 SmolLM3"
    )
    classes = (*types.split(), "Granite", "Phi3")
    for name in classes:
        model = getattr(transformers, f"{name}ForCausalLM")
        assert model._is_stateful or not model._keys_to_ignore_on_load_unexpected


def test_skipped_layers_are_spread_evenly() -> None:
    assert evenly_skipped(4, 0.5) == [1, 2]
    assert evenly_skipped(24, 0.25) == [2, 6, 10, 13, 17, 21]
    assert evenly_skipped(2, 0.5) == [1]
    assert 0 not in evenly_skipped(8, 0.9)


def test_options_that_the_model_has_no_layers_for_are_refused(load: Any) -> None:
    loaded = load("tiny-transformer")
    for name in ("self-early-exit", "early-exit"):
        with pytest.raises(UnsuitableError, match="exit_layer is 99"):
            make_drafter(Decoder(loaded.model), Speculation(name, 4, {"exit_layer": 99}), loaded)
