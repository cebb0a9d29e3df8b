"""`self-kangaroo` beside a loop without a cache, and a trained adapter beside an untrained adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchctl.engines.transformers.serving import UnsuitableError  # noqa: E402
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter  # noqa: E402
from benchctl.engines.transformers.serving.decode import Step  # noqa: E402
from benchctl.engines.transformers.serving.decoder import Decoder  # noqa: E402
from benchctl.engines.transformers.serving.drafters.kangaroo import Adapter, load_adapter  # noqa: E402
from tests.conversion.prompts import chat_prompts  # noqa: E402
from tests.engines.transformers.test_independent import DEPTH, PROMPT, TOKENS, naive_rounds  # noqa: E402
from tests.engines.transformers.tiny_models import DECLARED, decoded, loaded, untrained_adapter  # noqa: E402
from training.heads import frozen_target  # noqa: E402
from training.kangaroo import train, write  # noqa: E402

pytestmark = pytest.mark.torch
ATTENTION = [name for name in DECLARED if not name.startswith(("falcon", "qwen3_5", "qwen3_next", "granitemoe", "lfm"))]
STEPS = 200


def rounds_of(target: Any, folder: Path, prompt: list[int], tokens: int, **options: float) -> list[Step]:
    """The steps of an answer."""
    way = make_drafter(Decoder(target.model), Speculation("self-kangaroo", DEPTH, options), target, adapter=folder)
    steps: list[Step] = decoded(Decoder(target.model), prompt, tokens, way)[0].steps
    return steps


@pytest.mark.parametrize("name", ATTENTION)
def test_drafts_are_those_of_an_adapter_that_reads_all_tokens_anew(name: str) -> None:
    model_type, changed = DECLARED[name]
    target = loaded(model_type, **changed)
    decoder = Decoder(target.model)
    folder = untrained_adapter(decoder)
    assert folder is not None
    adapter = load_adapter(decoder, folder)

    def guess(tokens: Sequence[int], start: int) -> int:
        with torch.inference_mode():
            ids = torch.tensor([list(tokens)])
            hidden = target.model(ids, use_cache=False, output_hidden_states=True).hidden_states[1]
            rotations = target.model.get_decoder().rotary_emb(hidden, torch.arange(len(tokens))[None])
            return int(target.model.lm_head(adapter(hidden, rotations))[0, -1].argmax())

    expected, rounds = naive_rounds(target, guess)
    for _ in range(2):  # the second request remembers nothing of the first
        steps = rounds_of(target, folder, PROMPT, TOKENS, confidence=0.0)
        assert [token for step in steps for token in step.tokens] == expected
        assert [(step.drafted, step.accepted) for step in steps if step.drafted] == rounds


def test_weights_of_another_shape_are_refused() -> None:
    decoder = Decoder(loaded("qwen2", hidden_size=128).model)
    folder = untrained_adapter(decoder)
    target = loaded("qwen2")
    with pytest.raises(UnsuitableError, match="size mismatch"):
        make_drafter(Decoder(target.model), Speculation("self-kangaroo", 4, {}), target, adapter=folder)


@pytest.mark.slow
def test_a_trained_adapter_is_accepted_more_often(load: Callable[[str], Any], tmp_path: Path) -> None:
    target = load("tiny-transformer")
    texts = [
        target.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        for turns in chat_prompts()
    ]
    folder, frozen = frozen_target(1)
    adapter, shares = Adapter(Decoder(frozen)), []
    adapter.norm.load_state_dict(frozen.model.norm.state_dict())
    for steps in (0, STEPS):
        train(adapter, frozen, folder, steps, 1)
        write(adapter, frozen, tmp_path / str(steps))
        rounds: list[Step] = []
        for text in texts:
            prompt = target.tokenizer(text, add_special_tokens=False)["input_ids"]
            rounds += rounds_of(target, tmp_path / str(steps), prompt, 40, confidence=0.0)
        shares.append(sum(step.accepted for step in rounds) / sum(step.drafted for step in rounds))
    untrained, trained = shares
    # Measured: 0.71 and 0.56. The untrained adapter passes on much of what the first layer says.
    assert trained > untrained + 0.05
