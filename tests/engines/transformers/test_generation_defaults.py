"""A model's generation_config.json decides nothing but where an answer ends: every type decodes by the recipe alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from transformers import GenerationConfig

from benchctl.engines.transformers.methods import METHODS
from benchctl.engines.transformers.serving.answering import Speculation, make_drafter
from benchctl.engines.transformers.serving.decode import Sampler
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.loading import load as load_folder
from tests.engines.transformers import tiny_models
from tests.engines.transformers.tiny_models import untrained_adapter

pytestmark = [pytest.mark.torch, pytest.mark.slow]
GREEDY = Sampler()
PROMPT = "def count_values(items):\n"
DEFAULTS: dict[str, Any] = {
    "repetition_penalty": 1.5,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": None,  # the tokens that the target says, put in below
    "sequence_bias": None,
    "guidance_scale": 3.0,
    "forced_eos_token_id": 7,
    "max_new_tokens": 2,
    "max_time": 1e-9,
    "cache_implementation": "static",
    "num_beams": 2,
    "penalty_alpha": 0.6,
    "stop_strings": ["e"],
}


def universal_draft(folder: Path, poison: dict[str, Any]) -> Any:
    """A draft of another tokenizer, with a generation_config.json of its own."""
    loaded = tiny_models.loaded("llama", seed=1, vocab_size=300)
    loaded.model.save_pretrained(folder)
    tiny_models.byte_tokenizer(300).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps(poison))
    return load_folder(folder, device="cpu", dtype="float32")


def answered(loaded: Any, name: str | None, sampler: Sampler = GREEDY, draft: Any = None) -> list[int]:
    decoder = Decoder(loaded.model)
    options: dict[str, Any] = {"interval": 2} if name and METHODS[name].searches else {}
    if name in ("self-skip", "self-draft-verify"):
        options = {"layers": [1]}
    requested = Speculation(name, 4, options) if name else None
    way = make_drafter(decoder, requested, loaded, draft or loaded, untrained_adapter(decoder)) if requested else None
    return tiny_models.decoded(decoder, loaded.tokenizer(PROMPT)["input_ids"], 8, way, sampler)[1]


@pytest.mark.parametrize("model", ["tiny-transformer", "tiny-hybrid", "tiny-sequential"])
def test_every_type_decodes_by_the_recipe_alone(
    model: str, load: Callable[[str], Any], folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    plain = answered(load(model), None)
    folder = tmp_path / "model"
    shutil.copytree(folder_of(model), folder)
    poison = DEFAULTS | {"suppress_tokens": plain, "sequence_bias": [[[token], -9.0] for token in plain], "top_k": 4}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0, **poison}))
    poisoned = load_folder(folder, device="cpu", dtype="float32")
    assert poisoned.ends == {0}
    foreign_draft = universal_draft(tmp_path / "draft", poison)
    kind = Decoder(poisoned.model).architecture.kind
    for name in (None, *METHODS):
        if name is None or kind in METHODS[name].kinds:
            draft = foreign_draft if name == "assisted-universal" else None
            assert answered(poisoned, name, draft=draft) == plain, name


@pytest.mark.parametrize("model", ["tiny-transformer", "tiny-hybrid", "tiny-sequential"])
def test_a_recipes_penalty_and_biases_hold_for_every_type(
    model: str, load: Callable[[str], Any], tmp_path: Path
) -> None:
    loaded = load(model)
    plain, prompt = answered(loaded, None), torch.tensor([loaded.tokenizer(PROMPT)["input_ids"]])
    sampler = Sampler(penalty=10.0, bias={plain[0]: -9.0, 40: 2.0})
    biases = [[[token], bias] for token, bias in sampler.bias.items()]
    config = GenerationConfig(
        max_new_tokens=8, eos_token_id=[-1], pad_token_id=0, repetition_penalty=10.0, sequence_bias=biases
    )
    result = loaded.model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    expected = result[0, prompt.shape[1] :].tolist()
    assert expected != plain
    kind = Decoder(loaded.model).architecture.kind
    foreign_draft = universal_draft(tmp_path, {})
    for name in (None, *METHODS):
        if name is None or kind in METHODS[name].kinds:
            draft = foreign_draft if name == "assisted-universal" else None
            assert answered(loaded, name, sampler, draft) == expected, name
