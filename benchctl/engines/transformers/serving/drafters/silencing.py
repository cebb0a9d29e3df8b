"""Drafting with the target itself, parts of it left out: its weights and its caches, nothing of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from benchctl.engines.transformers.serving.decode import Draft, Round
from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.silence import Silenced, silenced

Options = Mapping[str, Any]


class UnsuitableError(ValueError):
    """A method cannot work with this model or these options."""


class SilencingDrafter:
    """Drafts token by token without `left_out`; a method chooses what that is, once or as it goes on."""

    left_out: Silenced

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder

    def start(self, decoder: Decoder) -> None:
        """Begin a request: nothing is remembered of the one before."""

    def draft(self, seen: Round) -> Draft:
        """Guess `seen.depth` tokens, fewer where one ends the answer."""
        tokens: list[int] = []
        distributions: list[torch.Tensor | None] = []
        token = seen.tokens[-1]
        with silenced(self.decoder, self.left_out):
            while len(tokens) < seen.depth:
                token, distribution = seen.chooser.draft(seen.state.advance([token]))
                tokens.append(token)
                distributions.append(distribution)
                if token in seen.ends:
                    break
        return Draft(tokens, distributions)

    def verified(self, seen: Round, draft: Draft, accepted: int, logits: torch.Tensor) -> None:
        """Learn nothing."""

    def describe(self) -> dict[str, object]:
        """Return what is left out, for the attestation."""
        parts = sorted(self.left_out)
        return {"left_out": [f"{layer}.{part}" for layer, part in parts], "layers": len(self.decoder.layers)}
