"""Every declared architecture, with random weights: its self-test passes, and every type answers as `generate` does."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.methods import METHODS  # noqa: E402
from benchctl.engines.transformers.serving import UnsuitableError  # noqa: E402
from benchctl.engines.transformers.serving.answering import Answer, Speculation, make_drafter  # noqa: E402
from benchctl.engines.transformers.serving.decoder import Decoder, State, without  # noqa: E402
from benchctl.engines.transformers.serving.main import run_self_test  # noqa: E402
from benchctl.engines.transformers.serving.variants import Choice, Variants, inner_items, items_of, logits_of, search  # noqa: E402
from tests.engines.transformers.tiny_models import DECLARED, WHOLE, decoded, loaded, untrained_adapter  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PROMPT = [5, 6, 7, 30, 12, 13, 5, 6, 7, 30, 12, 13, 5, 6]
TOKENS = 20
LISTED: dict[str, dict[str, Any]] = {"self-skip": {"layers": [1]}, "self-draft-verify": {"mlp": [1], "attention": [3]}}


def generated(model: Any) -> list[int]:
    """What transformers' own `generate` says, without any of benchctl's code."""
    with torch.inference_mode():
        output = model.generate(torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=-1)
    return output[0, len(PROMPT) :].tolist()  # type: ignore[no-any-return]


def answered(decoder: Decoder, target: Any, name: str | None, draft: Any = None) -> tuple[Answer, list[int]]:
    options: dict[str, Any] = {"interval": 2} if name and METHODS[name].searches else {}
    options |= LISTED.get(name or "", {})
    adapter = untrained_adapter(decoder)
    way = make_drafter(decoder, Speculation(name, 4, options), target, draft, adapter) if name else None
    return decoded(decoder, PROMPT, TOKENS, way)


@pytest.mark.parametrize("name", DECLARED)
def test_every_type_answers_as_generate_does(name: str) -> None:
    model_type, changed = DECLARED[name]
    target = loaded(model_type, **changed)
    decoder = Decoder(target.model)
    tested = run_self_test(decoder)
    assert tested.passed, tested
    assert tested.variants_in_batches == (name != "falcon_h1, gated norm")
    expected = generated(target.model)
    assert len(set(expected)) > 2
    assert answered(decoder, target, None)[1] == expected
    for method, entered in METHODS.items():
        if decoder.architecture.kind in entered.kinds and method != "assisted-universal":
            answer, tokens = answered(decoder, target, method, draft=target)
            assert tokens == expected, method
            if method != "prompt-lookup":
                assert answer.ledger()["drafted"] > 0, method


@pytest.mark.parametrize("name", ["qwen2, window", "qwen3, window", "mistral, window", "phi3, window", "falcon_h1"])
@pytest.mark.parametrize("options", [{"layers": [0]}, {"attention": [0]}, {"layers": [0, 1]}])
def test_the_first_layers_may_be_left_out(name: str, options: dict[str, list[int]]) -> None:
    model_type, changed = DECLARED[name]
    target = loaded(model_type, **changed)
    decoder = Decoder(target.model)
    drafter = make_drafter(decoder, Speculation("self-skip", 4, options), target)
    answer, tokens = decoded(decoder, PROMPT, TOKENS, drafter)
    assert tokens == generated(target.model)
    assert answer.ledger()["drafted"] > 0


@pytest.mark.parametrize("name", DECLARED)
def test_what_a_search_reads_is_the_model_without_its_parts(name: str) -> None:
    model_type, changed = DECLARED[name]
    decoder = Decoder(loaded(model_type, **changed).model)
    run_self_test(decoder)
    inner = set(inner_items(decoder))
    items = [item for number in range(len(decoder.layers)) for item in items_of(decoder, number)]
    with torch.inference_mode():
        state = State(decoder)
        state.advance(PROMPT)
        before = state.snapshot()
        for tokens in ([77, 50, 8, 120], [77]):
            variants = Variants(decoder, state, before, tokens)
            result = search(variants, [Choice((item,), int(item in inner)) for item in items], limit=3, min_cosine=-1.0)
            assert len(result.spent) > 1
            for index, left_out in enumerate(result.left_out):
                with without(decoder, left_out):
                    expected = state.advance(tokens, keep=len(tokens))
                state.restore(before)
                assert float((logits_of(decoder, result.hidden[index : index + 1]) - expected).abs().max()) < 1e-3


@pytest.mark.parametrize("name", WHOLE)
def test_a_target_needs_no_known_parts_where_nothing_is_left_out(name: str) -> None:
    model_type, changed = WHOLE[name]
    target, draft = loaded(model_type, **changed), loaded(model_type, seed=1, **changed)
    decoder = Decoder(target.model)
    assert run_self_test(decoder).problem() is None
    expected = generated(target.model)
    assert len(set(expected)) > 2
    for method in (None, "prompt-lookup", "assisted"):
        assert answered(decoder, target, method, draft)[1] == expected, method
    with pytest.raises(UnsuitableError, match="parts are not known"):
        make_drafter(decoder, Speculation("self-layerskip", 4, {}), target)


@pytest.mark.parametrize("model_type", ["mamba", "falcon_mamba", "minimax"])
def test_a_state_that_is_not_declared_is_refused(model_type: str) -> None:
    changed = {"num_local_experts": 2} if model_type == "minimax" else {}
    with pytest.raises(UnsuitableError, match="keeps a recurrent state"):
        Decoder(loaded(model_type, **changed).model)
