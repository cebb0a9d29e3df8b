"""`self-del`: how many of the first layers draft, and how far, is chosen anew after every verification.

DEL (Entezari Zarch et al. 2025, https://arxiv.org/abs/2504.05598): after a verification the hidden states that every
layer handed on are put through the final norm and the output layer ("shadow tokens"), which gives how often a draft by
that many layers would have been right. With the share a of each exit, the exit l and the depth k are taken that bring
the most tokens per layer, E(a, k) / (k l + L). A draft ends early after a token below the exit's own confidence. Where
the paper does not specify it, or where this differs:

- a verification here reads all L layers again; the study's keeps what the draft's layers computed, and counts L - l.
- shares are sums over all rounds of the request, older ones weighing `decay` a round less: 0.95. Each begins with a
  right and a wrong token, so that an exit of which nothing is known is neither certain nor hopeless.
- confidence: the middle between the mean probability that an exit gave its right and its wrong tokens.
- until the first verification: half of the layers, to the depth of the recipe.
- the output layer at every exit takes time, which counts as search. `interval`: rounds between two choices, 1.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.drafters.knapspec import expected_tokens
from benchctl.engines.transformers.serving.drafters.self_drafter import Options, SelfEarlyExit
from benchctl.engines.transformers.serving.variants import logits_of


class SelfDel(SelfEarlyExit):
    """`interval`, `decay`: see above."""

    defaults: ClassVar[Options] = {"interval": 1, "decay": 0.95}

    def __init__(self, decoder: Decoder, options: Options) -> None:
        super().__init__(decoder, options)
        self._layers = len(decoder.layers)
        self._looks = 0
        self._handed_on: list[torch.Tensor] = []
        self._listening: list[Any] = []
        self.start(decoder)

    def start(self, decoder: Decoder) -> None:
        """Begin a request; forget the statistics of the exits."""
        exits = self._layers - 1
        self._right, self._wrong = torch.ones(exits), torch.ones(exits)
        self._right_trust, self._wrong_trust = torch.zeros(exits), torch.zeros(exits)
        self._rounds = 0
        self._depth: int | None = None
        self._stop_listening()
        self.exit_after(max(1, self._layers // 2))

    def draft(self, current: Round) -> Draft:
        """Draft with the best exit and depth; then record what the layers return in the verification."""
        depth = current.depth if self._depth is None else min(current.depth, self._depth)
        draft = super().draft(dataclasses.replace(current, depth=depth))
        if self._rounds % self.options["interval"] == 0:
            for layer in self.decoder.layers[:-1]:
                self._listening.append(layer.module.register_forward_hook(self._note))
        self._rounds += 1
        return draft

    def _note(self, module: torch.nn.Module, inputs: object, answer: torch.Tensor | tuple[torch.Tensor]) -> None:
        self._handed_on.append(answer[0] if isinstance(answer, tuple) else answer)

    def _stop_listening(self) -> None:
        for handle in self._listening:
            handle.remove()
        self._listening.clear()
        self._handed_on.clear()

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Compare each exit's tokens with the target's, and choose anew."""
        handed_on = list(self._handed_on)
        self._stop_listening()
        if not handed_on:
            return
        expected, places = logits.argmax(-1)[: accepted + 1], accepted + 1
        for number, hidden in enumerate(handed_on):
            scores = logits_of(self.decoder, hidden[:, :places]).float()
            top, predicted = scores.max(-1)
            trust = 1 / scores.sub_(top[:, None]).exp_().sum(-1)  # in place, to save memory
            right = (predicted == expected).float()
            observed = (right, 1 - right, trust * right, trust * (1 - right))
            totals = (self._right, self._wrong, self._right_trust, self._wrong_trust)
            for total, counts in zip(totals, observed, strict=True):
                total[number] = self.options["decay"] * total[number] + float(counts.sum())
        self._choose()
        self._looks += 1

    def _choose(self) -> None:
        shares = (self._right / (self._right + self._wrong)).tolist()
        rated = (
            (expected_tokens(share, depth) / (depth * layers + self._layers), layers, depth)
            for layers, share in enumerate(shares, 1)
            for depth in range(1, self.depth + 1)
        )
        _, layers, self._depth = max(rated)
        self.exit_after(layers)
        # The right and wrong token that each exit starts with have no confidence. They fade like all others.
        right_trust = float(self._right_trust[layers - 1] / self._right[layers - 1])
        wrong_trust = float(self._wrong_trust[layers - 1] / self._wrong[layers - 1])
        self.confidence = (right_trust + wrong_trust) / 2

    def describe(self) -> dict[str, object]:
        """Return the chosen exit and depth, and the number of choices up to now."""
        exit_layer = self._layers - len(self.left_out)
        return {**super().describe(), "exit_layer": exit_layer, "depth": self._depth, "searches": self._looks}
