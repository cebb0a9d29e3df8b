"""What a model remembers of the tokens it has read, and how that is undone exactly.

Keys and values grow by concatenation, so that older tensors stay as they were and going back is keeping a reference.
Convolution and recurrent states are updated in place, so they are copied. Part of a verified draft is kept by restoring
the recurrent states and having the recurrent modules alone read what they were given, as far as it was accepted: what
enters a module at a position does not depend on what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from benchctl.engines.transformers.serving.decoder import Decoder

_STATES = ("conv_states", "recurrent_states")


@dataclass(frozen=True)
class Snapshot:
    """A state to go back to."""

    read: int
    keys_values: tuple[tuple[torch.Tensor, torch.Tensor] | None, ...]
    copies: tuple[dict[tuple[str, int], Any] | None, ...]


class State:
    """The caches of one request, shared by drafting and verification."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.read = 0
        """How many tokens it holds."""
        self.cache = decoder.empty_cache()
        self._inputs: list[tuple[torch.nn.Module, torch.Tensor, dict[str, object]]] = []

    def advance(self, tokens: Sequence[int], *, keep: int = 1) -> torch.Tensor:
        """Read tokens; return the logits after the last `keep`, `[keep, vocabulary]`."""
        logits = self.decoder.forward(tokens, self.read, self.cache, keep=keep)
        self.read += len(tokens)
        return logits

    def snapshot(self) -> Snapshot:
        """Remember the state as it is."""
        layers = self.cache.layers
        return Snapshot(
            self.read,
            tuple((layer.keys, layer.values) if hasattr(layer, "keys") else None for layer in layers),
            tuple(_copies(layer) if hasattr(layer, "conv_states") else None for layer in layers),
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot, bit for bit; it may be restored again."""
        self.read = snapshot.read
        for layer, pair in zip(self.cache.layers, snapshot.keys_values, strict=True):
            if pair is not None:
                layer.keys, layer.values = pair
        self._restore_recurrent(snapshot)

    def verify(self, tokens: Sequence[int]) -> torch.Tensor:
        """Read tokens in one pass, ready to keep some of them alone; logits after each, `[tokens, vocabulary]`."""
        with self._recording():
            return self.advance(tokens, keep=len(tokens))

    def keep(self, snapshot: Snapshot, tokens: int) -> None:
        """Forget all but the first `tokens` of what was verified since `snapshot`."""
        surplus = self.read - snapshot.read - tokens
        if surplus == 0:
            return
        for layer, pair in zip(self.cache.layers, snapshot.keys_values, strict=True):
            if pair is not None:
                layer.keys, layer.values = layer.keys[..., :-surplus, :], layer.values[..., :-surplus, :]
        self.read -= surplus
        self._restore_recurrent(snapshot)
        for module, inputs, rest in self._inputs:
            module.forward(hidden_states=inputs[:, :tokens], **rest)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor of the state by name."""
        for number, layer in enumerate(self.cache.layers):
            if hasattr(layer, "keys") and layer.keys is not None:
                yield f"{number}.keys", layer.keys
                yield f"{number}.values", layer.values
            for (name, place), tensor in (_copies(layer) if hasattr(layer, "conv_states") else {}).items():
                if isinstance(tensor, torch.Tensor):
                    yield f"{number}.{name}.{place}", tensor

    def _restore_recurrent(self, snapshot: Snapshot) -> None:
        for layer, copies in zip(self.cache.layers, snapshot.copies, strict=True):
            for (name, place), value in (copies or {}).items():
                if isinstance(value, torch.Tensor):
                    getattr(layer, name)[place].copy_(value)
                else:
                    getattr(layer, name)[place] = value

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Note what enters the recurrent modules."""
        self._inputs = []
        modules = self.decoder.recurrent
        for module in modules:
            module.forward = self._noting(module)
        try:
            yield
        finally:
            for module in modules:
                del module.forward

    def _noting(self, module: torch.nn.Module) -> Callable[..., torch.Tensor]:
        forward = module.forward

        def noted(hidden_states: torch.Tensor, **rest: object) -> torch.Tensor:
            self._inputs.append((module, hidden_states, rest))
            read: torch.Tensor = forward(hidden_states=hidden_states, **rest)
            return read

        return noted


def _copies(layer: CacheLayerMixin) -> dict[tuple[str, int], Any]:
    copied: dict[tuple[str, int], Any] = {
        (name, place): tensor.clone()
        for name in _STATES
        for place, tensor in getattr(layer, name).items()
        if tensor is not None
    }
    return copied | {("has_previous_state", place): known for place, known in layer.has_previous_state.items()}
