"""Drafting with the recurrent part of a hybrid: attention adds nothing.

In a parallel hybrid every layer keeps its recurrent branch (`self-ssm`); in a sequential one the attention layers pass
their input on (`self-linear`). Not specified by the ablation study that proposes this: the MLP of a silenced attention
layer stays, unless `mlp: false` has it left out as well.
"""

from __future__ import annotations

from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.silencing import Options, SilencingDrafter
from benchctl.engines.transformers.serving.silence import Silenced


def _attention_layers(decoder: Decoder) -> list[int]:
    return [number for number, layer in enumerate(decoder.layers) if layer.attention is not None]


class SelfSsm(SilencingDrafter):
    """Parallel hybrids: the attention branch of every layer is silent."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        self.left_out = frozenset((number, "attention") for number in _attention_layers(decoder))


class SelfLinear(SilencingDrafter):
    """Sequential hybrids: attention layers pass their input on."""

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder)
        part = "attention" if options.get("mlp", True) else "layer"
        left_out: Silenced = frozenset((number, part) for number in _attention_layers(decoder))  # type: ignore[misc]
        self.left_out = left_out
