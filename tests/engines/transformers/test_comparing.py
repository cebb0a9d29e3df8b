"""What the server reads of an answer with draft and target is what real rounds accept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from benchctl.engines.transformers.serving import UnsuitableError
from benchctl.engines.transformers.serving.answering import Comparing, Passage, Speculation, make_drafter
from benchctl.engines.transformers.serving.assisted import Assisted
from benchctl.engines.transformers.serving.decode import Sampler
from benchctl.engines.transformers.serving.decoder import Decoder
from tests.engines.transformers.conftest import PROMPTS
from tests.engines.transformers.tiny_models import decoded

pytestmark = pytest.mark.torch
PARTS = {
    "tiny-hybrid": Speculation("self-ssm", 4, {}),
    "tiny-sequential": Speculation("self-linear", 4, {}),
    "tiny-transformer": Speculation("self-layerskip", 4, {"skip": 0.5}),
}


def reading(prompt: list[int], answer: list[int], temperature: float = 0.0, **changed: int) -> Passage:
    return Passage(prompt, answer, temperature, **({"depth": 4, "stride": 1, "top": 100} | changed))


@pytest.mark.parametrize("name", PARTS)
def test_every_round_accepts_what_was_read_at_its_start(name: str, load: Callable[[str], Any]) -> None:
    loaded = load(name)
    decoder = Decoder(loaded.model)
    way = make_drafter(decoder, PARTS[name], loaded)
    rounds = rejected = 0
    for text in PROMPTS:
        prompt = loaded.tokenizer(text)["input_ids"]
        decoding, answer = decoded(decoder, prompt, 40, way)
        read = Comparing(decoder, way).read(reading(prompt, answer))
        rows, position = dict(zip(read["starts"], read["overlap"], strict=True)), 0
        for step in decoding.steps:
            if step.drafted:
                row = rows[position][: step.drafted]
                accepted = next((depth for depth, chance in enumerate(row) if chance == 0), len(row))
                assert accepted == min(step.accepted, len(row)), (text, position)
                rounds, rejected = rounds + 1, rejected + step.drafted - step.accepted
            position += len(step.tokens)
    assert rounds > 10
    assert rejected > 0


@pytest.mark.parametrize("name", PARTS)
def test_a_start_is_read_alike_whatever_was_read_before_it(name: str, load: Callable[[str], Any]) -> None:
    loaded = load(name)
    decoder = Decoder(loaded.model)
    way = make_drafter(decoder, PARTS[name], loaded)
    prompt = loaded.tokenizer(PROMPTS[0])["input_ids"]
    _, answer = decoded(decoder, prompt, 40, sampler=Sampler(0.6, seed=4))
    dense, sparse = (Comparing(decoder, way).read(reading(prompt, answer, 0.6, stride=stride)) for stride in (1, 5))
    assert sparse["starts"] == dense["starts"][::5]
    for name in ("overlap", "accept"):
        by_start = dict(zip(dense["starts"], dense[name], strict=True))
        for start, row in zip(sparse["starts"], sparse[name], strict=True):
            assert row == pytest.approx(by_start[start], abs=1e-4)


def test_a_draft_that_is_the_target_is_always_accepted(load: Callable[[str], Any]) -> None:
    loaded = load("tiny-hybrid")
    decoder = Decoder(loaded.model)
    prompt = loaded.tokenizer(PROMPTS[1])["input_ids"]
    for temperature in (0.0, 0.6):
        _, answer = decoded(decoder, prompt, 40, sampler=Sampler(temperature, seed=2))
        read = Comparing(decoder, Assisted(loaded, 4, {}, loaded)).read(reading(prompt, answer, temperature))
        assert [row[0] for row in read["overlap"]] == pytest.approx([1.0] * (len(answer) - 1), abs=1e-5)
        assert read["distance"] == pytest.approx([0.0] * (len(answer) - 1), abs=1e-5)
        assert all(read["agree"])


def test_a_draft_model_is_read_by_its_own_logits(load: Callable[[str], Any]) -> None:
    target, draft = load("tiny-hybrid"), load("tiny-hybrid-draft")
    decoder = Decoder(target.model)
    prompt = target.tokenizer(PROMPTS[0])["input_ids"]
    _, answer = decoded(decoder, prompt, 40)
    read = Comparing(decoder, Assisted(target, 4, {}, draft)).read(reading(prompt, answer))
    with torch.inference_mode():
        at_once = [model(torch.tensor([[*prompt, *answer]])).logits[0] for model in (target.model, draft.model)]
    p, q = (logits[len(prompt) : len(prompt) + len(answer) - 1].double().softmax(-1) for logits in at_once)
    expected = (q.argmax(-1) == torch.tensor(answer[1:])).double().tolist()
    assert [row[0] for row in read["overlap"]] == expected
    for distance, p_row, q_row in zip(read["distance"], p, q, strict=True):
        likeliest = p_row.topk(100).indices
        outside = 1 - q_row[likeliest].sum() - (1 - p_row[likeliest].sum())
        assert distance == pytest.approx(float((p_row - q_row)[likeliest].abs().sum() + outside.abs()) / 2, abs=1e-4)


def test_perplexity_and_operations_fall_with_what_is_left_out(load: Callable[[str], Any]) -> None:
    loaded = load("tiny-transformer")
    decoder = Decoder(loaded.model)
    prompt = loaded.tokenizer(PROMPTS[0])["input_ids"]
    _, answer = decoded(decoder, prompt, 40)
    flops, removed = [], []
    for skip in (0.01, 0.5, 0.9):
        way = make_drafter(decoder, Speculation("self-layerskip", 4, {"skip": skip}), loaded)
        comparing = Comparing(decoder, way)
        read = comparing.read(reading(prompt, answer))
        assert read["scored"] == len(prompt) + len(answer) - 1
        with torch.inference_mode():
            logits = loaded.model(torch.tensor([[*prompt, *answer]])).logits[0, :-1]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor([*prompt, *answer][1:]), reduction="sum")
        assert read["loss_target"] == pytest.approx(float(loss), rel=1e-4)
        removed.append(read["loss_draft"])
        counted = comparing.flops(prompt)
        flops.append(counted["draft"] / counted["target"])
    assert removed[0] < removed[1] < removed[2]
    assert 1 > flops[0] > flops[1] > flops[2] > 0


def test_what_has_no_fixed_part_and_no_model_is_refused(load: Callable[[str], Any]) -> None:
    loaded = load("tiny-transformer")
    decoder = Decoder(loaded.model)
    for way in (None, make_drafter(decoder, Speculation("prompt-lookup", 4, {}), loaded)):
        with pytest.raises(UnsuitableError, match="fixed part"):
            Comparing(decoder, way)
