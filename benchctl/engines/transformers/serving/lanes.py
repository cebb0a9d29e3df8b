"""Several drafts tried side by side: the same few tokens, read by the model without different parts of it.

Every part is called as its own layer calls it, the layer's other parts silent, so that norms and multipliers are the
model's own. Attention and MLP read all lanes in one row, a mask keeping each lane to itself, so that the keys and
values of the past are not copied; recurrent parts read them as a batch, or one by one where they mix up a batch. The
state is as it was afterwards, to the very tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import CacheLayerMixin

from benchctl.engines.transformers.serving.decoder import Decoder, Part
from benchctl.engines.transformers.serving.silence import Silenced, silenced
from benchctl.engines.transformers.serving.state import Snapshot, State

Item = tuple[int, Part]
"""A part of a layer that can be left out on its own."""
_PARTS: tuple[Part, ...] = ("attention", "recurrent", "mlp")
_STATES = ("conv_states", "recurrent_states", "has_previous_state")
_HEAD_TOKENS = 64
"""How many tokens' logits are held at once."""


def items_of(decoder: Decoder, number: int) -> tuple[Item, ...]:
    """Return the parts of a layer in the order in which they add to its hidden states."""
    layer = decoder.layers[number]
    return tuple((number, part) for part in _PARTS if layer.modules(part))


def inner_layers(decoder: Decoder) -> range:
    """Return the layers that a search may leave out: all but the first and the last; of two layers the second."""
    layers = len(decoder.layers)
    return range(1, max(layers - 1, min(layers, 2)))


def inner_items(decoder: Decoder) -> tuple[Item, ...]:
    """Return the parts of those layers."""
    return tuple(item for number in inner_layers(decoder) for item in items_of(decoder, number))


