"""A causal language model taken apart into what self-speculation may leave out: attention, recurrence, MLP, layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from transformers import Cache, PreTrainedModel

from benchctl.engines.transformers.methods import ARCHITECTURES, Architecture

Part = Literal["attention", "recurrent", "mlp", "layer"]


@dataclass(frozen=True)
class Layer:
    """One layer and its parts; a part that it does not have is `None`."""

    whole: torch.nn.Module
    attention: torch.nn.Module | None
    recurrent: torch.nn.Module | None
    mlp: torch.nn.Module | None

    def part(self, name: Part) -> torch.nn.Module | None:
        """Return the module of a part."""
        found: torch.nn.Module | None = self.whole if name == "layer" else getattr(self, name)
        return found


class UnknownArchitectureError(ValueError):
    """The parts of this model are not known by name."""


class Decoder:
    """The model and its parts. Logits are `[tokens, vocabulary]`: one request at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.model_type: str = config.model_type
        if self.model_type not in ARCHITECTURES:
            known = ", ".join(ARCHITECTURES)
            raise UnknownArchitectureError(f"the parts of `{self.model_type}` are not known by name; known: {known}")
        if getattr(config, "sliding_window", None) and "sliding_attention" in (config.layer_types or ()):
            raise UnknownArchitectureError("attention in a sliding window forgets what a rollback would need")
        self.architecture: Architecture = ARCHITECTURES[self.model_type]
        self.device = model.device
        self.vocabulary: int = config.vocab_size
        self.lanes_in_batches = True
        """Whether recurrent modules read several lanes of one token as they read each alone; the self-test finds out.
        In transformers 5.19 Falcon-H1 with `mamba_rms_norm` mixes them up."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, the first one first."""
        names = self.architecture
        return tuple(
            Layer(
                layer,
                getattr(layer, names.attention, None),
                getattr(layer, names.recurrent, None) if names.recurrent else None,
                getattr(layer, names.mlp, None),
            )
            for layer in self.model.get_decoder().layers
        )

    @property
    def recurrent(self) -> tuple[torch.nn.Module, ...]:
        """The recurrent modules, whose state cannot be cropped."""
        return tuple(layer.recurrent for layer in self.layers if layer.recurrent is not None)

    def forward(self, tokens: Sequence[int], position: int, cache: Cache, *, keep: int) -> torch.Tensor:
        """Read tokens from `position` on; return the logits after the last `keep` of them.

        Positions are always given: some models count them wrongly from a cache that parts of them left out.
        """
        ids = torch.tensor([tokens], device=self.device)
        places = torch.arange(position, position + len(tokens), device=self.device)[None]
        answer = self.model(
            input_ids=ids, position_ids=places, past_key_values=cache, use_cache=True, logits_to_keep=keep
        )
        return answer.logits[0]
