"""`self-clasp`: which layers are skipped is chosen anew from the context, every so many rounds.

CLaSp (Chen et al. 2025, https://arxiv.org/abs/2505.24196): a dynamic programme over layers and the number of layers
skipped keeps, for each, the way whose hidden states are most like the whole model's; the best set of `skip` of the
layers drafts next. Where the paper does not specify it, or where this differs:

- it compares at the last token that was verified. Here it is the token that is read next: the whole model's hidden
  states at it are a variant, too, so that nothing has to be kept of the verification, and recurrent states fit.
- the first and the last layer always run; in a hybrid a layer is skipped whole.
- how often: `interval` rounds, 16, and how soon a draft ends: after a token below `confidence`, 0.7.
"""

from __future__ import annotations

from typing import ClassVar

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfDrafter
from benchctl.engines.transformers.serving.variants import Choice, Variants, inner_layers, items_of, search


class SelfClasp(SelfDrafter):
    """`skip`: the share of the layers that is left out; `interval`: rounds between two searches; `confidence`."""

    defaults: ClassVar[Options] = {"skip": 0.5, "interval": 16, "confidence": 0.7}

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        layers, inner = len(decoder.layers), inner_layers(decoder)
        self._count = min(max(1, round(self.options["skip"] * layers)), len(inner))
        self._choices = [Choice(items_of(decoder, number), int(number in inner)) for number in range(layers)]
        self._rounds = self._searches = 0
        self._cosine: float | None = None

    def start(self, decoder: Decoder) -> None:
        """Begin a request: its first round searches."""
        self._rounds = 0

    def draft(self, current: Round) -> Draft:
        """Choose the layers, where that is due, and draft."""
        if self._rounds % self.options["interval"] == 0:
            self._search(current)
            current.clock.passed("search")
        self._rounds += 1
        return super().draft(current)

    def _search(self, current: Round) -> None:
        variants = Variants(self.decoder, current.state, current.state.snapshot(), current.tokens[-1:])
        layer_sets = search(variants, self._choices, limit=self._count, min_cosine=-1.0)
        self.left_out, self._cosine = layer_sets.left_out[-1], layer_sets.cosine[-1]
        self._searches += 1

    def describe(self) -> dict[str, object]:
        """Return what is left out now, how like the whole model it was, and how often that was searched."""
        return {**super().describe(), "searches": self._searches, "cosine": self._cosine, "skipped_layers": self._count}
