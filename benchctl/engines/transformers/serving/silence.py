"""Leaving parts of a model out for a while: a sublayer then adds nothing, a whole layer passes its input on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from benchctl.engines.transformers.serving.decoder import Decoder, Part

Silenced = frozenset[tuple[int, Part]]
"""What is left out: layer numbers from 0, and parts."""


def _no_attention(hidden_states: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor, None]:
    return torch.zeros_like(hidden_states), None


def _nothing(hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return torch.zeros_like(hidden_states)


def _passed_on(hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
    return hidden_states


def _passed_on_in_tuple(hidden_states: torch.Tensor, *_: object, **__: object) -> tuple[torch.Tensor]:
    return (hidden_states,)


@contextmanager
def silenced(decoder: Decoder, parts: Silenced) -> Iterator[None]:
    """Run the model without `parts`, one token at a time.

    What they remember stays as it is, so that layers no longer hold equally many tokens: a mask over several tokens
    would be wrong, and whoever comes back restores a snapshot.
    """
    passed_on = _passed_on_in_tuple if decoder.architecture.in_tuple else _passed_on
    stand_ins = {"attention": _no_attention, "recurrent": _nothing, "mlp": _nothing, "layer": passed_on}
    changed = []
    try:
        for number, name in parts:
            for module in decoder.layers[number].modules(name):
                module.forward = stand_ins[name]
                changed.append(module)
        yield
    finally:
        for module in changed:
            del module.forward
