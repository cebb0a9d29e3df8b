"""The target alone, scoring prefixes: its own logits, read in whatever batches the caller chooses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from benchctl.engines.transformers.serving.decoder import Decoder
from benchctl.engines.transformers.serving.state import State


class Scoring:
    """Reads prefixes and tells the likeliest next tokens; what was read last stays read."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._state = State(decoder)
        self._tokens: tuple[int, ...] = ()

    def read(self, prefix: Sequence[int], top: int, *, kept: bool, left_out: Collection[int] = ()) -> dict[str, Any]:
        """Read `prefix`, with `kept` only what it has more than the one before, in one batch.

        Returns `logprobs` (pairs of id and natural logarithm, likeliest first, without `left_out`) and `evaluated`.
        """
        before = len(self._tokens)
        if not (kept and len(prefix) > before and tuple(prefix[:before]) == self._tokens):
            self._state, before = State(self._decoder), 0
        with torch.inference_mode():
            logits = self._state.advance(prefix[before:])[-1].float()
            if left_out:
                # As a sampler that never chooses them: nothing is renormalized.
                known = torch.tensor(sorted(left_out), device=logits.device)
                logprobs = logits.log_softmax(-1).index_fill(0, known, -torch.inf)
            else:
                logprobs = logits.log_softmax(-1)
            values, ids = logprobs.topk(min(top, logprobs.shape[-1] - len(left_out)))
        self._tokens = tuple(prefix)
        return {
            "logprobs": list(zip(ids.tolist(), values.tolist(), strict=True)),
            "evaluated": len(prefix) - before,
        }
