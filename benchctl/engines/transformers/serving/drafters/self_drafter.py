"""Drafting with the target itself, parts of it left out: its weights and its caches, nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder, Parts, Snapshot, State, named, without

Options = Mapping[str, Any]


class UnsuitableError(ValueError):
    """A method cannot work with this model or these options."""


class SelfDrafter:
    """Drafts token by token without `left_out`; a method chooses what that is, once or as it goes on."""

    left_out: Parts = frozenset()
    confidence = 0.0
    """A token that the draft gave less than this probability is the last of its draft. It stays in the draft: to
    leave it out because of what was drawn would change the distribution of sampled answers."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def start(self, decoder: Decoder) -> None:
        """Begin a request: nothing is remembered of the last."""

    def draft(self, current: Round) -> Draft:
        """Guess `current.depth` tokens, fewer where a token ends the answer or is not likely enough."""
        tokens: list[int] = []
        distributions: list[torch.Tensor | None] = []
        token = current.tokens[-1]
        with without(self.decoder, self.left_out):
            while len(tokens) < current.depth:
                logits = current.state.advance([token])
                token, distribution = current.chooser.draft(logits)
                tokens.append(token)
                distributions.append(distribution)
                if token in current.ends or (
                    self.confidence and _likelihood(token, distribution, logits) < self.confidence
                ):
                    break
        return Draft(tokens, distributions, self.left_out)

    def verified(self, current: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Do nothing: a fixed set does not adapt."""

    def describe(self) -> dict[str, object]:
        """Return what is left out, for the attestation."""
        return {"left_out": named(self.left_out), "layers": len(self.decoder.layers)}


def _likelihood(token: int, distribution: torch.Tensor | None, logits: torch.Tensor) -> float:
    return float(logits[-1].float().softmax(-1)[token] if distribution is None else distribution[token])


class Window:
    """The last tokens of an answer, with a state from before them: what a search reads again."""

    def __init__(self, length: int) -> None:
        self.length = length
        self._anchor: Snapshot | None = None
        self._next: Snapshot | None = None

    def follow(self, state: State) -> None:
        """Take note of the state between two rounds; a snapshot is made every `length` tokens."""
        if self._next is None or state.read - self._next.read >= self.length:
            self._anchor, self._next = self._next, state.snapshot()

    def tokens(self, current: Round) -> tuple[Snapshot, list[int]] | None:
        """Return a state, and `length` tokens that followed it; `None` while there are too few."""
        anchor = self._anchor
        if anchor is None:
            return None
        return anchor, list(current.tokens[anchor.read : anchor.read + self.length])
