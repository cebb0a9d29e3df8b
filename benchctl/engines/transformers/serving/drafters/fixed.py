"""Drafting with a fixed part of the target: without its attention, or with some of its layers.

`self-ssm`, `self-linear`: the recurrent part of a hybrid. In a parallel hybrid every layer keeps its recurrent branch;
in a sequential hybrid the attention layers pass their input on. Not specified by the ablation study that proposes this:
the MLP of such a layer stays, unless `mlp: false` has it left out as well. `self-layerskip`, `self-early-exit`: a share
of the layers skipped evenly, or the first alone, as in LayerSkip (Elhoushi et al. 2024,
https://arxiv.org/abs/2404.16710) but without its training: the final norm and the output projection read whatever the
last layer that runs hands on. `self-skip`: what the recipe lists.
"""

from __future__ import annotations

from benchctl.engines.transformers.serving.decoder import Decoder, Part, Parts
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfDrafter, UnsuitableError

SKIPPED_SHARE = 0.5


def evenly_skipped(layers: int, share: float) -> list[int]:
    """Return which of so many layers to skip, evenly spaced; the first and the last are kept while others are left."""
    count = min(max(1, round(share * layers)), layers - 1)
    inner = list(range(1, layers - 1))
    if count >= len(inner):
        return sorted([*inner, *([layers - 1] if count > len(inner) else [])])
    step = len(inner) / count
    return [inner[int((number + 0.5) * step)] for number in range(count)]


class SelfLayerSkip(SelfDrafter):
    """`skip`: the share of layers that is left out, half of them by default."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        if len(decoder.layers) < 2:
            raise UnsuitableError("the model has one layer, and skipping it would leave nothing")
        skipped = evenly_skipped(len(decoder.layers), float(options.get("skip", SKIPPED_SHARE)))
        self.left_out = frozenset((number, "layer") for number in skipped)


_LISTS: dict[str, Part] = {"layers": "layer", "attention": "attention", "recurrent": "recurrent", "mlp": "mlp"}


class SelfSkip(SelfDrafter):
    """`layers`, `attention`, `recurrent`, `mlp`: numbers, from 0, of layers that are skipped, or lose that part."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        listed = [(name, number) for name in _LISTS for number in options.get(name, ())]
        if not listed:
            raise UnsuitableError(f"it needs a list of layers in its options: {', '.join(_LISTS)}")
        count = len(decoder.layers)
        for name, number in listed:
            if number >= count:
                raise UnsuitableError(f"{name} has {number}, and the model has layers 0 to {count - 1}")
            if not decoder.layers[number].modules(_LISTS[name]):
                raise UnsuitableError(f"{name} has {number}, a layer without that part")
        self.left_out = frozenset((number, _LISTS[name]) for name, number in listed)
        if all((number, "layer") in self.left_out for number in range(count)):
            raise UnsuitableError("layers lists all of them, and skipping them would leave nothing")


class SelfEarlyExit(SelfDrafter):
    """`exit_layer`: how many of the first layers draft; half of them by default."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        layers = len(decoder.layers)
        last = int(options.get("exit_layer", max(1, layers // 2)))
        if not 0 < last < layers:
            raise UnsuitableError(f"exit_layer is {last}, and the model has {layers} layers: it must be less")
        self.left_out = frozenset((number, "layer") for number in range(last, layers))


def _attention_layers(decoder: Decoder) -> list[int]:
    return [number for number, layer in enumerate(decoder.layers) if layer.attention is not None]


class SelfSsm(SelfDrafter):
    """Parallel hybrids: the attention branch of every layer is silent."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        self.left_out = frozenset((number, "attention") for number in _attention_layers(decoder))


class SelfLinear(SelfDrafter):
    """Sequential hybrids: attention layers pass their input on."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        part = "attention" if options.get("mlp", True) else "layer"
        left_out: Parts = frozenset((number, part) for number in _attention_layers(decoder))  # type: ignore[misc]
        self.left_out = left_out
