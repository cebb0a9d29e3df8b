"""Every self-speculation type that an architecture has answers as the target alone, token by token, in float32."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

from benchctl.engines.transformers.methods import METHODS
from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter
from benchctl.engines.transformers.serving.choose import Sampler
from benchctl.engines.transformers.serving.decode import Task
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.layers import evenly_skipped
from benchctl.engines.transformers.serving.drafters.silencing import UnsuitableError
from tests.engines.transformers.conftest import PROMPTS

pytestmark = pytest.mark.torch
TOKENS = 32


def answer(decoder: Decoder, prompt: list[int], speculation: Speculation | None, *ends: int) -> Answer:
    drafter = make_drafter(decoder, speculation) if speculation else None
    return Answer(decoder, Task(prompt, TOKENS, Sampler().chooser(), frozenset(ends)), drafter)


@pytest.mark.parametrize("name", METHODS)
def test_answers_are_the_targets(bundled: Any, decoder: Any, name: str) -> None:
    if decoder.architecture.kind not in METHODS[name].kinds:
        pytest.skip(f"{decoder.model_type} has nothing that {name} leaves out")
    drafted = accepted = 0
    for text in PROMPTS[:2]:
        prompt = bundled.tokenizer(text)["input_ids"]
        alone = [one for step in answer(decoder, prompt, None).steps() for one in step.tokens]
        speculated = answer(decoder, prompt, Speculation(name, 4, {}))
        steps = list(speculated.steps())
        assert [one for step in steps for one in step.tokens] == alone
        told = speculated.tally.to_json()
        assert told["rounds"] + told["plain_steps"] == len(steps) - 1
        assert sum(told["accepted_by_position"]) == told["accepted"] == len(alone) - len(steps)
        assert max(len(step.tokens) for step in steps) <= 5
        drafted, accepted = drafted + told["drafted"], accepted + told["accepted"]
    assert 0 < accepted < drafted


def test_nothing_is_drafted_after_the_end(load: Any) -> None:
    loaded = load("tiny-transformer")
    decoder, prompt = Decoder(loaded.model), [5, 6, 7, 300]
    alone = [one for step in answer(decoder, prompt, None).steps() for one in step.tokens]
    end = alone[len(alone) // 2]
    steps = list(answer(decoder, prompt, Speculation("self-layerskip", 4, {}), end).steps())
    tokens = [one for step in steps for one in step.tokens]
    assert tokens == alone[: alone.index(end) + 1]
    assert steps[-1].ended


def test_skipped_layers_are_spread_evenly() -> None:
    assert evenly_skipped(4, 0.5) == [1, 2]
    assert evenly_skipped(24, 0.25) == [2, 6, 10, 13, 17, 21]
    assert evenly_skipped(2, 0.5) == [1]
    assert 0 not in evenly_skipped(8, 0.9)


def test_options_that_the_model_has_no_layers_for_are_refused(load: Any) -> None:
    decoder = Decoder(load("tiny-transformer").model)
    with pytest.raises(UnsuitableError, match="exit_layer is 99"):
        make_drafter(decoder, Speculation("self-early-exit", 4, {"exit_layer": 99}))
