"""Drafting with some of the layers: a share skipped evenly (`self-layerskip`), or the first alone (`self-early-exit`).

Both as in LayerSkip (Elhoushi et al. 2024, https://arxiv.org/abs/2404.16710) but without its training: the final norm
and the output projection read whatever the last layer that runs hands on.
"""

from __future__ import annotations

from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.silencing import Options, SilencingDrafter, UnsuitableError

SKIPPED_SHARE = 0.5


def evenly_skipped(layers: int, share: float) -> list[int]:
    """Return which of so many layers to skip, evenly spaced; the first and the last are kept while others are left."""
    count = min(max(1, round(share * layers)), layers - 1)
    inner = list(range(1, layers - 1))
    if count >= len(inner):
        return sorted([*inner, *([layers - 1] if count > len(inner) else [])])
    step = len(inner) / count
    return [inner[int((number + 0.5) * step)] for number in range(count)]


class SelfLayerSkip(SilencingDrafter):
    """`skip`: the share of layers that is left out, half of them by default."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        if len(decoder.layers) < 2:
            raise UnsuitableError("the model has one layer, and skipping it would leave nothing")
        skipped = evenly_skipped(len(decoder.layers), float(options.get("skip", SKIPPED_SHARE)))
        self.left_out = frozenset((number, "layer") for number in skipped)


class SelfEarlyExit(SilencingDrafter):
    """`exit_layer`: how many of the first layers draft; half of them by default."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        layers = len(decoder.layers)
        last = int(options.get("exit_layer", max(1, layers // 2)))
        if not 0 < last < layers:
            raise UnsuitableError(f"exit_layer is {last}, and the model has {layers} layers: it must be less")
        self.left_out = frozenset((number, "layer") for number in range(last, layers))
