"""Checked against re-implementations that share nothing with the decoding loop: no cache, no rollback, no counting."""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.methods import METHODS  # noqa: E402
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter  # noqa: E402
from benchctl.engines.transformers.serving.decode import Chooser, Sampler  # noqa: E402  # noqa: E402
from benchctl.engines.transformers.serving.decoder import Decoder, Parts  # noqa: E402
from benchctl.engines.transformers.serving.drafters.self_drafter import SelfDrafter  # noqa: E402
from tests.engines.transformers.tiny_models import DECLARED, decoded, loaded, untrained_adapter  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROMPT = [5, 6, 7, 30, 12, 13, 5, 6]
TOKENS, DEPTH = 12, 3
FIXED = ("self-ssm", "self-linear", "self-layerskip", "self-early-exit", "self-skip")
OF_PARTS = ("self-ssm", "self-linear", "self-skip")
"""Types whose drafts differ by how an architecture's layers are made; the others leave out whole layers of any."""


def naive_likeliest(target: Any, tokens: Sequence[int], left_out: Parts = frozenset(), start: int = 0) -> int:
    """The likeliest token after `tokens`, all read at once without a cache, those from `start` on without parts."""
    decoder, handles = Decoder(target.model), []

    def hook(part: str) -> Any:
        def changed(module: Any, inputs: Any, keywords: Any, answer: Any) -> Any:
            entered = keywords["hidden_states"] if "hidden_states" in keywords else inputs[0]
            first, tail = (answer[0], answer[1:]) if isinstance(answer, tuple) else (answer, None)
            later = entered[:, start:] if part == "layer" else torch.zeros_like(first[:, start:])
            mixed = torch.cat([first[:, :start], later], 1)
            return mixed if tail is None else (mixed, *tail)

        return changed

    for number, part in left_out:
        for module in decoder.layers[number].modules(part):
            handles.append(module.register_forward_hook(hook(part), with_kwargs=True))
    try:
        with torch.inference_mode():
            logits = target.model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
    finally:
        for handle in handles:
            handle.remove()
    return int(logits[0, -1].argmax())


def naive_rounds(target: Any, guess: Callable[..., int]) -> tuple[list[int], list[tuple[int, int]]]:
    """An answer, and by round how many tokens were drafted and accepted; `guess` takes tokens and a draft's start."""
    tokens, rounds = [*PROMPT, naive_likeliest(target, PROMPT)], []
    while (remaining := len(PROMPT) + TOKENS - len(tokens)) > 0:
        draft: list[int] = []
        while len(draft) < min(DEPTH, remaining - 1):
            draft.append(guess([*tokens, *draft], start=len(tokens) - 1))
        accepted = 0
        while accepted < len(draft) and naive_likeliest(target, [*tokens, *draft[:accepted]]) == draft[accepted]:
            accepted += 1
        tokens += draft[:accepted]
        tokens.append(naive_likeliest(target, tokens))
        if draft:
            rounds.append((len(draft), accepted))
    return tokens[len(PROMPT) :], rounds


@pytest.mark.parametrize("name", DECLARED)
def test_counters_are_those_of_a_loop_without_a_cache(name: str) -> None:
    model_type, changed = DECLARED[name]
    target = loaded(model_type, **changed)
    decoder = Decoder(target.model)
    for method in FIXED if name == "qwen2" else OF_PARTS:
        if decoder.architecture.kind not in METHODS[method].kinds:
            continue
        options = {"layers": [2], "mlp": [0, 1], "attention": [3]} if method == "self-skip" else {}
        way = make_drafter(decoder, Speculation(method, DEPTH, options), target)
        assert isinstance(way, SelfDrafter)
        answer, answered = decoded(decoder, PROMPT, TOKENS, way)
        tokens, rounds = naive_rounds(target, partial(naive_likeliest, target, left_out=way.left_out))
        assert answered == tokens, method
        assert [(step.drafted, step.accepted) for step in answer.steps if step.drafted] == rounds, method
        counts = answer.ledger()
        assert [(drafted, accepted) for drafted, accepted in counts["target_steps"] if drafted] == rounds, method
        for position in range(DEPTH):
            assert counts["drafted_by_position"][position] == sum(drafted > position for drafted, _ in rounds)
            assert counts["accepted_by_position"][position] == sum(accepted > position for _, accepted in rounds)


VOCABULARY, LENGTH, ANSWERS = 5, 6, 250
SHORT = [1, 2, 3, 4, 0, 3, 2, 1]
OPTIONS: dict[str, dict[str, Any]] = {
    "self-swift": {"window": 2, "confidence": 0.0},
    "self-clasp": {"interval": 1, "confidence": 0.0},
    "self-knapspec": {"window": 2, "interval": 1, "cosine": -1.0, "confidence": 0.0},
    "self-draft-verify": {"mlp": [1, 2], "confidence": 0.0},
    "self-kangaroo": {"confidence": 0.0},
}
LIMIT = 62.0
"""Of chi-square with 24 degrees of freedom, 99.997 %: so many tests are made here."""


