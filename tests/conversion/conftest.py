"""Bundled models beside their derived Hugging Face folders, each in a server and in transformers once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from benchctl.engines.common.programs import program
from benchctl.engines.llama_cpp.installation import find_tool
from benchctl.models.huggingface.folder import huggingface_folder
from benchctl.models.quantize import quantize_to
from benchctl.models.shipped import BundledModel, bundled_models
from benchctl.recipes.schema import QuantizeSpec
from training.server import Server, running

NO_LANGUAGE_MODELS = {"eagle3"}
"""EAGLE-3 drafts read their target's hidden states: on their own they continue nothing."""

LANGUAGE_MODELS = [model for model in bundled_models() if model.architecture not in NO_LANGUAGE_MODELS]

Stored = Callable[[BundledModel, str], Path]
StartServer = Callable[..., Server]


@dataclass(frozen=True)
class InTransformers:
    """A derived folder in transformers, its numbers in float32."""

    folder: Path

    @cached_property
    def model(self) -> Any:
        """The language model."""
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, with the chat template."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder)

    def tokens(self, text: str) -> list[int]:
        """Tokenize, special tokens in the text included."""
        found: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return found


@pytest.fixture(scope="module", params=LANGUAGE_MODELS, ids=lambda model: model.name)
def bundled(request: pytest.FixtureRequest) -> BundledModel:
    """Every bundled model that writes text, whichever the index lists."""
    model: BundledModel = request.param
    return model


@pytest.fixture(scope="module")
def reference(bundled: BundledModel, tmp_path_factory: pytest.TempPathFactory) -> InTransformers:
    """The model in transformers, from the folder derived of its file."""
    return InTransformers(huggingface_folder(bundled.path, tmp_path_factory.mktemp("derived")))


@pytest.fixture
def start(llama_server: Path, tmp_path: Path) -> Iterator[StartServer]:
    """Start the real server on a file, one thread and one slot; it stops at the end of the test."""
    with ExitStack() as stack:
        yield lambda file, *options: stack.enter_context(
            running(llama_server, file, *options, log=tmp_path / "server.log")
        )


@pytest.fixture(scope="module")
def stored_as(llama_server: Path, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """Return a bundled model's file in another number format, made by llama-quantize once."""
    folder = tmp_path_factory.mktemp("formats")
    tool = program(find_tool("llama-quantize", llama_server))

    def stored(model: BundledModel, kind: str) -> Path:
        if kind == "bf16":
            return model.path
        made = folder / f"{model.name}-{kind}.gguf"
        if not made.is_file():
            quantize_to([model.path], QuantizeSpec(type=kind), tool, made)
        return made

    return stored
