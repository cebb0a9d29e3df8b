"""A causal language model taken apart into what self-speculation may leave out: attention, recurrence, MLP, layers."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from benchctl.engines.transformers.methods import ARCHITECTURES, Architecture, architecture_of

Part = Literal["attention", "recurrent", "mlp", "layer"]


@dataclass(frozen=True)
class Layer:
    """One layer and its parts; a part that it does not have is `None`."""

    whole: torch.nn.Module
    attention: torch.nn.Module | None
    recurrent: torch.nn.Module | None
    mlp: tuple[torch.nn.Module, ...]

    def modules(self, name: Part) -> tuple[torch.nn.Module, ...]:
        """Return the modules of a part; none where the layer does not have it."""
        if name == "mlp":
            return self.mlp
        module = self.whole if name == "layer" else getattr(self, name)
        return () if module is None else (module,)


class UnknownArchitectureError(ValueError):
    """This model remembers more than keys and values, and what that is is not known by name."""


class Decoder:
    """The model and its parts. Logits are `[tokens, vocabulary]`: one request at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.model_type: str = config.model_type
        self.architecture: Architecture = architecture_of(self.model_type)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        if self.architecture.kind == "whole" and not self._keeps_keys_and_values_alone():
            raise UnknownArchitectureError(
                f"`{self.model_type}` keeps a recurrent state, or no cache that can be rolled back; its parts must "
                f"be known by name, and known are {', '.join(ARCHITECTURES)}"
            )
        self.device = model.device
        self.vocabulary: int = config.vocab_size
        self.lanes_in_batches = True
        """Whether recurrent modules read several lanes of one token as they read each alone; the self-test finds out.
        In transformers 5.19 Falcon-H1 with `mamba_rms_norm` mixes them up."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, the first one first; none where the parts are not known."""
        names = self.architecture
        if names.kind == "whole":
            return ()
        return tuple(
            Layer(
                layer,
                getattr(layer, names.attention, None),
                getattr(layer, names.recurrent, None) if names.recurrent else None,
                tuple(found for name in names.mlp if (found := getattr(layer, name, None)) is not None),
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
        given: dict[str, Any] = {
            "position_ids": torch.arange(position, position + len(tokens), device=self.device)[None],
            "logits_to_keep": keep,
        }
        given = {name: value for name, value in given.items() if name in self._takes}
        answer = self.model(input_ids=ids, past_key_values=cache, use_cache=True, **given)
        return answer.logits[0, -keep:]

    def empty_cache(self) -> DynamicCache:
        """Return a cache without tokens.

        Where attention sees a window of the last tokens alone, the cache keeps those before, too: a rollback needs
        them. The mask hides them.
        """
        cache = DynamicCache(config=self.model.config)
        cache.layers = [DynamicLayer() if type(layer) is DynamicSlidingWindowLayer else layer for layer in cache.layers]
        return cache

    def window(self, number: int) -> int | None:
        """Return how many tokens the attention of a layer sees; `None`: all."""
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None)
        if kinds is not None and kinds[number] != "sliding_attention":
            return None
        width: int | None = getattr(config, "sliding_window", None)
        return width

    def _keeps_keys_and_values_alone(self) -> bool:
        if self.model._is_stateful or "past_key_values" not in self._takes:
            return False
        return all(type(layer) is DynamicLayer for layer in self.empty_cache().layers)
