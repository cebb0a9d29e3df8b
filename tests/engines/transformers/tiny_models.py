"""Tiny models of random weights, one of every architecture that is declared and some that are not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

VOCABULARY = 256
_SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "head_dim": 16,
}
_CHUNK = 16
"""Tokens to which transformers pads every pass of a Mamba layer over several tokens; its 256 take most of a test."""
_SSM = {
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_chunk_size": _CHUNK,
}
_FALCON = {**_SSM, "mamba_d_ssm": 64, "head_dim": 16}
_GRANITE = {**_SSM, "mamba_expand": 1, "layer_types": ["linear_attention", "full_attention"] * 2}
DECLARED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "falcon_h1": ("falcon_h1", _FALCON),
    "falcon_h1, gated norm": ("falcon_h1", {**_FALCON, "mamba_rms_norm": True}),
    "qwen3_5": ("qwen3_5_text", _LINEAR),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen3, window": (
        "qwen3",
        {"head_dim": 16, "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
    ),
    "llama": ("llama", {}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 8}),
    "olmo2": ("olmo2", {}),
    "qwen3_moe": ("qwen3_moe", _EXPERTS),
    "smollm3": ("smollm3", {}),
    "granite": ("granite", {}),
    "phi3, window": ("phi3", {"sliding_window": 8}),
    "qwen3_next": ("qwen3_next", {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3_5_moe": ("qwen3_5_moe_text", {**_LINEAR, **_EXPERTS, "shared_expert_intermediate_size": 32}),
    "granitemoehybrid": ("granitemoehybrid", {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"] * 2}),
}
"""By a name: the model type, and what of its configuration differs from `_SIZES`."""

WHOLE: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "opt": ("opt", {"word_embed_proj_dim": 64, "ffn_dim": 96}),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma3, window": ("gemma3_text", {"head_dim": 16, "sliding_window": 8}),
    "bloom": ("bloom", {}),
}
"""Of no declared architecture."""


def in_short_chunks(model: Any) -> None:
    """Have the Mamba layers of a model that was loaded compute over few tokens at a time."""
    for module in model.modules():
        if hasattr(module, "chunk_size"):
            module.chunk_size = _CHUNK


def loaded(model_type: str, tokenizer: Any = None, seed: int = 0, **changed: Any) -> Any:
    """Return a model as the server has it, without a folder: `serving.loading.Loaded`."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.AutoConfig.for_model(model_type, **{**_SIZES, **changed})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = transformers.GenerationConfig()
    return SimpleNamespace(folder=Path(), model=model, tokenizer=tokenizer, ends=frozenset(), context=256)


def decoded(
    decoder: Any, prompt: Sequence[int], tokens: int, way: Any = None, sampler: Any = None, *ends: int
) -> tuple[Any, list[int]]:
    """Decode an answer of at most so many tokens with `way`; return it, and its tokens."""
    from benchctl.engines.transformers.serving.answering import Answer
    from benchctl.engines.transformers.serving.decode import Sampler, Task

    answer = Answer(decoder, Task(prompt, tokens, (sampler or Sampler()).chooser(), frozenset(ends)), way)
    answer.run(lambda step: None)
    return answer, [token for step in answer.steps for token in step.tokens]


_ADAPTERS = TemporaryDirectory()


def untrained_adapter(decoder: Any) -> Path | None:
    """Return the folder of a Kangaroo adapter of random weights; `None` for a hybrid, which has none."""
    import torch
    from safetensors.torch import save_file

    from benchctl.engines.transformers.serving.drafters.kangaroo import Adapter

    if decoder.architecture.kind != "attention":
        return None
    torch.manual_seed(0)
    folder = Path(_ADAPTERS.name)
    save_file(Adapter(decoder).state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"exit_layer": 1}))
    return folder


TEXT = "the cat sat on the mat and the dog sat on the log while the cat and the dog ate the fish of the house"


def byte_tokenizer(words: int) -> Any:
    """A byte-level BPE of so many tokens, trained on a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=words, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