class Lanes:
    """Reads `tokens` from `anchor` on in any number of lanes. Hidden states are `[lanes, tokens, hidden]`."""

    def __init__(self, decoder: Decoder, state: State, anchor: Snapshot, tokens: Sequence[int]) -> None:
        self._decoder, self._cache, self._anchor = decoder, state.cache, anchor
        self._length = len(tokens)
        self._layers = decoder.layers
        taken: dict[str, Any] = {}

        def take(hidden_states: torch.Tensor, **given: object) -> torch.Tensor | tuple[torch.Tensor]:
            taken.update(given, hidden=hidden_states)
            return (hidden_states,) if decoder.architecture.in_tuple else hidden_states

        with _only(decoder, take), self._placed(range(len(self._layers)), 1):
            decoder.forward(tokens, anchor.read, state.cache, keep=1)
        self.first: torch.Tensor = taken.pop("hidden")
        """What enters the first layer, as one lane."""
        self._given = taken
        self._rows: dict[tuple[int, int | None], dict[str, Any]] = {}

    def apply(self, item: Item, hidden: torch.Tensor, entered: torch.Tensor) -> torch.Tensor:
        """Return `hidden` after a part has added to it; `entered` is what entered its layer.

        Only where attention and recurrence stand side by side do the two differ: both read what entered.
        """
        number, part = item
        lanes, length, width = hidden.shape
        source = entered if part == "recurrent" else hidden
        others: Silenced = frozenset((number, other) for other in _PARTS if other != part)
        if part == "recurrent":
            batches = source.split(lanes if self._decoder.lanes_in_batches else 1)
            given = {**self._given, "attention_mask": None}
        else:
            batches, given = (
                (source.reshape(1, lanes * length, width),),
                self._in_one_row(lanes, self._decoder.window(number)),
            )
        answers = []
        for rows in batches:
            with silenced(self._decoder, others), self._placed([number], len(rows)):
                answer = self._layers[number].whole(rows, **given)
            answers.append(answer[0] if isinstance(answer, tuple) else answer)
        read = torch.cat(answers).reshape(lanes, length, width)
        return read if source is hidden else hidden + (read - source)

    def likeliest(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the likeliest token after each, `[lanes, tokens]`, from what the last layer hands on."""
        rows = hidden.reshape(1, -1, hidden.shape[-1])
        parts = [
            logits_of(self._decoder, rows[:, at : at + _HEAD_TOKENS]) for at in range(0, rows.shape[1], _HEAD_TOKENS)
        ]
        return torch.cat([part.argmax(-1) for part in parts]).reshape(hidden.shape[:2])

    def _in_one_row(self, lanes: int, window: int | None) -> dict[str, Any]:
        """Return what a layer is given beside hidden states where all lanes are one row; kept from part to part."""
        if (lanes, window) not in self._rows:
            self._rows[lanes, window] = self._make_row(lanes, window)
        return self._rows[lanes, window]

    def _make_row(self, lanes: int, window: int | None) -> dict[str, Any]:
        device, length, past = self._decoder.device, self._length, self._anchor.read
        own = torch.block_diag(*[torch.ones(length, length, device=device).tril()] * lanes).bool()
        mask = torch.cat([torch.ones(lanes * length, past, dtype=torch.bool, device=device), own], -1)
        if window is not None:
            rows = torch.arange(past, past + length, device=device).repeat(lanes)
            mask &= rows[:, None] - torch.cat([torch.arange(past, device=device), rows]) < window
        given = {**self._given, "attention_mask": mask[None, None]}
        if (places := given.get("position_ids")) is not None:
            given["position_ids"] = torch.cat([places] * lanes, -1)
        if (rotations := given.get("position_embeddings")) is not None:
            given["position_embeddings"] = tuple(torch.cat([part] * lanes, -2) for part in rotations)
        return given

    @contextmanager
    def _placed(self, numbers: Sequence[int], lanes: int) -> Iterator[None]:
        """Have the caches of some layers hold the anchor, recurrent states once a lane."""
        layers = [(self._cache.layers[number], number) for number in numbers]
        known = [_references(layer) for layer, _ in layers]
        try:
            for layer, number in layers:
                pair, copies = self._anchor.keys_values[number], self._anchor.copies[number]
                if pair is not None:
                    layer.keys, layer.values = pair
                for (name, place), value in (copies or {}).items():
                    one = value
                    if isinstance(value, torch.Tensor):
                        one = value.expand(lanes, *value.shape[1:]).clone()
                    getattr(layer, name)[place] = one
            yield
        finally:
            for (layer, _), (pair, states) in zip(layers, known, strict=True):
                if pair is not None:
                    layer.keys, layer.values = pair
                for name, value in states.items():
                    setattr(layer, name, value)


def logits_of(decoder: Decoder, hidden: torch.Tensor) -> torch.Tensor:
    """Return the logits after what the last layer would hand on, `[1, tokens, hidden]` to `[tokens, vocabulary]`."""

    def put(hidden_states: torch.Tensor, **_: object) -> torch.Tensor | tuple[torch.Tensor]:
        return (hidden,) if decoder.architecture.in_tuple else hidden

    count = hidden.shape[1]
    with _only(decoder, put):
        return decoder.forward([0] * count, 0, State(decoder).cache, keep=count)


@contextmanager
def _only(decoder: Decoder, first: Callable[..., object]) -> Iterator[None]:
    """Run the model without its layers; `first` stands in for the first one."""
    others: Silenced = frozenset((number, "layer") for number in range(1, len(decoder.layers)))
    whole = decoder.layers[0].whole
    whole.forward = first
    try:
        with silenced(decoder, others):
            yield
    finally:
        del whole.forward


def _references(layer: CacheLayerMixin) -> tuple[tuple[Any, Any] | None, dict[str, dict[int, Any]]]:
    pair = (layer.keys, layer.values) if hasattr(layer, "keys") else None
    return pair, {name: dict(getattr(layer, name)) for name in _STATES if hasattr(layer, name)}
