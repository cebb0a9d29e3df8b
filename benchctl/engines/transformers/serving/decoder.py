"""A causal language model taken apart into what self-speculation may leave out, and its memory of the tokens read.

Keys and values are appended to a buffer, so that what was read before stays as it was and going back is a length.
Convolution and recurrent states are updated in place, so they are copied. Part of a verified draft is kept by restoring
the recurrent states and having the recurrent modules alone read what they were given, as far as it was accepted: what
enters a module at a position does not depend on what follows.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    CacheLayerMixin,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
)

from benchctl.engines.transformers.methods import ARCHITECTURES, WHOLE, Architecture
from benchctl.engines.transformers.serving import UnsuitableError

Part = Literal["attention", "recurrent", "mlp", "layer"]


@dataclass(frozen=True)
class Layer:
    """A layer and its parts."""

    module: torch.nn.Module
    architecture: Architecture

    def modules(self, part: Part) -> tuple[torch.nn.Module, ...]:
        """Return the modules of a part; none where the layer does not have it."""
        if part == "layer":
            return (self.module,)
        named_so = (getattr(self.module, name, None) for name in getattr(self.architecture, part))
        return tuple(module for module in named_so if module is not None)


_ROOM = 64
"""Tokens that a buffer of keys and values has room for beyond those that it must hold, or a 32nd of them."""


class GrowingLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values `[1, heads, tokens, width]` as views of buffers, which new ones are written into.

    A shorter view is an older state. transformers' own layer copies everything with every token, and a reference to an
    older state keeps all of that alive.
    """

    buffers: Mapping[str, torch.Tensor] = MappingProxyType({})

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **keywords: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append; return all keys and values."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.get_seq_length()
        after = before + key_states.shape[-2]
        for name, new in (("keys", key_states), ("values", value_states)):
            buffer = self.buffers.get(name)
            if buffer is None or buffer.shape[-2] < after:
                buffer = new.new_empty((*new.shape[:-2], after + max(_ROOM, after // 32), new.shape[-1]))
                if before:
                    buffer[..., :before, :] = getattr(self, name)
                self.buffers = {**self.buffers, name: buffer}
            buffer[..., before:after, :] = new
            setattr(self, name, buffer[..., :after, :])
        return self.keys, self.values


class _GrowingParallelLayer(GrowingLayer, LinearAttentionAndFullAttentionLayer):  # type: ignore[misc]
    """The same for a layer that also has a recurrent state."""


def _growing(layer: CacheLayerMixin) -> CacheLayerMixin:
    """Return what to keep a layer's tokens in. Where attention sees a window of the last tokens alone, it keeps those
    before, too: a rollback needs them, and the mask hides them."""
    if type(layer) is LinearAttentionAndFullAttentionLayer:
        return _GrowingParallelLayer(number_of_states=layer.number_of_states)
    return GrowingLayer() if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) else layer


class Tokens(DynamicCache):  # type: ignore[misc]
    """The cache of a request. Masks are made for `read` tokens, whichever layers hold them.

    transformers asks the first layer, which holds fewer where a draft leaves it out.
    """

    read = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens came before those that are being read."""
        return self.read

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many tokens a mask over so many new ones covers, and the first of them."""
        return self.read + query_length, 0


class Decoder:
    """The model and its parts. Logits are `[tokens, vocabulary]`: one request at a time."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        config = model.config.get_text_config()
        self.model_type: str = config.model_type
        self.architecture: Architecture = ARCHITECTURES.get(self.model_type, WHOLE)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        cached = not self.model._is_stateful and "past_key_values" in self._takes
        if self.architecture.kind == "whole" and not (
            cached and all(type(layer) is GrowingLayer for layer in self.empty_cache().layers)
        ):
            raise UnsuitableError(
                f"`{self.model_type}` keeps a recurrent state, or no cache that can be rolled back; its parts must "
                f"be known by name, and known are {', '.join(ARCHITECTURES)}",
                "Take another model.",
            )
        self.device = model.device
        self.vocabulary: int = config.vocab_size
        self.variants_in_batches = True
        """Whether recurrent modules read several variants of a token as they read each alone; the self-test finds out.
        In transformers 5.19 Falcon-H1 with `mamba_rms_norm` mixes them up."""

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """The layers in order; none where the parts are not known."""
        if self.architecture.kind == "whole":
            return ()
        return tuple(Layer(layer, self.architecture) for layer in self.model.get_decoder().layers)

    @property
    def recurrent(self) -> tuple[torch.nn.Module, ...]:
        """The recurrent modules, whose state cannot be cropped."""
        return tuple(module for layer in self.layers for module in layer.modules("recurrent"))

    def forward(self, tokens: Sequence[int], position: int, cache: Tokens, *, keep: int) -> torch.Tensor:
        """Read tokens from `position` on; return the logits after the last `keep` of them.

        Positions are always given: some models count them wrongly from a cache that parts of them left out.
        """
        cache.read = position
        ids = torch.tensor([tokens], device=self.device)
        arguments: dict[str, Any] = {
            "position_ids": torch.arange(position, position + len(tokens), device=self.device)[None],
            "logits_to_keep": keep,
        }
        arguments = {name: value for name, value in arguments.items() if name in self._takes}
        answer = self.model(input_ids=ids, past_key_values=cache, use_cache=True, **arguments)
        return answer.logits[0, -keep:]

    def empty_cache(self) -> Tokens:
        """Return a cache without tokens."""
        cache = Tokens(config=self.model.config)
        cache.layers = [_growing(layer) for layer in cache.layers]
        return cache

    def window(self, number: int) -> int | None:
        """Return how many tokens the attention of a layer sees; `None`: all."""
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None)
        if kinds is not None and kinds[number] != "sliding_attention":
            return None
        width: int | None = getattr(config, "sliding_window", None)
        return width


Parts = frozenset[tuple[int, Part]]
"""What is left out: pairs of a layer number, from 0, and a part."""


def named(parts: Parts) -> list[str]:
    """Return the names of parts in order, such as `3.attention`."""
    return [f"{layer}.{part}" for layer, part in sorted(parts)]


@contextmanager
def replaced(forwards: Mapping[torch.nn.Module, Callable[..., object]]) -> Iterator[None]:
    """Replace the forward functions of modules for a while."""
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module in forwards:
            vars(module).pop("forward", None)


def without(decoder: Decoder, parts: Parts) -> AbstractContextManager[None]:
    """Run the model without `parts`, token by token.

    What they remember stays as it is, so that layers no longer hold equally many tokens: a mask over several tokens
    would be wrong, and whoever comes back restores a snapshot.
    """
    in_tuple = decoder.architecture.in_tuple
    stand_ins: dict[Part, Callable[..., object]] = {
        "attention": lambda hidden_states, *_, **__: (torch.zeros_like(hidden_states), None),
        "recurrent": lambda hidden_states, *_, **__: torch.zeros_like(hidden_states),
        "mlp": lambda hidden_states, *_, **__: torch.zeros_like(hidden_states),
        "layer": lambda hidden_states, *_, **__: (hidden_states,) if in_tuple else hidden_states,
    }
    modules = {module: name for number, name in parts for module in decoder.layers[number].modules(name)}
    return replaced({module: stand_ins[name] for module, name in modules.items()})


_STATES = ("conv_states", "recurrent_states", "has_previous_state")
"""Attributes of a layer's cache in transformers that hold a recurrent state."""


@dataclass(frozen=True)
class Snapshot:
    """A state to go back to: its length, and copies of the recurrent states."""

    read: int
    copies: tuple[dict[tuple[str, int], Any], ...]

    def beside(self, number: int, layer: CacheLayerMixin, variants: int) -> CacheLayerMixin:
        """Return a layer's cache as it was, beside the real cache; recurrent states once a variant."""
        copied = copy.copy(layer)
        if _holds_tokens(layer):
            copied.keys, copied.values = layer.keys[..., : self.read, :], layer.values[..., : self.read, :]
            copied.buffers = {}
        for name in _STATES:
            if hasattr(layer, name):
                setattr(copied, name, dict(getattr(layer, name)))
        for (name, index), value in self.copies[number].items():
            repeated = value.expand(variants, *value.shape[1:]).clone() if isinstance(value, torch.Tensor) else value
            getattr(copied, name)[index] = repeated
        return copied


class State:
    """The caches of a request, shared by drafting and verification."""

    def __init__(self, decoder: Decoder, tokens: Sequence[int] = ()) -> None:
        """`tokens`: what to read first."""
        self.decoder = decoder
        self.read = 0
        """Number of tokens that were read."""
        self.cache = decoder.empty_cache()
        self._inputs: list[tuple[torch.nn.Module, dict[str, Any]]] = []
        if tokens:
            self.advance(tokens)

    def advance(self, tokens: Sequence[int], *, keep: int = 1) -> torch.Tensor:
        """Read tokens; return the logits after the last `keep`, `[keep, vocabulary]`."""
        logits = self.decoder.forward(tokens, self.read, self.cache, keep=keep)
        self.read += len(tokens)
        return logits

    def snapshot(self) -> Snapshot:
        """Remember the state as it is."""
        copies = (
            {key: value.clone() if torch.is_tensor(value) else value for key, value in _remembered(layer)}
            for layer in self.cache.layers
        )
        return Snapshot(self.read, tuple(copies))

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, bit for bit. It may be restored again, but nothing later may be: see `rewound`."""
        self._crop(snapshot.read)
        self._restore_recurrent(snapshot)

    @contextmanager
    def rewound(self, snapshot: Snapshot) -> Iterator[None]:
        """Be at an older snapshot for a while, and read other tokens there; afterwards all is as it was."""
        now = self.snapshot()
        later = [
            (layer, layer.keys[..., snapshot.read :, :].clone(), layer.values[..., snapshot.read :, :].clone())
            for layer in self.cache.layers
            if _holds_tokens(layer)
        ]
        self.restore(snapshot)
        try:
            yield
        finally:
            self._crop(snapshot.read)
            for layer, keys, values in later:
                layer.update(keys, values)
            self.read = now.read
            self._restore_recurrent(now)

    def verify(self, tokens: Sequence[int], *, keep: int | None = None) -> torch.Tensor:
        """Read tokens in a single pass, ready to keep some of them alone; logits after each, or after the last `keep`,
        `[tokens, vocabulary]`."""
        with self._recording():
            return self.advance(tokens, keep=keep or len(tokens))

    def keep(self, snapshot: Snapshot, tokens: int) -> None:
        """Forget all but the first `tokens` of what was verified since `snapshot`."""
        surplus = self.read - snapshot.read - tokens
        if surplus == 0:
            return
        self._crop(self.read - surplus)
        self._restore_recurrent(snapshot)
        for module, inputs in self._inputs:
            module.forward(**{**inputs, "hidden_states": inputs["hidden_states"][:, :tokens]})

    def rebuild(self, before: Tokens, read: int) -> None:
        """Do as `keep`, so that `read` tokens remain, but crop and restore nothing: `before` is a copy of the cache
        before what was verified, and takes their keys and values. For replay, which must not repeat a fault of `keep`.
        """
        surplus = self.read - read
        for kept, layer in zip(before.layers, self.cache.layers, strict=True):
            if _holds_tokens(layer):
                start = kept.keys.shape[-2] if _holds_tokens(kept) else 0
                kept.update(layer.keys[..., start:-surplus, :], layer.values[..., start:-surplus, :])
        for module, inputs in self._inputs:
            of_kept = {name: before if value is self.cache else value for name, value in inputs.items()}
            module.forward(**{**of_kept, "hidden_states": inputs["hidden_states"][:, :-surplus]})
        self.cache, self.read = before, read

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of the state by name."""
        for number, layer in enumerate(self.cache.layers):
            if _holds_tokens(layer):
                yield f"{number}.keys", layer.keys
                yield f"{number}.values", layer.values
            for (name, index), value in _remembered(layer):
                if isinstance(value, torch.Tensor):
                    yield f"{number}.{name}.{index}", value

    def _crop(self, read: int) -> None:
        """Forget the keys and values after so many tokens."""
        for layer in self.cache.layers:
            if _holds_tokens(layer):
                assert layer.keys.shape[-2] >= read, "a later state is not kept; see `rewound`"
                layer.keys, layer.values = layer.keys[..., :read, :], layer.values[..., :read, :]
        self.read = read

    def _restore_recurrent(self, snapshot: Snapshot) -> None:
        for layer, copies in zip(self.cache.layers, snapshot.copies, strict=True):
            for (name, index), value in copies.items():
                if isinstance(value, torch.Tensor):
                    getattr(layer, name)[index].copy_(value)
                else:
                    getattr(layer, name)[index] = value

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Record the inputs of the recurrent modules."""
        self._inputs = []

        def note(module: torch.nn.Module, positional: tuple[torch.Tensor, ...], keywords: dict[str, Any]) -> None:
            self._inputs.append((module, {"hidden_states": positional[0], **keywords} if positional else keywords))

        with ExitStack() as hooks:
            for module in self.decoder.recurrent:
                hooks.enter_context(module.register_forward_pre_hook(note, with_kwargs=True))
            yield


def _holds_tokens(layer: CacheLayerMixin) -> bool:
    return getattr(layer, "keys", None) is not None


def _remembered(layer: CacheLayerMixin) -> Iterator[tuple[tuple[str, int], Any]]:
    """Yield the recurrent state of a layer: tensors, and flags whether a tensor is in use."""
    for name in _STATES:
        for index, value in getattr(layer, name, {}).items():
            if value is not None:
                yield (name, index), value
