"""The bundled models in torch, in float32 on one thread, and tiny models of random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.models.shipped import bundled_models
from tests.engines.transformers.tiny_models import in_short_chunks

LANGUAGE_MODELS = [model for model in bundled_models() if model.architecture != "eagle3"]
PROMPTS = ("def count_values(items):\n", "料理のこつを教えてください。", "In the beginning")


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the Hugging Face folder of a bundled model by name."""
    cache = tmp_path_factory.mktemp("derived")
    return lambda name: huggingface_folder(next(model.path for model in LANGUAGE_MODELS if model.name == name), cache)


@pytest.fixture(scope="session")
def load(folder_of: Callable[[str], Path]) -> Callable[[str], Any]:
    """Load a bundled model by name, once: `serving.loading.Loaded`."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    loading = pytest.importorskip("benchctl.engines.transformers.serving.loading")
    models: dict[str, Any] = {}

    def loaded(name: str) -> Any:
        if name not in models:
            models[name] = loading.load(folder_of(name), device="cpu", dtype="float32")
            in_short_chunks(models[name].model)
        return models[name]

    return loaded


@pytest.fixture(scope="module", params=LANGUAGE_MODELS, ids=lambda model: model.name)
def bundled(request: pytest.FixtureRequest, load: Callable[[str], Any]) -> Any:
    """Every bundled model that writes text."""
    return load(request.param.name)


@pytest.fixture(scope="module")
def decoder(bundled: Any) -> Any:
    """Every bundled model, taken apart."""
    from benchctl.engines.transformers.serving.decoder import Decoder

    return Decoder(bundled.model)


@pytest.fixture
def jamba() -> Any:
    """A Jamba of random weights: several tokens in one pass forget the recurrent state in transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.JambaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_layer_period=2,
        attn_layer_offset=1,
        num_experts=1,
        num_experts_per_tok=1,
        expert_layer_period=2,
        expert_layer_offset=1,
        mamba_d_state=8,
        mamba_dt_rank=8,
        initializer_range=0.2,
        pad_token_id=0,
    )
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
