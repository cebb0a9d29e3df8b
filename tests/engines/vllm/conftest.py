"""Fixtures of vLLM's tests: the real program, packages that say what a test wants, models as folders."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.vllm.command import Package
from benchctl.engines.vllm.installation import search
from benchctl.models.files import ModelFile, ResolvedModel
from benchctl.models.huggingface.folder import huggingface_folder

DATA = Path(__file__).parent / "data"


@pytest.fixture(scope="session")
def vllm_program() -> Path:
    """The real vLLM: a missing one is an error of the set-up (`make test` installs it), never a reason to skip."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip(f"vLLM's CPU build is not published for {platform.system()} {platform.machine()}")
    return search("cpu").find().path


@pytest.fixture(scope="session")
def tiny_transformer(tiny_target: Path) -> ResolvedModel:
    """The bundled target of attention layers alone, as vLLM reads it."""
    folder = huggingface_folder(tiny_target.with_name("tiny-transformer.gguf"))
    return ResolvedModel("bundled:tiny-transformer", _files(folder), folder=folder)


def _files(folder: Path) -> tuple[ModelFile, ...]:
    return tuple(ModelFile(file, file.stat().st_size, "0" * 64) for file in sorted(folder.iterdir()))


PACKAGE = Package(
    version="0.32.0+cpu",
    platform="cpu",
    device="cpu",
    prefix=Path("/nonexistent"),
    methods=(
        "custom_class",
        "draft_model",
        "dspark",
        "eagle3",
        "medusa",
        "mlp_speculator",
        "mtp",
        "ngram",
        "ngram_gpu",
        "suffix",
    ),
    keys=(
        "draft_sample_method",
        "method",
        "model",
        "num_speculative_tokens",
        "prompt_lookup_max",
        "prompt_lookup_min",
        "rejection_sample_method",
        "suffix_decoding_max_cached_requests",
        "suffix_decoding_max_tree_depth",
        "use_heterogeneous_vocab",
    ),
    options={
        "--enable-prompt-tokens-details": 0,
        "--gpu-memory-utilization": None,
        "--enforce-eager": 0,
        "--max-logprobs": None,
        "--block-size": None,
    },
    arctic_inference=False,
    torchvision=False,
)


@pytest.fixture
def package() -> Callable[..., Package]:
    """A package as vLLM 0.32 on a CPU describes itself, but for what a test changes."""
    return lambda **changes: replace(PACKAGE, **changes)


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., ResolvedModel]:
    """A model folder with the tensors and the vocabulary that a test wants."""

    def make(name: str, *, layers: tuple[str, ...] = ("self_attn",), words: int = 8, **config: Any) -> ResolvedModel:
        import numpy as np
        from safetensors.numpy import save_file

        home = tmp_path / name
        home.mkdir()
        settings = {"architectures": ["ToyForCausalLM"], "vocab_size": words, "max_position_embeddings": 2048, **config}
        (home / "config.json").write_text(json.dumps(settings))
        tensors = {f"model.layers.0.{layer}.weight": np.zeros((2, 2), np.float32) for layer in layers}
        save_file(tensors, home / "model.safetensors")
        vocabulary = {f"word{number}": number for number in range(words)}
        (home / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
        return ResolvedModel(name, _files(home), folder=home)

    return make