def pair_chances(target: Any, sampler: Sampler) -> Any:
    """How likely each pair of an answer's fourth and fifth token is, by enumerating all answers: `[token, token]`."""
    answers = list(itertools.product(range(VOCABULARY), repeat=4))
    ids = torch.tensor([[*SHORT, *answer] for answer in answers])
    with torch.inference_mode():
        logits = target.model(input_ids=ids, use_cache=False).logits[:, len(SHORT) - 1 :]
    logits = logits.double().clone()
    for answer, places in zip(answers, logits, strict=True):
        for position, values in enumerate(places):
            for token, bias in sampler.bias.items():
                values[token] += bias
            for token in {*SHORT, *answer[:position]} if sampler.penalty != 1 else ():
                values[token] *= sampler.penalty if values[token] < 0 else 1 / sampler.penalty
    chances = (logits / sampler.temperature).softmax(-1)
    if sampler.top_k:
        chances[chances < chances.sort(descending=True).values[..., sampler.top_k - 1 :][..., :1]] = 0
        chances /= chances.sum(-1, keepdim=True)
    result = torch.zeros(VOCABULARY, VOCABULARY, dtype=torch.float64)
    for row, answer in enumerate(answers):
        before = math.prod(float(chances[row, position, token]) for position, token in enumerate(answer))
        result[answer[3]] += before * chances[row, 4]
    return result


def chi_square(target: Any, method: str, sampler: Sampler, answers: int = ANSWERS) -> float:
    """How far the pairs that were sampled are from those chances. By the fourth token every type drafts."""
    draft = loaded("qwen2", seed=1, vocab_size=VOCABULARY)
    decoder = Decoder(target.model)
    requested = Speculation(method, 3, OPTIONS.get(method, {}))
    way = make_drafter(decoder, requested, target, draft, untrained_adapter(decoder))
    counts: Counter[tuple[int, int]] = Counter()
    drafted = rejected = 0
    for seed in range(answers):
        seeded = dataclasses.replace(sampler, seed=seed)
        answer, tokens = decoded(Decoder(target.model), SHORT, LENGTH, way, seeded)
        counts[tokens[3], tokens[4]] += 1
        drafted += answer.ledger()["drafted"]
        rejected += answer.ledger()["drafted"] - answer.ledger()["accepted"]
    assert drafted > answers and rejected > 0.1 * drafted, (drafted, rejected)
    expected = answers * pair_chances(target, sampler)
    assert float(expected.sum()) == pytest.approx(answers)
    rare = expected < 1
    assert all(expected[pair] > 0 for pair in counts)
    observed = torch.zeros_like(expected)
    for pair, count in counts.items():
        observed[pair] = count
    distance = ((observed - expected) ** 2 / expected.clamp(min=1e-9))[~rare].sum()
    return float(distance + (observed[rare].sum() - expected[rare].sum()) ** 2 / expected[rare].sum().clamp(min=1))


def small_target() -> Any:
    return loaded("qwen2", vocab_size=VOCABULARY)


PENALISED = ("self-layerskip", "self-clasp", "assisted", "prompt-lookup", "early-exit")


# FIXED share one drafter: self-layerskip stands for all of them, below over more answers.
@pytest.mark.parametrize("method", [name for name in METHODS if name not in {*FIXED, *PENALISED, "assisted-universal"}])
def test_pairs_of_sampled_tokens_are_as_likely_as_enumeration_says(method: str) -> None:
    assert chi_square(small_target(), method, Sampler(0.9)) < LIMIT


@pytest.mark.parametrize("method", PENALISED)
def test_so_they_are_with_a_penalty_and_a_bias(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "SHORT", [1, 2, 1, 2, 1, 1, 2, 1])  # what it lacks an answer brings
    assert chi_square(small_target(), method, Sampler(0.9, penalty=6.0, bias={3: -0.7})) < LIMIT


@pytest.mark.parametrize("method", ["assisted", "prompt-lookup", "early-exit"])
def test_a_prompts_token_0_is_read_and_not_taken_for_padding(method: str) -> None:
    target, draft = small_target(), loaded("qwen2", seed=1, vocab_size=VOCABULARY)
    for prompt in itertools.permutations([0, 1, 2, 0]):
        way = make_drafter(Decoder(target.model), Speculation(method, DEPTH, {}), target, draft)
        _, tokens = decoded(Decoder(target.model), prompt, 4, way)
        expected = list(prompt)
        for _ in range(4):
            expected.append(naive_likeliest(target, expected))
        assert tokens == expected[len(prompt) :], prompt


def test_pairs_of_tokens_are_as_likely_over_as_many_answers_as_show_a_wrong_rule() -> None:
    assert chi_square(small_target(), "self-layerskip", Sampler(0.9), 4 * ANSWERS) < LIMIT


def test_pairs_of_tokens_are_as_likely_with_top_k() -> None:
    assert chi_square(small_target(), "self-layerskip", Sampler(1.1, top_k=3)) < LIMIT


def test_a_wrong_rule_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of published code: where a draft token is rejected, another is drawn from p, not from what is left of it."""
    verify = Chooser.verify

    def wrong(self: Chooser, tokens: Sequence[int], distributions: Sequence[Any], logits: Any) -> tuple[int, int]:
        accepted, following = verify(self, tokens, distributions, logits)
        if accepted < len(tokens):
            following = self._draw(self.probabilities(logits[accepted]))
        return accepted, following

    monkeypatch.setattr(Chooser, "verify", wrong)
    assert chi_square(small_target(), "self-layerskip", Sampler(0.9), 4 * ANSWERS) > LIMIT
